"""The output of `mless show`: a problem with its prompts and completions.

Models write hostile text. It goes to the terminal as plain characters, never as markup. Every
character that a terminal would obey (escapes, carriage returns, changes of direction) is spelt out.
"""

from rich.console import Console
from rich.text import Text

from harness.display.value_texts import label, visible
from harness.errors import RunError, list_near
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.run_reader import Run

_STYLES = {"filler": "reverse", "separator": "reverse", "problem": "bold", "template": "dim"}
"""The style of each role of a prompt's text on a terminal."""


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
    doc = prompts[0].doc
    level = f"level {doc['level']}" if doc["level"] else ""
    facts = (problem, level, doc["subject"], f"gold answer {doc['answer']}")
    _print(console, ("  ".join(filter(None, facts)), "bold"))
    for prompt in prompts:
        console.print()
        draw = "" if prompt.problem_id == problem else f", {prompt.problem_id}"
        heading = f"{label(prompt.condition)}, {prompt.layout}{draw}\n"
        segments = [(segment, _STYLES.get(role, "")) for role, segment in prompt.parts]
        _print(console, (heading, "bold"), *segments)
        _print_samples(console, prompt)


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


def _print_samples(console: Console, prompt: AnsweredPrompt) -> None:
    """Print completions with verdict and answer."""
    samples = len(prompt.graded_samples)
    for number, (sample, score) in enumerate(prompt.graded_samples, start=1):
        name = f"completion {number} of {samples}" if samples > 1 else "completion"
        style = "green" if score.verdict == "correct" else "red"
        heading = f"-> {name}: {score.verdict or 'not graded'}"
        completion = (sample.completion or "not recorded").strip("\n")
        _print(console, (heading, style), (f", answer {score.answer or '-'}\n{completion}", ""))
