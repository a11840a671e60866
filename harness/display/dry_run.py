"""The text of a dry run: prompts, requests, and the smallest effect that they can detect."""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from harness.analysis.power import minimal_detectable_effect
from harness.constants import ALPHA, ANSWER_LOGPROB, FEWEST_DRAWS, POWER
from harness.decimal_commas import with_decimal_points
from harness.display.printed_tables import Column, Table, fold, render
from harness.display.value_texts import describe_clusters, plural
from harness.engines.interventions.intervention_check import count_checked
from harness.errors import list_first
from harness.experiment.choices import letter_lines
from harness.experiment.conditions import OTHER_TEXT, POSITIVE_CONTROL, contrast_name
from harness.experiment.plan import Plan, group_name
from harness.experiment.problems import Problem
from harness.experiment.prompts.chat_template import template_switches
from harness.experiment.prompts.checked_prompts import ConditionPrompts
from harness.experiment.prompts.prompt import Layout
from harness.experiment.run_config import RunConfig
from harness.grading import describe_gold, read_elements
from harness.reasoning_markers import NO_MARKERS_NOTE

PLANNED_DISCORDANCE = 0.1
"""The assumed share of problems on which single samples of two conditions disagree. It has the
order of the study's numbers."""
PLANNED_SPREAD = 0.02
"""The assumed standard deviation of the effect between draws of examples."""

LISTED_UNUSUAL_GOLDS = 3
"""The number of gold answers of the least usual form that are listed."""

ANSWER_FORMS = {
    "box": "box: the last \\boxed{{}} of a completion, as the instruction demands",
    "line": "line: the first line of a completion",
    ANSWER_LOGPROB: "the log-probability of the gold answer is compared with those of "
    "all others that are scored; by chance {:.3g} % come first",
}
"""Where the answer is read, by the key `answer`."""

PROMPT_TABLE_COLUMNS = tuple(
    Column(name, name, str, numeric=name not in ("condition", "layout"))
    for name in ("condition", "layout", "filler", "position", "least", "median", "most")
)


def describe_plan(plan: Plan, further: Sequence[str] = ()) -> str:
    """The plan as text: requests, power and further lines, then a table of the prompts."""
    config = plan.config
    clusters = len({problem.cluster_key for problem in plan.dataset.problems})
    lines = [
        *_describe_prompts(plan, clusters),
        *_describe_requests(plan),
        *describe_power(config, clusters),
    ]
    text = fold([*lines, *further], indent=10)
    return f"{text}\n\n{render([_make_prompt_table(plan)])}"


def show_prompts(plan: Plan) -> str:
    """The first problem's prompt under each condition, with the filler between guillemets.

    The middle of a long filler is left out.
    """
    lines = []
    for (name, layout), (condition_prompts, *_) in _group_tasks(plan).items():
        prompt = condition_prompts.prompts[0]
        text = ""
        previous_end = 0
        for filler_start, filler_end in prompt.filler_ranges:
            filler = prompt.text[filler_start:filler_end]
            words = filler.split()
            if len(words) > 8:
                filler = f"{words[0]} {words[1]} ... {words[-1]}"
            text += f"{prompt.text[previous_end:filler_start]}«{filler}»"
            previous_end = filler_end
        text += prompt.text[previous_end:]
        tokens = "?" if prompt.token_ids is None else len(prompt.token_ids)
        heading = f"--- {name}, {layout}: {tokens} tokens"
        if prompt.filler_ranges:
            heading += f", {_count_filler([condition_prompts])} of them for the filler"
        lines += [heading, *text.split("\n"), ""]
    return fold(lines, indent=0)


def _group_tasks(plan: Plan) -> dict[tuple[str, str], list[ConditionPrompts]]:
    """The prompts of each condition and layout.

    Reference conditions of the same kind are one group, and so are draws of examples.
    """
    groups: dict[tuple[str, str], list[ConditionPrompts]] = {}
    for condition_prompts in plan.tasks.values():
        # With --limit, no problem may be left for a draw of examples.
        if condition_prompts.prompts:
            name = group_name(condition_prompts.condition.kind, condition_prompts.condition.name)
            groups.setdefault((name, str(condition_prompts.layout)), []).append(condition_prompts)
    return groups


def _count_filler(tasks: Sequence[ConditionPrompts]) -> str:
    """The filler's tokens, from the fewest to the most."""
    prompts = chain.from_iterable(condition_prompts.prompts for condition_prompts in tasks)
    counts = [prompt.filler_tokens for prompt in prompts]
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))


def _count_prompt_tokens(plan: Plan) -> int:
    """The tokens of the prompts of all requests; 0 if the tokenizer is not known.

    A prompt counts once for each answer whose log-probability is measured.
    """
    tokens = sum(
        plan.count_replicates(condition_prompts)
        * max(1, len(prompt.answers))
        * len(prompt.token_ids or ())
        for _, condition_prompts, _, prompt in plan.rows
    )
    return tokens * plan.config.repeats_per_prompt


