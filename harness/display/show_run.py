"""What `mless show` prints: a run at a glance, or one problem with every prompt, answer and verdict."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from harness.display.flips_side_by_side import shorten, spell_out
from harness.display.table_formats import align, fold
from harness.display.words import label
from harness.errors import RunError, list_first
from harness.experiment.conditions import group_name
from harness.runs.receipts import receipt_line
from harness.runs.run import Run
from harness.runs.run_prompts import RunPrompt

_COLOURS = {"filler": "reverse", "separator": "reverse", "problem": "bold", "template": "dim"}
"""How the parts of a prompt look on a terminal."""


def describe_run(run: Run) -> str:
    """A run at a glance: how it was made, what it holds, how its samples ended, and what to do next.

    What others are held against (rewordings, other fillers, the positive control) is named and not counted.
    """
    frame = run.frame
    first = frame[frame["replicate"] == 0]
    asked = first[~first["condition"].isin(run.facts.get("yardsticks") or {})]
    groups = Counter(group_name(name) for name in first["condition"].unique())
    conditions = [name if number == 1 else f"{number} {name}" for name, number in groups.items()]
    rows = [("verdict", "samples", "share")]
    for verdict, number in asked["verdict"].value_counts().items():
        if number:
            rows.append((str(verdict), f"{number:,}", f"{number / len(asked):.1%}"))
    shortest = first["problem_id"].iloc[0]
    return "\n".join(
        [
            fold([receipt_line({"name": run.name, **run.facts}).removeprefix("receipt: ")]),
            "",
            fold(
                [
                    f"{first['problem_id'].nunique()} problems, {', '.join(first['layout'].unique())}: "
                    f"{', '.join(conditions)}"
                ]
            ),
            "",
            fold([f"Verdicts on the samples of {list_first(list(asked['condition'].unique()), 6)}:"]),
            *align(rows, [False, True, True]),
            "",
            f"one problem  mless show {run.name} {shortest}",
            f"what changed mless flips {run.name}",
            f"the table    mless table {run.name}",
        ]
    )


def print_problem(
    console: Console, run: Run, problem: str, *, condition: str | None, layout: str | None, limit: int | None
) -> None:
    """Print one problem of a run: under each condition the prompt as the model got it, and what came back.

    Args:
        console: The terminal.
        run: The run.
        problem: The problem's id.
        condition: Only this condition. By default all but those that others are held against.
        layout: Only this layout.
        limit: Show about this many characters of a completion. None shows all.

    Raises:
        RunError: the run has no such problem, condition or layout.
    """
    asked = run.read_prompts()
    known = list(dict.fromkeys(one.problem_id for one in asked))
    if problem not in known:
        raise RunError(f"{run.name} has no problem {problem}: expected one of its {len(known)}: {list_first(known)}.")
    kinds = run.facts.get("yardsticks") or {}
    here = [one for one in asked if one.problem_id == problem]
    shown = [
        one
        for one in here
        if layout in (None, one.layout) and (one.condition == condition if condition else one.condition not in kinds)
    ]
    if not shown:
        found = list_first(list(dict.fromkeys(f"{one.condition} ({one.layout})" for one in here)), 6)
        asked_for = " and ".join(filter(None, (condition, layout)))
        raise RunError(f"{run.name} did not ask problem {problem} under {asked_for}: expected one of {found}.")
    about = f"{problem}  level {shown[0].level}  {shown[0].subject}  gold answer {shown[0].target}"
    console.print(spell_out(about, console.encoding), style="bold")
    for one in shown:
        console.print()
        console.print(_prompt(one, console.encoding), overflow="fold")
        for place, completion in enumerate(one.completions):
            console.print(_answer(one, place, completion, console.encoding, limit), overflow="fold")


def _prompt(one: RunPrompt, encoding: str) -> Text:
    parts = [(spell_out(text, encoding).plain, _COLOURS.get(role, "")) for role, text in one.parts]
    return Text.assemble((f"{label(one.condition)}, {one.layout}\n", "bold"), *parts)


def _answer(one: RunPrompt, place: int, completion: str, encoding: str, limit: int | None) -> Text:
    verdict = one.verdicts[place] if one.verdicts else "not graded"
    answer = one.answers[place] if one.answers else None
    head, left_out, tail = shorten(completion.strip("\n"), limit)
    gap = f"\n[{left_out:,} characters left out]\n" if left_out else ""
    number = f" {place + 1} of {len(one.completions)}" if len(one.completions) > 1 else ""
    return Text.assemble(
        (f"-> completion{number}: {verdict}", "green" if verdict == "correct" else "red"),
        f", answer {spell_out(answer or '-', encoding).plain}\n",
        spell_out(head, encoding),
        (gap, "dim"),
        spell_out(tail, encoding),
    )
