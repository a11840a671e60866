"""What `mless show` prints: a run at a glance, the problems that changed, or one problem whole.

What models write is hostile text. It goes to the terminal as plain characters, never as markup. Every character that
a terminal would obey rather than show (escapes, carriage returns, changes of direction) is spelt out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.analysis.choose_problems import Criterion
from harness.display.format_table import Column, Table, fold, render
from harness.display.format_values import (
    LEVEL,
    define_flips,
    describe_repeat,
    difference,
    flips,
    label,
    visible,
)
from harness.errors import RunError, list_first, list_near
from harness.experiment.plan import group_name
from harness.runs.answered_prompts import AnsweredPrompt, Problem
from harness.runs.read_runs import Run
from harness.runs.versions_and_hashes import receipt_line

_COLOURS = {"filler": "reverse", "separator": "reverse", "problem": "bold", "template": "dim"}
"""How the parts of a prompt look on a terminal."""


def describe_run(run: Run) -> str:
    """A run at a glance: how it was made, what it holds, how its samples ended, and what to do next.

    Reference conditions, such as the positive control, are named and not counted.
    """
    frame = run.samples
    first = frame[frame["replicate"] == 0]
    references = run.reference_conditions
    asked = first[~first["condition"].isin(references)]
    groups = Counter(
        group_name(references.get(name, {}).get("kind"), name)
        for name in first["condition"].unique()
    )
    conditions = ", ".join(
        name if number == 1 else f"{number} {name}" for name, number in groups.items()
    )
    rows = [
        {"verdict": name, "samples": count}
        for name, count in asked["verdict"].value_counts().items()
        if count
    ]
    columns = [
        Column("verdict", "verdict", str, numeric=False),
        Column("samples", "samples", "{:,}".format),
        Column("samples", "share", lambda count: f"{count / len(asked):.1%}"),
    ]
    title = f"Verdicts on the samples of {list_first(list(asked['condition'].unique()), 6)}:"
    return "\n".join(
        [
            fold([receipt_line({"name": run.name, **run.about}).removeprefix("receipt: ")]),
            "",
            fold(
                [
                    f"{first['problem_id'].nunique()} problems, {', '.join(first['layout'].unique())}: {conditions}"
                ]
            ),
            "",
            render([Table(title, rows, columns)]),
            "",
            f"one problem  mless show {run.name} {first['problem_id'].iloc[0]}",
            f"what changed mless show {run.name} --changed",
            f"the table    mless table {run.name}",
        ]
    )


def describe_changes(
    row: Mapping[str, Any], criterion: Criterion, outcomes: Mapping[str, int]
) -> str:
    """Above the problems that changed: what all problems say, and how many of them are listed.

    Args:
        row: The condition's row of `mless table`: what stands in the list proves nothing.
        criterion: What was asked for.
        outcomes: How many problems had each outcome.
    """
    again = "both sides were run once, so the noise of the difference is not known"
    if row["aa_difference"] is not None:
        again = f"both sides were run again: {describe_repeat(row)}"
    matching = sum(count for name, count in outcomes.items() if criterion.selects(name))
    within = ", ".join(
        f"{name} {value}" for name in ("subject", "level") if (value := getattr(criterion, name))
    )
    noun = "problems" if sum(outcomes.values()) <= row["problems"] else "problems by draw"
    listed = f"{matching} of {sum(outcomes.values())} {noun}" + (f" ({within})" if within else "")
    rule = ", by the share of their samples that is right" if row["repeats"] > 1 else ""
    lacking = (
        f"; {outcomes['undecided']} lack a verdict under one of the two"
        if outcomes["undecided"]
        else ""
    )
    return fold(
        [
            f"difference  {difference(row['difference'], row['low'], row['high'])} points, {LEVEL} interval",
            f"flips       {flips(row['wrong_to_right'], row['right_to_wrong'])}: {define_flips(row['repeats'])}",
            f"A/A         {again}",
            f"listed      {listed}, {str(criterion.flip).replace('_', ' ')}{rule}{lacking}",
        ],
        hyphens=False,
        indent=12,
    )


def print_changes(
    console: Console, problems: Iterable[Problem], criterion: Criterion, *, limit: int | None
) -> None:
    """Print the problems that a criterion wants, each under its two conditions: a completion, its answer and verdict.

    Of several samples the first is shown that did what the outcome says, if one did.
    """
    for problem in problems:
        if not criterion.selects(problem.outcome):
            continue
        sides = [problem.prompts[name] for name in (criterion.baseline, criterion.condition)]
        expected = {"wrong_to_right": (False, True), "right_to_wrong": (True, False)}
        right = expected.get(str(problem.outcome), (None, None))
        outcome = str(problem.outcome).replace("_", " ")
        segments = sides[0].requested.segments
        text = (
            "".join(segment.text for segment in segments if segment.role == "problem")
            or sides[0].prompt
        )
        console.print()
        _print_title(console, f"{outcome}  {problem.id}", sides[0])
        console.print(spell_out(text.strip(), console.encoding), overflow="fold")
        for prompt, wanted in zip(sides, right, strict=True):
            agree = [
                n for n, verdict in enumerate(prompt.verdicts) if (verdict == "correct") is wanted
            ]
            console.print(Text(label(prompt.condition), style="bold"))
            _print_answers(console, prompt, [agree[0] if agree else 0], limit)


def print_problem(
    console: Console,
    run: Run,
    problem: str,
    *,
    condition: str | None,
    layout: str | None,
    limit: int | None,
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
    asked = run.prompts
    here = [one for one in asked if problem in (one.problem_id, one.doc.get("id"))]
    shown = [
        one
        for one in here
        if layout in (None, one.layout)
        and (
            one.condition == condition
            if condition
            else one.condition not in run.reference_conditions
        )
    ]
    if not shown:
        wanted = ", ".join(filter(None, (problem, condition, layout)))
        there = dict.fromkeys(
            f"{one.condition} ({one.layout})" if here else one.problem_id for one in here or asked
        )
        raise RunError(f"{run.name} has no {wanted}: expected one of {list_near(wanted, there)}.")
    _print_title(console, problem, shown[0])
    for one in shown:
        console.print()
        parts = [
            (spell_out(text, console.encoding), _COLOURS.get(role, "")) for role, text in one.parts
        ]
        draw = "" if one.problem_id == problem else f", {one.problem_id}"
        heading = (f"{label(one.condition)}, {one.layout}{draw}\n", "bold")
        console.print(Text.assemble(heading, *parts), overflow="fold")
        _print_answers(console, one, range(len(one.completions)), limit)


def spell_out(text: str, encoding: str = "utf-8") -> str:
    """The text without characters that a terminal would obey, except line breaks, or that its encoding lacks."""
    shown = visible(text.replace("\t", "    "), keep="\n")
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _print_title(console: Console, words: str, prompt: AnsweredPrompt) -> None:
    doc = prompt.doc
    about = f"{words}  level {doc['level']}  {doc['subject']}  gold answer {doc['answer']}"
    console.print(spell_out(about, console.encoding), style="bold")


def _print_answers(
    console: Console, one: AnsweredPrompt, places: Iterable[int], limit: int | None
) -> None:
    """Print completions with verdict and answer; of a long one the beginning, and the end, where the answer is."""
    samples = list(zip_longest(one.verdicts, one.answers, one.completions))
    for place in places:
        verdict, answer, completion = samples[place]
        number = f" {place + 1} of {len(samples)}" if len(samples) > 1 else ""
        shown = spell_out(completion or "not recorded", console.encoding).strip("\n")
        if limit is not None and (left_out := len(shown) - limit) > 40:
            half = limit // 2
            shown = (
                f"{shown[:half]}\n[{left_out:,} characters left out]\n{shown[half + left_out :]}"
            )
        colour = "green" if verdict == "correct" else "red"
        said = Text(f"-> completion{number}: {verdict or 'not graded'}", style=colour)
        said.append(f", answer {spell_out(answer or '-', console.encoding)}\n", style="none")
        console.print(said.append(shown, style="none"), overflow="fold")
