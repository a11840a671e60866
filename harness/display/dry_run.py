"""The text of a dry run: what is asked of the model, which effect the run can detect, and how long it takes."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.analysis.pool_models import FEWEST_DRAWS
from harness.analysis.power import minimal_detectable_effect
from harness.constants import ALPHA, FEWEST_INSTRUCTIONS, FEWEST_TEXTS, POWER
from harness.display.format_table import Column, Table, fold, render
from harness.display.format_values import visible
from harness.engines.devices import computes_bf16, describe_processor
from harness.engines.interventions.check_arms import ARM_PROMPTS
from harness.engines.vllm_engine import device_type
from harness.errors import list_first
from harness.experiment.conditions import contrast_name
from harness.experiment.plan import Plan, group_name
from harness.experiment.run_config import RunConfig
from harness.experiment.token_checks import ConditionPrompts
from harness.experiment.tokenizer import template_switches
from harness.grading import describe_gold
from harness.resources import count_cores
from harness.runs.run_folder import RECEIPT

START_SECONDS = 60.0
"""An engine's start on a CPU, in the forecast of a run: mostly imports, and compiling."""
CORE_SPEEDS = {True: 1e11, False: 4e10}
"""Operations a second of one core, in the same: with bf16 instructions, and in float32 without. On one core of an EPYC
9005 that others used too, SmolLM2-135M took 7.5 s in bf16 for 48 prompts of 160 to 220 tokens with 64 new tokens each;
most of each prompt was cached."""
PLANNED_DISCORDANCE = 0.1
"""The share of problems where a dry run takes single samples of two conditions to disagree: the study's usual order."""
PLANNED_SPREAD = 0.02
"""By how much a dry run takes the effect to scatter between texts, instructions or draws of examples. In
docs/figures/instructions.csv, of a small model, it scatters several times as far."""

PROMPT_COLUMNS = tuple(
    Column(name, name, str, numeric=name not in ("condition", "layout"))
    for name in ("condition", "layout", "filler", "place", "least", "median", "most")
)


def describe_plan(plan: Plan, further: Sequence[str] = ()) -> str:
    """The plan as text: requests, what they can show, time, further lines, and a table of the prompts."""
    return (
        f"{fold([*_lines(plan), *further], hyphens=False, indent=10)}\n\n{render([_prompts(plan)])}"
    )


def show_prompts(plan: Plan) -> str:
    """The first problem's whole prompt under each condition, the filler between guillemets, a long one shortened."""
    shown = []
    for (name, layout), (arm, *_) in _groups(plan).items():
        prompt, text, at = arm.prompts[0], "", 0
        for low, high in prompt.fillers:
            words = prompt.text[low:high].split()
            short = (
                f"{' '.join(words[:2])} ... {words[-1]}"
                if len(words) > 8
                else prompt.text[low:high]
            )
            text += f"{prompt.text[at:low]}«{short}»"
            at = high
        count = "?" if prompt.token_ids is None else len(prompt.token_ids)
        heading = f"--- {name}, {layout}: {count} tokens"
        if prompt.fillers:
            heading += f", {_count_filler(plan, [arm])} of them for the filler"
        shown += [heading, *visible(text + prompt.text[at:]).split("\n"), ""]
    return fold(shown, hyphens=False, indent=0)


def _groups(plan: Plan) -> dict[tuple[str, str], list[ConditionPrompts]]:
    """The prompts of each condition and layout; reference conditions of a kind are together, and so are draws."""
    groups: dict[tuple[str, str], list[ConditionPrompts]] = {}
    for arm in plan.arms.values():
        if arm.prompts:  # with --limit, no problem may be left for a draw of examples
            name = group_name(arm.condition.kind, arm.condition.name)
            groups.setdefault((name, str(arm.layout)), []).append(arm)
    return groups


def _count_filler(plan: Plan, arms: Sequence[ConditionPrompts]) -> str:
    """The filler's tokens, from the fewest to the most, and those around it where no more differs from `wo`."""
    fillers = sorted({prompt.filler_tokens for arm in arms for prompt in arm.prompts})
    said, one = "-".join(map(str, dict.fromkeys([fillers[0], fillers[-1]]))), arms[0]
    plain = [
        arm for arm in plan.arms.values() if arm.condition.is_plain and arm.condition.has_examples
    ]
    without = [arm for arm in plain if (arm.layout, arm.draw) == (one.layout, one.draw)]
    if not (without and one.condition.filler and one.lengths) or one.condition.words:
        return said
    return f"{said} + {one.lengths[0] - without[0].lengths[0] - one.prompts[0].filler_tokens}"


