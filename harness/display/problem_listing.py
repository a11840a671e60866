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

_STYLE_BY_ROLE = {"filler": "reverse", "separator": "reverse", "problem": "bold", "template": "dim"}
"""The style of each role of a prompt's text on a terminal."""


def print_problem(
    console: Console, run: Run, problem_id: str, *, condition: str | None, layout: str | None
) -> None:
    """Print one problem of a run: under each condition the prompt and the completions.

    Args:
        console: The terminal.
        run: The run.
        problem_id: The problem's id.
        condition: Only this condition. By default all but the reference conditions.
        layout: Only this layout.

    Raises:
        RunError: the run has no such problem, condition or layout.
    """
    prompts = _select_prompts(run, problem_id, condition, layout)
    doc = prompts[0].doc
    level_text = f"level {doc['level']}" if doc["level"] else ""
    # a fact that the dataset lacks is an empty text, and is left out
    problem_facts = (problem_id, level_text, doc["subject"], f"gold answer {doc['answer']}")
    _print_safely(console, ("  ".join(filter(None, problem_facts)), "bold"))
    for prompt in prompts:
        console.print()
        # the id of a prompt also names the draw of examples, if the problem has several
        draw_text = "" if prompt.problem_id == problem_id else f", {prompt.problem_id}"
        segments = [
            (segment, _STYLE_BY_ROLE.get(role, "")) for role, segment in prompt.roles_and_texts
        ]
        heading = f"{label(prompt.condition)}, {prompt.layout}{draw_text}\n"
        _print_safely(console, (heading, "bold"), *segments)
        _print_samples(console, prompt)


def _select_prompts(
    run: Run, problem_id: str, condition: str | None, layout: str | None
) -> list[AnsweredPrompt]:
    """The prompts of a problem under the requested condition and layout.

    If no condition is requested, these are the prompts of all but the reference conditions.
    """
    problem_prompts = [prompt for prompt in run.prompts if prompt.has_id(problem_id)]
    prompts = [
        prompt
        for prompt in problem_prompts
        if condition == prompt.condition
        or (not condition and prompt.condition not in run.reference_conditions)
    ]
    if layout:
        prompts = [prompt for prompt in prompts if prompt.layout == layout]
    if prompts:
        return prompts
    # the error lists the conditions of the problem, or the problems if this one is unknown
    expected_texts = [f"{prompt.condition} ({prompt.layout})" for prompt in problem_prompts]
    if not problem_prompts:
        expected_texts = [prompt.problem_id for prompt in run.prompts]
    request_text = ", ".join(filter(None, (problem_id, condition, layout)))
    raise RunError(
        f"{run.name} has no {request_text}: expected one of "
        f"{list_near(request_text, dict.fromkeys(expected_texts))}."
    )


def spell_out(text: str, encoding: str = "utf-8") -> str:
    """The text with all characters spelt out that a terminal would obey or its encoding lacks.

    Line breaks are kept.
    """
    text = visible(text.replace("\t", "    "), kept_characters="\n")
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _print_safely(console: Console, *styled_texts: tuple[str, str]) -> None:
    """Print texts, each with its style, in which nothing acts on the terminal."""
    safe_texts = [(spell_out(text, console.encoding), style) for text, style in styled_texts]
    console.print(Text.assemble(*safe_texts), overflow="fold")


def _print_samples(console: Console, prompt: AnsweredPrompt) -> None:
    """Print completions with verdict and answer."""
    sample_count = len(prompt.graded_samples)
    for sample_number, (sample, score) in enumerate(prompt.graded_samples, start=1):
        title = (
            f"completion {sample_number} of {sample_count}" if sample_count > 1 else "completion"
        )
        style = "green" if score.verdict == "correct" else "red"
        completion = (sample.completion or "not recorded").strip("\n")
        _print_safely(
            console,
            (f"-> {title}: {score.verdict or 'not graded'}", style),
            (f", answer {score.answer or '-'}\n{completion}", ""),
        )