def _describe_prompts(plan: Plan, clusters: int) -> Iterator[str]:
    """The model, the dataset, and what is remarkable about gold answers and prompts."""
    config, problems = plan.config, plan.dataset.problems
    yield f"model     {config.model.display_name} through {config.model.backend}"
    for name, switch in template_switches(config.model.model_args).items():
        yield f"template  {name}: {json.dumps(switch)}"
    yield f"dataset   {plan.dataset.name}, {_count_problems(plan, clusters)}, {plan.dataset.source}"
    questions = {(problem.cluster_key, problem.answer) for problem in problems}
    # Questions that differ only in case, in the signs and spaces of formulas, or in blanks beside
    # other signs are folded to one.
    folded_questions = {
        (re.sub(r"\\[,;:! ()\[\]]|\$|(?<!\w)\s|\s(?!\w)", "", name).casefold(), answer)
        for name, answer in questions
    }
    if copies := len(questions) - len(folded_questions):
        yield (
            f"note      {copies} {plural('question', copies)} may be a copy: another differs in "
            "case, blanks or $ alone; give copies one `cluster`"
        )
    yield from _describe_golds(problems)
    answer_form = ANSWER_LOGPROB if config.endpoint == ANSWER_LOGPROB else config.answer
    chance = statistics.fmean(100 / (1 + len(prompt.other_answers)) for *_, prompt in plan.rows)
    yield f"answer    {ANSWER_FORMS[answer_form].format(chance)}"
    names_by_note: dict[str, list[str]] = {}
    for condition_prompts in plan.tasks.values():
        if notes := condition_prompts.notes:
            more = f" ({len(notes) - 1} similar notes)" if len(notes) > 1 else ""
            name = f"{condition_prompts.condition.name} ({condition_prompts.layout})"
            names_by_note.setdefault(f"{notes[0]}{more}", []).append(name)
    for note, names in names_by_note.items():
        yield f"note      {list_first(names)}: {note}"
    if plan.lacks_markers:
        yield f"note      {NO_MARKERS_NOTE}"
    if plan.thinking and (answer_form == "line" or config.until):
        yield "note      stop strings end reasoning too: set `answer: box`, without `until`"
    raw_rows = [row for row in plan.rows if row.task.layout != Layout.CHAT]
    if answer_form == "line" and any(prompt.text.endswith("\n") for *_, prompt in raw_rows):
        yield (
            "note      a prompt ends with a line break: a completion that begins with another has "
            "no answer, as its first line is empty"
        )
    if answer_form == "box" and config.fewshot and "boxed" not in (config.template or ""):
        yield "note      the examples show answers without a box, which models copy"
    layouts = f"{', '.join(config.layouts)}: {plan.layout_reason}"
    if {*config.layouts} != {Layout.CHAT}:
        layouts += f"; before text outside a chat: {plan.raw_prefix or 'no BOS token'}"
    yield f"layouts   {layouts}"


def _count_problems(plan: Plan, clusters: int) -> str:
    """The numbers of problems that are asked, of copies and clusters, and of examples."""
    total, problems = len(plan.full_dataset.problems), plan.dataset.problems
    text = str(len(problems))
    if len(problems) < total:
        text += f" of {total}"
    questions = {(problem.cluster_key, problem.question) for problem in problems}
    copies = len(problems) - len(questions)
    text += f" problems{describe_clusters(len(problems), clusters, copies)}"
    fewshot = plan.config.fewshot
    if plan.example_ids and fewshot and fewshot.has_examples:
        pool = len(plan.example_ids.pool)
        text += f", examples from {pool} others" if pool else ", examples from a file"
    return text


def _describe_golds(problems: Sequence[Problem]) -> Iterator[str]:
    """The gold answers that cannot be compared, and how the least usual others are read."""
    refusals, readings = [], []
    for problem in problems:
        for answer in (problem.answer, *problem.alternatives):
            gold = with_decimal_points(answer) if problem.decimal else answer
            name = f"{problem.id}: {answer[:60]}"
            if reason := describe_gold(gold):
                refusals.append(f"{name} ({reason.removeprefix('gold answer: ')})")
            else:
                # numbers and words of any length have the same form
                form = re.sub(r"\d+", "0", re.sub(r"[^\W\d_]+", "a", answer))
                texts = read_elements(gold)
                if problem.choices:
                    texts = [line for line in letter_lines(problem.choices) if line[0] == answer]
                readings.append((form, f"{name} is read as {' and '.join(texts)}"))
    if refusals:
        share = f"{len(refusals)} of {len(problems)} gold answers cannot be compared"
        yield f"golds     {share}: only an identical text is correct. {list_first(refusals, 5)}"
    else:
        yield f"golds     all {len(problems)} can be compared with an answer"
    counts = Counter(form for form, _ in readings)
    rarest = sorted(readings, key=lambda reading: counts[reading[0]])[:LISTED_UNUSUAL_GOLDS]
    if rarest:
        yield "golds     " + "; ".join(text for _, text in rarest)