def _lines(plan: Plan) -> Iterator[str]:
    config, asked = plan.config, plan.dataset.problems
    yield f"model     {config.model.display_name} through {config.model.backend}"
    for name, value in template_switches(config.model.model_args).items():
        yield f"template  {name}: {json.dumps(value)}"
    yield f"dataset   {plan.dataset.name}, {len(plan.dataset.problems)} problems, {plan.dataset.source}"
    named = ((one, describe_gold(one.answer)) for one in plan.dataset.problems)
    golds = [
        f"{one.id}: {one.answer[:60]} ({why.removeprefix('gold answer: ')})"
        for one, why in named
        if why
    ]
    if golds:
        share = f"{len(golds)} of {len(plan.dataset.problems)} gold answers"
        yield f"golds     {share} cannot be compared: at most the same text is right. {list_first(golds, 5)}"
    for arm in plan.arms.values():
        if said := arm.notes or arm.violations:
            more = f" ({len(said) - 1} more like it)" if len(said) > 1 else ""
            yield f"note      {arm.condition.name}, {arm.layout}: {said[0]}{more}"
    yield f"layouts   {', '.join(config.layouts)}; before a text that is no chat: {plan.raw_prefix or 'no BOS token'}"
    yield f"sampling  {config.sampling_words}, at most {config.max_gen_toks} tokens each"
    groups = Counter(group_name(one.kind, one.name) for one in config.all_conditions if one.kind)
    extra = [
        f"{name} {config.replicates} times"
        for name in config.replicated_conditions[:2]
        if config.replicates > 1
    ]
    extra += [f"{number} {group}" for group, number in groups.items()]
    yield f"requests  {plan.size}" + (f": {', '.join(extra)}" if extra else "")
    if changed := [one.name for one in config.conditions if one.intervention]:
        yield f"inside    {len(changed)} conditions change the model; {ARM_PROMPTS} prompts of each check it"
    if config.record_attention:
        layers = config.record_attention
        told = "all layers" if layers == "all" else f"Layers {list_first([*map(str, layers)], 9)}"
        yield f"records   attention in {told}, of the first sample of each prompt"
    known = [
        length * config.repeats_per_draw * plan.replicates(arm)
        for arm in plan.arms.values()
        for length in arm.lengths
    ]
    if known:
        yield f"tokens    {sum(known):,} in prompts, at most {plan.size * config.max_gen_toks:,} generated"
    else:
        yield "tokens    unknown: name a tokenizer (--set model.model_args.tokenizer=NAME)"
    yield from describe_power(config, len({problem.counts_with for problem in asked}))
    if config.model.backend == "vllm" and device_type() == "cpu":
        yield f"cpu       {describe_processor(config.model.model_args)}"
    yield f"time      {describe_time(config, plan.size, sum(known))}"


def _prompts(plan: Plan) -> Table:
    """A row for each condition and layout: the filler's tokens and place, and the prompts' tokens."""
    rows = []
    for (name, layout), arms in _groups(plan).items():
        row = {"condition": name, "layout": layout}
        if lengths := [length for arm in arms for length in arm.lengths]:
            first = arms[0].prompts[0]
            low, high = first.filler_span or (0, 0)
            parts = f" in {len(first.fillers)} parts" if len(first.fillers) > 1 else ""
            row |= {
                "filler": _count_filler(plan, arms),
                "place": f"{low}-{high}{parts}" if high else "-",
                "least": str(min(lengths)),
                "median": f"{statistics.median(lengths):.0f}",
                "most": str(max(lengths)),
            }
        rows.append({column.key: "?" for column in PROMPT_COLUMNS} | row)
    return Table(
        "Tokens of the filler + its separators, its place, tokens of the prompt",
        rows,
        PROMPT_COLUMNS,
    )


