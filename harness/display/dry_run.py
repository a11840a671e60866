"""The text of a dry run: prompts, requests, and the smallest effect that they can detect."""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

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
from harness.experiment.prompts.built_prompts import BuiltPrompt
from harness.experiment.prompts.chat_template import template_switches
from harness.experiment.prompts.checked_prompts import ConditionPrompts
from harness.experiment.prompts.prompt import Layout
from harness.experiment.run_config import RunConfig
from harness.grading import describe_gold, read_elements
from harness.reasoning_markers import NO_MARKERS_NOTE

PLANNED_DISCORDANCES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""The assumed share of problems on which single samples of two conditions disagree: about that of
the study. No effect exceeds this share. If the problems are so few that only a larger effect can be
detected, the next share is assumed."""
PLANNED_SPREAD = 0.02
"""The assumed standard deviation of the effect between draws of examples."""

COPY_DIFFERENCE_PATTERN = re.compile(r"\\[,;:! ()\[\]]|\$|(?<!\w)\s|\s(?!\w)")
r"""What may differ between copies of a question: spaces of formulas (`\,`), signs around formulas
(`$`, `\(`, `\[`), and a blank unless it separates two words."""

MOST_LISTED_READINGS = 3
"""The number of gold answers that a dry run lists, those of the rarest forms first."""

ANSWER_TEXT_BY_KEY = {
    "box": "box: the last \\boxed{{}} of a completion, as the instruction demands",
    "line": "line: the first line of a completion",
    ANSWER_LOGPROB: "the log-probability of the gold answer is compared with those of "
    "all others that are scored; by chance {:.3g} % come first",
}
"""Where the answer is read, by the key `answer`. Each text is formatted with the percentage of
problems that chance answers correctly, so other braces are doubled."""

PROMPT_TABLE_COLUMNS = tuple(
    # without a tokenizer the cells of numbers are missing
    Column(name, name, lambda text: text or "?", is_numeric=name not in ("condition", "layout"))
    for name in ("condition", "layout", "filler", "position", "least", "median", "most")
)


def describe_plan(plan: Plan, further_lines: Sequence[str] = ()) -> str:
    """The plan as text: requests, power and further lines, then a table of the prompts."""
    cluster_count = len({problem.cluster_key for problem in plan.dataset.problems})
    lines = [
        *_describe_prompts(plan, cluster_count),
        *_describe_requests(plan),
        *describe_power(plan.config, cluster_count),
        *further_lines,
    ]
    rows = [
        {"condition": name, "layout": layout} | _make_token_cells(group)
        for (name, layout), group in _group_prompts(plan).items()
    ]
    prompt_table = Table(
        "Tokens of the filler, its position, tokens of the prompt", rows, PROMPT_TABLE_COLUMNS
    )
    return f"{fold(lines, indent=10)}\n\n{render([prompt_table])}"


def show_prompts(plan: Plan) -> str:
    """The first problem's prompt under each condition, with the filler between guillemets.

    The middle of a long filler is left out.
    """
    lines = []
    for (name, layout), group in _group_prompts(plan).items():
        prompt = group[0].prompts[0]
        token_count = "?" if prompt.token_ids is None else len(prompt.token_ids)
        heading = f"--- {name}, {layout}: {token_count} tokens"
        if prompt.filler_tokens:
            heading += f", {prompt.filler_tokens} of them for the filler"
        lines += [heading, *_mark_filler(prompt).split("\n"), ""]
    return fold(lines, indent=0)


def _mark_filler(prompt: BuiltPrompt) -> str:
    """The text of a prompt with the filler in guillemets.

    Of a filler with more than eight words only the first two and the last are shown.
    """
    text = ""
    previous_end = 0
    for start, end in prompt.filler_ranges:
        filler = prompt.text[start:end]
        words = filler.split()
        if len(words) > 8:
            filler = f"{words[0]} {words[1]} ... {words[-1]}"
        text += f"{prompt.text[previous_end:start]}«{filler}»"
        previous_end = end
    return text + prompt.text[previous_end:]


def _group_prompts(plan: Plan) -> dict[tuple[str, str], list[ConditionPrompts]]:
    """The prompts of each condition and layout.

    Reference conditions of the same kind are one group, and so are draws of examples.
    """
    groups: dict[tuple[str, str], list[ConditionPrompts]] = {}
    for condition_prompts in plan.tasks.values():
        # With --limit there can be draws of examples without a problem.
        if condition_prompts.prompts:
            name = group_name(condition_prompts.condition.kind, condition_prompts.condition.name)
            groups.setdefault((name, str(condition_prompts.layout)), []).append(condition_prompts)
    return groups


def _count_prompt_tokens(plan: Plan) -> int:
    """The tokens of the prompts of all requests; 0 if the tokenizer is not known.

    A prompt has a request for each sample of each run. If log-probabilities are measured, each has
    a request for every answer.
    """
    return plan.config.repeats_per_prompt * sum(
        plan.count_replicates(row.task)
        * max(1, len(row.prompt.answer_tokens))
        * len(row.prompt.token_ids or ())
        for row in plan.rows
    )


def _describe_prompts(plan: Plan, cluster_count: int) -> Iterator[str]:
    """The model, the dataset, gold answers, how answers are read, and layouts, with notes."""
    config = plan.config
    problems = plan.dataset.problems
    yield f"model     {config.model.display_name} through {config.model.backend}"
    for name, switch_value in template_switches(config.model.model_args).items():
        yield f"template  {name}: {json.dumps(switch_value)}"
    yield (
        f"dataset   {plan.dataset.name}, {_describe_problem_counts(plan, cluster_count)}, "
        f"{plan.dataset.source}"
    )
    yield from _note_copies(problems)
    yield from _describe_golds(problems)
    answer_key = ANSWER_LOGPROB if config.endpoint == ANSWER_LOGPROB else config.answer
    # a random choice takes the gold answer and each other scored answer equally often
    chance_percent = statistics.fmean(
        100 / (1 + len(row.prompt.other_answers)) for row in plan.rows
    )
    yield f"answer    {ANSWER_TEXT_BY_KEY[answer_key].format(chance_percent)}"
    yield from _note_conditions(plan)
    yield from _note_lost_answers(plan, answer_key)
    layouts_text = f"{', '.join(config.layouts)}: {plan.layout_reason}"
    if {*config.layouts} != {Layout.CHAT}:
        layouts_text += f"; before text outside a chat: {plan.raw_prefix or 'no BOS token'}"
    yield f"layouts   {layouts_text}"


def _note_copies(problems: Sequence[Problem]) -> Iterator[str]:
    """A note on probable copies among the questions, which would count as independent problems.

    They have the same answer, and differ only in case and in COPY_DIFFERENCE_PATTERN.
    """
    # without a `cluster` in the data, the key is the question
    questions_and_answers = {(problem.cluster_key, problem.answer) for problem in problems}
    # copies become equal, so a set contains them once
    simplified_pairs = {
        (COPY_DIFFERENCE_PATTERN.sub("", question).casefold(), answer)
        for question, answer in questions_and_answers
    }
    if copy_count := len(questions_and_answers) - len(simplified_pairs):
        yield (
            f"note      {copy_count} {plural('question', copy_count)} may be a copy: another "
            "differs in case, blanks or $ alone; give copies one `cluster`"
        )


def _note_conditions(plan: Plan) -> Iterator[str]:
    """The notes on the prompts of conditions.

    Of several notes on a condition only the first is shown, with the number of the others.
    Conditions with the same text are in one line.
    """
    names_by_note: dict[str, list[str]] = {}
    for condition_prompts in plan.tasks.values():
        if notes := condition_prompts.notes:
            more_text = f" ({len(notes) - 1} similar notes)" if len(notes) > 1 else ""
            names_by_note.setdefault(f"{notes[0]}{more_text}", []).append(
                f"{condition_prompts.condition.name} ({condition_prompts.layout})"
            )
    for note, names in names_by_note.items():
        yield f"note      {list_first(names)}: {note}"


def _note_lost_answers(plan: Plan, answer_key: str) -> Iterator[str]:
    """Notes on settings with which right answers would not be read."""
    config = plan.config
    if plan.lacks_markers:
        yield f"note      {NO_MARKERS_NOTE}"
    if plan.reasoning_markers and (answer_key == "line" or config.until):
        yield "note      stop strings end reasoning too: set `answer: box`, without `until`"
    has_final_break = any(
        row.task.layout != Layout.CHAT and row.prompt.text.endswith("\n") for row in plan.rows
    )
    if answer_key == "line" and has_final_break:
        yield (
            "note      a prompt ends with a line break: a completion that begins with another has "
            "no answer, as its first line is empty"
        )
    if answer_key == "box" and config.fewshot and "boxed" not in (config.template or ""):
        yield "note      the examples show answers without a box, which models copy"


def _describe_problem_counts(plan: Plan, cluster_count: int) -> str:
    """The numbers of problems that are asked, of copies and clusters, and of examples.

    Examples are drawn from a pool of problems that are not asked, unless they come from a file.
    """
    total_count = len(plan.full_dataset.problems)
    problems = plan.dataset.problems
    counts_text = str(len(problems))
    if len(problems) < total_count:
        counts_text += f" of {total_count}"
    # a copy has the question of another problem of its cluster
    distinct_questions = {(problem.cluster_key, problem.question) for problem in problems}
    copy_count = len(problems) - len(distinct_questions)
    counts_text += f" problems{describe_clusters(len(problems), cluster_count, copy_count)}"
    fewshot = plan.config.fewshot
    if plan.example_ids and fewshot and fewshot.has_examples:
        pool_size = len(plan.example_ids.pool)
        counts_text += (
            f", examples from {pool_size} others" if pool_size else ", examples from a file"
        )
    return counts_text


class GoldReading(NamedTuple):
    """How the grader reads one gold answer.

    Attributes:
        description: The problem, the answer, and its reading, or the reason of the refusal.
        form: The answer with `0` for each number and `a` for each word.
        is_refused: Whether the answer cannot be compared.
    """

    description: str
    form: str
    is_refused: bool


def _read_gold(problem: Problem, answer: str) -> GoldReading:
    """Read a gold answer of a problem. Where there are choices, a letter is read as its choice."""
    gold = with_decimal_points(answer) if problem.decimal else answer
    answer_text = f"{problem.id}: {answer[:60]}"
    form = re.sub(r"\d+", "0", re.sub(r"[^\W\d_]+", "a", answer))
    if reason := describe_gold(gold):
        # the reason begins with `gold answer: `, which this line says already
        description = f"{answer_text} ({reason.removeprefix('gold answer: ')})"
        return GoldReading(description, form, is_refused=True)
    elements = read_elements(gold)
    if problem.choices:
        # the line of a choice begins with its letter
        elements = [line for line in letter_lines(problem.choices) if line[0] == answer]
    description = f"{answer_text} is read as {' and '.join(elements)}"
    return GoldReading(description, form, is_refused=False)


def _describe_golds(problems: Sequence[Problem]) -> Iterator[str]:
    """The gold answers that cannot be compared, and how the others of the rarest forms are read."""
    gold_readings: list[GoldReading] = []
    for problem in problems:
        gold_readings += [
            _read_gold(problem, answer) for answer in (problem.answer, *problem.alternatives)
        ]
    refusal_texts = [reading.description for reading in gold_readings if reading.is_refused]
    accepted_readings = [reading for reading in gold_readings if not reading.is_refused]
    if refusal_texts:
        yield (
            f"golds     {len(refusal_texts)} of {len(gold_readings)} gold answers cannot be "
            f"compared: only an identical text is correct. {list_first(refusal_texts, 5)}"
        )
    else:
        yield f"golds     all {len(gold_readings)} can be compared with an answer"
    count_by_form = Counter(reading.form for reading in accepted_readings)
    # readings of equally rare forms stay in the order of the problems
    accepted_readings.sort(key=lambda reading: count_by_form[reading.form])
    if rarest_readings := accepted_readings[:MOST_LISTED_READINGS]:
        yield f"golds     {'; '.join(reading.description for reading in rarest_readings)}"


def _describe_requests(plan: Plan) -> Iterator[str]:
    """Sampling, and the numbers of requests, of arms with interventions, and of tokens.

    Behind the number of requests stands which of them are repeat runs, the positive control, and
    other texts.
    """
    config = plan.config
    if config.endpoint != ANSWER_LOGPROB:
        yield f"sampling  {config.sampling_description}, at most {config.max_gen_toks} tokens each"
    detail_texts = []
    if config.replicates > 1:
        detail_texts = [f"{name} {config.replicates} times" for name in config.replicated_names]
    if config.positive_control:
        detail_texts.append(POSITIVE_CONTROL)
    if config.other_texts:
        family_texts = [
            f"{count} {name.replace('_', ' ')}" for name, count in config.other_texts.items()
        ]
        prompt_count = sum(row.task.condition.kind == OTHER_TEXT for row in plan.rows)
        detail_texts.append(
            f"{prompt_count * config.repeats_per_prompt} of {' and '.join(family_texts)}"
        )
    details_text = f": {', '.join(detail_texts)}" if detail_texts else ""
    yield f"requests  {plan.completion_count}{details_text}"
    if arm_count := len(config.interventions):
        yield (
            f"arms      {arm_count} {plural('condition', arm_count)} with an "
            f"intervention, each checked on {count_checked(len(plan.dataset.problems))} prompts"
        )
    if prompt_token_count := _count_prompt_tokens(plan):
        yield (
            f"tokens    {prompt_token_count:,} in prompts, at most "
            f"{plan.completion_count * config.max_gen_toks:,} generated"
        )
    else:
        yield "tokens    unknown: name a tokenizer (--set model.model_args.tokenizer=NAME)"


def _make_token_cells(group: Sequence[ConditionPrompts]) -> dict[str, str]:
    """The cells of a group's row that need a tokenizer; none without a tokenizer.

    The filler's tokens are a range if prompts differ. Its position is that in the first prompt.
    """
    prompt_lengths = [
        *chain.from_iterable(condition_prompts.lengths for condition_prompts in group)
    ]
    if not prompt_lengths:
        return {}
    prompts = [*chain.from_iterable(condition_prompts.prompts for condition_prompts in group)]
    filler_counts = [prompt.filler_tokens for prompt in prompts]
    filler_text = str(max(filler_counts))
    if min(filler_counts) < max(filler_counts):
        filler_text = f"{min(filler_counts)}-{max(filler_counts)}"
    first_prompt = prompts[0]
    position = "{}-{}".format(*first_prompt.filler_span) if first_prompt.filler_span else "-"
    if len(first_prompt.filler_ranges) > 1:
        position += f" in {len(first_prompt.filler_ranges)} parts"
    return {
        "filler": filler_text,
        "position": position,
        "least": str(min(prompt_lengths)),
        "median": f"{statistics.median(prompt_lengths):.0f}",
        "most": str(max(prompt_lengths)),
    }


def describe_power(config: RunConfig, problem_count: int) -> Iterator[str]:
    """The contrasts that a run tests, and the smallest difference that they would detect.

    Args:
        config: The config of the run.
        problem_count: The number of problems; those of one cluster count as one.
    """
    tested_contrasts = [
        contrast_name(*pair) for pair in config.tested if {*pair} <= {*config.condition_names}
    ]
    yield f"tests     {list_first(tested_contrasts, 6) or 'none'}; all others are exploratory"
    stated_contrasts = tested_contrasts
    if config.primary_contrast:
        # it is tested first and with the full alpha, so only its effect is stated
        stated_contrasts = [contrast_name(*config.primary_contrast)]
    if not stated_contrasts:
        return
    # Adjusted by Bonferroni, because Holm's method, which is never stricter, needs p-values.
    test_count = len(stated_contrasts) * max(1, len(config.layouts))
    divisor_text = f" / {test_count}" if test_count > 1 else ""
    effect, discordance = _find_smallest_effect(config, problem_count, ALPHA / test_count)
    effect_text = f"{100 * effect:.1f} points"
    if math.isnan(effect):
        effect_text = f"more than {100 * discordance:.0f} points"
    spread_text = ""
    # from FEWEST_DRAWS draws of examples on, the test is also for new draws
    if config.draws >= FEWEST_DRAWS:
        spread_text = f" and a standard deviation between draws of {100 * PLANNED_SPREAD:g} points"
    yield (
        f"detects   smallest difference: {effect_text} ({', '.join(stated_contrasts)}; "
        f"{100 * POWER:.0f} % power, alpha {ALPHA:g}{divisor_text}, at a discordance of "
        f"{100 * discordance:.0f} %{spread_text})"
    )


def _find_smallest_effect(
    config: RunConfig, problem_count: int, alpha: float
) -> tuple[float, float]:
    """The smallest effect that a test detects, and the discordance that this assumes.

    Discordances are tried from the smallest on, because no effect exceeds its discordance. The
    effect is NaN if it is larger than the largest of PLANNED_DISCORDANCES.
    """
    for discordance in PLANNED_DISCORDANCES:
        effect = minimal_detectable_effect(
            problem_count=problem_count,
            repeats=config.repeats,
            discordance=discordance,
            alpha=alpha,
            # with one draw the spread between draws does not enter
            prompts=config.draws if config.draws >= FEWEST_DRAWS else 1,
            spread=PLANNED_SPREAD,
        )
        if not math.isnan(effect):
            break
    return effect, discordance