def _describe_requests(plan: Plan) -> Iterator[str]:
    config = plan.config
    if config.endpoint != ANSWER_LOGPROB:
        yield f"sampling  {config.sampling_description}, at most {config.max_gen_toks} tokens each"
    counts = []
    if config.replicates > 1:
        counts = [f"{name} {config.replicates} times" for name in config.replicated_conditions]
    if config.positive_control:
        counts.append(POSITIVE_CONTROL)
    if config.other_texts:
        families = [f"{number} {name}" for name, number in config.other_texts.items()]
        prompt_count = sum(prompts.condition.kind == OTHER_TEXT for _, prompts, *_ in plan.rows)
        text_requests = prompt_count * config.repeats_per_prompt
        counts.append(f"{text_requests} of {' and '.join(families)}".replace("_", " "))
    details = f": {', '.join(counts)}" if counts else ""
    yield f"requests  {plan.completion_count}{details}"
    if number := len(config.interventions):
        checked_prompts = count_checked(len(plan.dataset.problems))
        yield (
            f"arms      {number} {plural('condition', number)} with an intervention, "
            f"each checked on {checked_prompts} prompts"
        )
    if prompt_tokens := _count_prompt_tokens(plan):
        most_tokens = plan.completion_count * config.max_gen_toks
        yield f"tokens    {prompt_tokens:,} in prompts, at most {most_tokens:,} generated"
    else:
        yield "tokens    unknown: name a tokenizer (--set model.model_args.tokenizer=NAME)"


def _make_prompt_table(plan: Plan) -> Table:
    """A row for each condition and layout: the filler's tokens and position, and prompt lengths."""
    unknown = {column.key: "?" for column in PROMPT_TABLE_COLUMNS}
    rows = []
    for (name, layout), tasks in _group_tasks(plan).items():
        row = unknown | {"condition": name, "layout": layout}
        lengths = [*chain.from_iterable(condition_prompts.lengths for condition_prompts in tasks)]
        if lengths:
            prompt = tasks[0].prompts[0]
            position = "-"
            if prompt.filler_span:
                position = "{}-{}".format(*prompt.filler_span)
            if len(prompt.filler_ranges) > 1:
                position += f" in {len(prompt.filler_ranges)} parts"
            row |= {
                "filler": _count_filler(tasks),
                "position": position,
                "least": str(min(lengths)),
                "median": f"{statistics.median(lengths):.0f}",
                "most": str(max(lengths)),
            }
        rows.append(row)
    title = "Tokens of the filler, its position, tokens of the prompt"
    return Table(title, rows, PROMPT_TABLE_COLUMNS)


def describe_power(config: RunConfig, problem_count: int) -> Iterator[str]:
    """The contrasts that a run tests, and the smallest difference that they would detect.

    Args:
        config: The config of the run.
        problem_count: The number of problems; those of one cluster count as one.
    """
    names = {condition.name for condition in config.conditions}
    contrasts = [pair for pair in config.tested if names.issuperset(pair)]
    tested_names = [contrast_name(*pair) for pair in contrasts]
    yield f"tests     {list_first(tested_names, 6) or 'none'}; all others are exploratory"
    if config.primary_contrast:
        contrasts = [config.primary_contrast]
    if contrasts:
        # Bonferroni, the safe choice for Holm: the plan has no p-values yet
        tests = len(contrasts) * max(1, len(config.layouts))
        alpha = f"alpha {ALPHA:g}"
        if tests > 1:
            alpha += f" / {tests}"
        effect, assumption = _find_smallest_effect(config, problem_count, ALPHA / tests)
        tested_contrasts = ", ".join(contrast_name(*pair) for pair in contrasts)
        yield (
            f"detects   smallest difference: {effect} ({tested_contrasts}; "
            f"{100 * POWER:.0f} % power, {alpha}, {assumption})"
        )


def _find_smallest_effect(config: RunConfig, problem_count: int, alpha: float) -> tuple[str, str]:
    """The smallest effect that a test detects, and what this assumes."""
    draws, spread = 1, ""
    # from FEWEST_DRAWS on, the test is for new draws too
    if config.draws >= FEWEST_DRAWS:
        draws = config.draws
        spread = f" and a standard deviation between draws of {100 * PLANNED_SPREAD:g} points"
    # With few problems only a difference above the planned discordance is detectable. No effect
    # exceeds the discordance, so higher ones are tried.
    for discordance in (PLANNED_DISCORDANCE, 0.2, 0.3, 0.4, 0.5):
        effect = minimal_detectable_effect(
            problem_count=problem_count,
            repeats=config.repeats,
            discordance=discordance,
            alpha=alpha,
            prompts=draws,
            spread=PLANNED_SPREAD,
        )
        if not math.isnan(effect):
            size = f"{100 * effect:.1f} points"
            break
    else:
        size = f"more than {100 * discordance:.0f} points"
    return size, f"at a discordance of {100 * discordance:.0f} %{spread}"