def describe_power(config: RunConfig, problems: int) -> Iterator[str]:
    """The smallest differences that a run would detect: of its contrasts, and as a mean over new texts or instructions.

    Args:
        config: The run's.
        problems: How many are asked; those of one cluster count as one.
    """
    names = {condition.name for condition in config.conditions}
    tested = [pair for pair in config.tested if set(pair) <= names]
    primary = config.primary_contrast
    tests = (1 if primary else len(tested)) * max(1, len(config.layouts))
    planned: dict[str, Any] = {
        "n": problems,
        "k": config.repeats,
        "discordance": PLANNED_DISCORDANCE,
    }
    disagree = f"samples with and without a filler disagree on {100 * PLANNED_DISCORDANCE:.0f} % of the problems"
    power = f"{100 * POWER:.0f} % power"
    if tests:
        conditions = disagree
        draws: dict[str, Any] = {}
        if config.draws >= FEWEST_DRAWS:  # then the test is for new draws too
            draws = {"prompts": config.draws, "spread": PLANNED_SPREAD}
            conditions += (
                f" and the effect scatters between draws by {100 * PLANNED_SPREAD:g} points"
            )
        smallest = _in_points(minimal_detectable_effect(**planned, **draws, alpha=ALPHA / tests))
        contrasts = ", ".join(contrast_name(*pair) for pair in ([primary] if primary else tested))
        alpha = f"alpha {ALPHA:g}" + (f" / {tests}" if tests > 1 else "")
        yield f"detects   differences from {smallest} on ({contrasts}; {power}, {alpha}, if {conditions})"
    kinds = Counter(
        kind
        for one in config.conditions
        for kind in ("sentence", "random_ids")
        if getattr(one, kind)
    )
    texts = max(kinds.values(), default=0)
    instructions = 1 + len(config.across.instructions) if config.across else 0
    for noun, count, fewest in (
        ("texts", texts, FEWEST_TEXTS),
        ("instructions", instructions, FEWEST_INSTRUCTIONS),
    ):
        if count >= fewest:
            smallest = _in_points(
                minimal_detectable_effect(**planned, prompts=count, spread=PLANNED_SPREAD)
            )
            scatter = f"the effect scatters between {noun} by {100 * PLANNED_SPREAD:g} points"
            yield f"new       mean effects over new {noun} from {smallest} on ({count} {noun}; {power}, if {scatter})"


def _in_points(effect: float) -> str:
    most = f"more than {100 * PLANNED_DISCORDANCE:.0f} points"
    return most if math.isnan(effect) else f"{100 * effect:.1f} points"


def describe_time(config: RunConfig, requests: int, prompt_tokens: int = 0) -> str:
    """How long a run takes, at the speed of the longest earlier run of the same model in the config's output folder.

    Short runs are slower, because they pay for ramp-up and tail. Without any run the model's size and the cores tell.
    """
    if found := max(_find_speeds(config, requests), default=None):
        return found[1]
    told = _forecast(config, prompt_tokens + requests * config.max_gen_toks / 2)
    return f"{told or 'unknown'}: no finished run of this model in {config.output}"


def _forecast(config: RunConfig, tokens: float) -> str:
    """How long a model takes on a CPU that was never run here. Empty on a GPU, and if its size is not known.

    Args:
        config: The run's.
        tokens: Of prompts and completions. Each costs two operations for every parameter.
    """
    from transformers import AutoConfig

    if config.model.backend != "vllm" or device_type() != "cpu":
        return ""
    arguments, cores = config.model_arguments(), count_cores()
    try:
        own = AutoConfig.from_pretrained(
            arguments["pretrained"], revision=arguments.get("revision")
        ).get_text_config()
        layer = own.hidden_size * (4 * own.hidden_size + 3 * own.intermediate_size)
        size = own.num_hidden_layers * layer + own.vocab_size * own.hidden_size
    except (LookupError, AttributeError, OSError, ValueError):
        return ""
    minutes = math.ceil(
        (START_SECONDS + 2 * size * tokens / (cores * CORE_SPEEDS[computes_bf16()])) / 60
    )
    return f"about {minutes} min, may be wrong by 3 times ({size / 1e6:,.0f} million parameters on {cores} CPU cores)"


def _find_speeds(config: RunConfig, requests: int) -> Iterator[tuple[int, str]]:
    """The tokens of each run of the same model, and how long the requests take at its speed.

    Files that are no receipts are skipped.
    """
    for path in config.output.glob(f"*/{RECEIPT}"):
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
            model, timing, speed = (
                receipt["config"]["model"],
                receipt["timing"],
                receipt["timing"]["tokens_per_second"],
            )
            engines = [
                session["engine"] for session in receipt["sessions"] if session.get("engine")
            ] or [{}]
            same = _asked(model["backend"], model["model_args"]) == _asked(
                config.model.backend, config.model.model_args
            )
            if (
                same and engines[-1].get("engines", 1) == 1
            ):  # how many the next run will have is not known here
                devices = engines[-1].get("device_names") or ()
                seconds = (
                    requests * timing["tokens"] / timing["samples"] / speed + timing["load_seconds"]
                )
                number = max(1, math.ceil(seconds / 60 * max(1, len(devices))))
                unit = "minute" if receipt["engine"]["device"] == "cpu" else "GPU-minute"
                told = f"about {number} {unit}{'s' * (number > 1)} (as {path.parent}: {speed:,.0f} tokens/s"
                yield timing["tokens"], f"{told}{f' on {devices[0]}' if devices else ''})"
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
            continue


def _asked(backend: str, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings in a config that decide the speed of a model."""
    names = (
        "pretrained",
        "model",
        "dtype",
        "quantization",
        "enforce_eager",
        "tensor_parallel_size",
    )
    return backend, *(arguments.get(name) for name in names)
