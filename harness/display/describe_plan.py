"""The text of a dry run: what is asked of the model, which effects the run can detect, and how long it takes."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence

from harness.analysis.power import minimal_detectable_effect
from harness.constants import ALPHA, POWER
from harness.display.forecast import find_speed
from harness.display.table_formats import align, fold
from harness.experiment.chat_template import template_switches
from harness.experiment.conditions import BASELINE, contrast_name, group_name
from harness.experiment.config import RunConfig
from harness.experiment.plan import Arm, Plan
from harness.experiment.problems import Problem
from harness.grading import describe_gold

DISCORDANCES = (0.05, 0.1, 0.2)
"""Guesses of the discordance: the share of problems where single samples of two conditions disagree."""
DEFAULT_DISCORDANCE = DISCORDANCES[1]
"""The guess where there is room for one number only."""
GOLDS_SHOWN = 5
NONE = "none"
"""Printed where even the largest effect would not be detected."""


def describe_plan(plan: Plan) -> str:
    """The plan as text: requests, what they can show, prompt lengths, tokens, time."""
    config, problems = plan.config, len(plan.whole.problems[: plan.limit])
    beyond = plan.limit is not None and plan.limit > problems
    extra = [f"{BASELINE} {config.replicates} times"] if config.replicates > 1 else []
    groups = Counter(group_name(condition.name) for condition in config.yardsticks)
    extra += [f"{number} {group}" if number > 1 else f"1 {group.removesuffix('s')}" for group, number in groups.items()]
    switches = template_switches(config.model.arguments)
    lines = [
        f"model     {config.model.display_name} through {config.model.backend}",
        *(f"template  {name}: {json.dumps(value)}" for name, value in switches.items()),
        f"dataset   {plan.dataset.name}, {len(plan.dataset.problems)} problems, {plan.dataset.source}",
        *describe_golds(plan.dataset.problems),
        *([f"note      --limit {plan.limit} is more than there are: all {problems} are asked"] if beyond else []),
        f"sampling  {config.sampling_words}, at most {config.max_gen_toks} tokens each",
        f"requests  {plan.size}" + (f": {', '.join(extra)}" if extra else ""),
        *describe_power(config, problems),
    ]
    rows = [("condition", "layout", "filler", "place", "prompt tokens: least", "median", "most")]
    total = 0
    for (name, layout), arms in _shown_together(plan.arms).items():
        reports = [report for arm in arms for report in arm.built.reports]
        if not reports:
            rows.append((name, layout, "?", "?", "?", "?", "?"))
            continue
        lengths = [len(report.prompt_token_ids) for report in reports]
        total += sum(lengths) * config.samples_per_problem * arms[0].replicates
        low, high = reports[0].filler_span or (0, 0)
        least, most = min(one.filler_tokens for one in reports), max(one.filler_tokens for one in reports)
        rows.append(
            (
                name,
                layout,
                str(most) if least == most else f"{least}-{most}",
                f"{low}-{high}" if high else "-",
                str(min(lengths)),
                f"{statistics.median(lengths):.0f}",
                str(max(lengths)),
            )
        )
    lines += align(rows, [False] * len(rows[0]))
    for arm in plan.arms:
        if said := arm.built.notes or arm.built.violations:
            more = f" ({len(said) - 1} more like it)" if len(said) > 1 else ""
            lines.append(f"note      {arm.built.condition.name}, {arm.built.layout}: {said[0]}{more}")
    if total:
        lines.append(f"tokens    {total:,} in prompts, at most {plan.size * config.max_gen_toks:,} generated")
    else:
        lines.append("tokens    unknown: name a tokenizer (--set model.arguments.tokenizer=NAME)")
    lines.append(describe_outlook(config, problems, plan.size))
    return fold(lines, hyphens=False, indent=10)


def describe_golds(problems: Sequence[Problem]) -> list[str]:
    """The gold answers with which the grader can compare nothing but the same text, as lines. Empty without any."""
    named = [(one, reason) for one in problems if (reason := describe_gold(one.answer))]
    found = [
        f"{one.id}: {' '.join(one.answer[:60].split())} ({reason.removeprefix('gold answer: ')})"
        for one, reason in named
    ]
    if not found:
        return []
    more = [f"          and {len(found) - GOLDS_SHOWN} more"] if len(found) > GOLDS_SHOWN else []
    return [
        f"golds     {len(found)} of {len(problems)} gold answers cannot be compared: at most the same text is right.",
        "          Write only the final answer, or leave the problem out:",
        *(f"          {line:.110}" for line in found[:GOLDS_SHOWN]),
        *more,
    ]


def describe_power(config: RunConfig, problems: int) -> list[str]:
    """The smallest true gains that a run detects, as lines. Empty if it tests nothing.

    Args:
        config: The run's.
        problems: How many are asked.
    """
    tests = _tests(config)
    if not tests:
        return []
    primary = config.primary_contrast
    about = ", ".join(contrast_name(*pair) for pair in ([primary] if primary else config.tested))
    about += ", the primary contrast" if primary else ""
    alpha = f"alpha {ALPHA:g}" + (f" / {tests}" if tests > 1 else "")
    rows = [("", [f"{100 * discordance:.0f} %" for discordance in DISCORDANCES])]
    for way, samples in _ways(config):
        rows.append((way, [_gain(problems, samples, discordance, tests) for discordance in DISCORDANCES]))
    return [
        "detects   the least gain in points, if samples with and without filler disagree on so many problems "
        f"({100 * POWER:.0f} % power, {alpha}; {about}):",
        *(f"          {way:<42}" + "".join(f"{cell:>7}" for cell in cells) for way, cells in rows),
    ]


def describe_outlook(config: RunConfig, problems: int, requests: int) -> str:
    """One line: the smallest gain that a run can detect, and how long it takes."""
    said = []
    if tests := _tests(config):
        first, *others = [_gain(problems, samples, DEFAULT_DISCORDANCE, tests) for _, samples in _ways(config)]
        rest = f" (if the filler moves all problems one way; {others[0]} if it moves them both ways)" if others else ""
        share = f"at {100 * DEFAULT_DISCORDANCE:.0f} % disagreement"
        gain = first if first == NONE else f"{first} points{rest}"
        said.append(f"smallest gain this run can detect: {gain}, {share}")
    speed = find_speed(config)
    if speed is None:
        said.append(f"time unknown: no finished run of this model in {config.output}")
    else:
        minutes = (requests * speed.tokens_each / speed.tokens_per_second + speed.load_seconds) / 60
        on = f" on {speed.devices[0]}" if speed.devices else ""
        number = max(1, math.ceil(minutes * max(1, len(speed.devices))))
        unit = speed.unit.removesuffix("s") if number == 1 else speed.unit
        said.append(f"about {number} {unit} (as {speed.source}: {speed.tokens_per_second:,.0f} tokens/s{on})")
    return "; ".join(said)


def _shown_together(arms: Sequence[Arm]) -> dict[tuple[str, str], list[Arm]]:
    """The arms by name and layout. Yardsticks of one kind are one line."""
    shown: dict[tuple[str, str], list[Arm]] = {}
    for arm in arms:
        shown.setdefault((group_name(arm.built.condition.name), str(arm.built.layout)), []).append(arm)
    return shown


def _tests(config: RunConfig) -> int:
    """How many tests share alpha: those of the primary contrast, else of all that the run can test."""
    names = {condition.name for condition in config.conditions}
    first = 1 if config.primary_contrast else sum(set(pair) <= names for pair in config.tested)
    return first * len(config.layouts)


def _ways(config: RunConfig) -> list[tuple[str, int]]:
    """How a filler may move problems, and how many samples per problem then count.

    If it moves whole problems, some up and some down, all samples of a problem agree and count as one.
    """
    samples = config.samples_per_problem
    if samples == 1:
        return [("with 1 sample a problem", 1)]
    return [(f"{samples} samples, all problems moved one way", samples), ("whole problems moved both ways", 1)]


def _gain(problems: int, samples: int, discordance: float, tests: int) -> str:
    effect = minimal_detectable_effect(n=problems, k=samples, discordance=discordance, alpha=ALPHA / tests)
    return NONE if math.isnan(effect) else f"{100 * effect:.1f}"
