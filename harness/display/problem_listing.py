"""The output of `mless show`: the problems that changed, or one problem.

Models write hostile text. It goes to the terminal as plain characters, never as markup. Every
character that a terminal would obey (escapes, carriage returns, changes of direction) is spelt out.
"""

from collections.abc import Iterable
from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from harness.analysis.problem_selection import Criterion, count_flips
from harness.display.printed_tables import fold
from harness.display.value_texts import label, visible
from harness.errors import RunError, list_near
from harness.experiment.conditions import contrast_name
from harness.runs.prompt_sources import AnsweredProblem, AnsweredPrompt, Source
from harness.runs.run_reader import Run

_STYLES = {"filler": "reverse", "separator": "reverse", "problem": "bold", "template": "dim"}
"""The style of each role of a prompt's text on a terminal."""
_CHANGES = {"wrong_to_right": (False, True), "right_to_wrong": (True, False)}
"""Whether the samples of the baseline and of the condition are correct, by the outcome."""


def describe_changes(run: Run, source: Source, criterion: Criterion) -> str:
    """The lines above the problems that changed: the contrast, and the number of the problems."""
    outcomes = count_flips(source, criterion)
    matching = sum(count for outcome, count in outcomes.items() if criterion.selects(outcome))
    total = sum(outcomes.values())
    # if each draw of examples or each sample has its own prompts, a problem counts once for each of
    # these
    noun = "problems" if total <= run.samples["problem_id"].nunique() else "problems by prompt"
    contrast = contrast_name(criterion.condition, criterion.baseline)
    selection = f"{run.name}, {source.layout}, {contrast}: {matching} of {total} {noun}"
    selection += f", {str(criterion.flip).replace('_', ' ')}"
    if outcomes["undecided"]:
        selection += f"; {outcomes['undecided']} have no verdict under one of the two conditions"
    # a list of problems is not evidence
    advice = f"A problem can change by chance: mless table {run.name} has the test."
    return fold([selection, advice])


def print_changes(
    console: Console, problems: Iterable[AnsweredProblem], criterion: Criterion
) -> None:
    """Print the problems of a criterion, each with a completion under both of its conditions.

    Of several samples, the first with the verdict of the outcome is printed, else the first.
    """
    for problem in problems:
        if not criterion.selects(problem.outcome):
            continue
        outcome = str(problem.outcome)
        prompts = [problem.prompts[name] for name in (criterion.baseline, criterion.condition)]
        segments = prompts[0].requested.segments
        text = "".join(segment.text for segment in segments if segment.role == "problem")
        if not text:
            text = prompts[0].prompt
        console.print()
        _print_title(console, f"{outcome.replace('_', ' ')}  {problem.id}", prompts[0])
        _print(console, (text.strip(), ""))
        expected_verdicts = _CHANGES.get(outcome, (None, None))
        for prompt, is_correct in zip(prompts, expected_verdicts, strict=True):
            are_correct = [verdict == "correct" for verdict in prompt.verdicts]
            # prints the first sample with the verdict of the outcome, which need not be the first
            # of all
            index = are_correct.index(is_correct) if is_correct in are_correct else 0
            _print(console, (label(prompt.condition), "bold"))
            _print_samples(console, prompt, [index])


def print_problem(
    console: Console,
    run: Run,
    problem: str,
    *,
    condition: str | None,
    layout: str | None,
) -> None:
    """Print one problem of a run: under each condition the prompt and the completions.

    Args:
        console: The terminal.
        run: The run.
        problem: The problem's id.
        condition: Only this condition. By default all but the reference conditions.
        layout: Only this layout.

    Raises:
        RunError: the run has no such problem, condition or layout.
    """
    candidates = [prompt for prompt in run.prompts if prompt.has_id(problem)]
    conditions = {prompt.condition for prompt in candidates}.difference(run.reference_conditions)
    if condition:
        conditions = {condition}
    prompts = [
        prompt
        for prompt in candidates
        if prompt.condition in conditions and layout in (None, prompt.layout)
    ]
    if not prompts:
        request = ", ".join(filter(None, (problem, condition, layout)))
        names = [f"{prompt.condition} ({prompt.layout})" for prompt in candidates]
        if not candidates:
            names = [prompt.problem_id for prompt in run.prompts]
        nearest = list_near(request, dict.fromkeys(names))
        raise RunError(f"{run.name} has no {request}: expected one of {nearest}.")
    _print_title(console, problem, prompts[0])
    for prompt in prompts:
        console.print()
        draw = "" if prompt.problem_id == problem else f", {prompt.problem_id}"
        heading = f"{label(prompt.condition)}, {prompt.layout}{draw}\n"
        segments = [(segment, _STYLES.get(role, "")) for role, segment in prompt.parts]
        _print(console, (heading, "bold"), *segments)
        _print_samples(console, prompt, range(len(prompt.completions)))


def spell_out(text: str, encoding: str = "utf-8") -> str:
    """The text with all characters spelt out that a terminal would obey or its encoding lacks.

    Line breaks are kept.
    """
    text = visible(text.replace("\t", "    "), keep="\n")
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _print(console: Console, *parts: tuple[str, str]) -> None:
    """Print texts, each with its style, in which nothing acts on the terminal."""
    texts = [(spell_out(text, console.encoding), style) for text, style in parts]
    console.print(Text.assemble(*texts), overflow="fold")


def _print_title(console: Console, title: str, prompt: AnsweredPrompt) -> None:
    doc = prompt.doc
    level = f"level {doc['level']}" if doc["level"] else ""
    facts = (title, level, doc["subject"], f"gold answer {doc['answer']}")
    _print(console, ("  ".join(filter(None, facts)), "bold"))


def _print_samples(console: Console, prompt: AnsweredPrompt, indices: Iterable[int]) -> None:
    """Print completions with verdict and answer."""
    samples = list(zip_longest(prompt.verdicts, prompt.answers, prompt.completions))
    for index in indices:
        verdict, answer, completion = samples[index]
        number = f" {index + 1} of {len(samples)}" if len(samples) > 1 else ""
        style = "green" if verdict == "correct" else "red"
        heading = f"-> completion{number}: {verdict or 'not graded'}"
        completion = (completion or "not recorded").strip("\n")
        _print(console, (heading, style), (f", answer {answer or '-'}\n{completion}", ""))
