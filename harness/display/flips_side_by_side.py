"""Problems under two conditions, printed side by side: both completions with answers and verdicts.

What models write is hostile text. It goes to the terminal as plain characters, never as markup. Every character that
a terminal would obey rather than show (escapes, carriage returns, changes of direction) is spelt out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.analysis.flips import CHANGES, Criterion
from harness.display.visible import is_hidden, name_character
from harness.display.words import label
from harness.runs.run_prompts import Problem, RunPrompt

SIDE_BY_SIDE = 100
"""Terminals of at least this width show the two completions beside each other."""
_STYLES = {"wrong_to_right": "green", "right_to_wrong": "red"}
_SPELT = "reverse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One sample of a problem under one condition.

    Attributes:
        condition: The condition.
        sample: Number of the sample, from 1.
        samples: How many there are.
        right: How many of them are right.
        verdict, answer, completion: The sample's; None where none is recorded.
    """

    condition: str
    sample: int
    samples: int
    right: int
    verdict: str | None
    answer: str | None
    completion: str | None

    @classmethod
    def of(cls, prompt: RunPrompt, *, right: bool | None) -> Side:
        """Choose the first sample, or the first that is right (or wrong) if `right` says which."""
        agree = [n for n, verdict in enumerate(prompt.verdicts) if right is None or (verdict == "correct") == right]
        chosen = slice(agree[0] if agree else 0, None)
        return cls(
            condition=prompt.condition,
            sample=chosen.start + 1,
            samples=len(prompt.verdicts),
            right=prompt.verdicts.count("correct"),
            verdict=next(iter(prompt.verdicts[chosen]), None),
            answer=next(iter(prompt.answers[chosen]), None),
            completion=next(iter(prompt.completions[chosen]), None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipEntry:
    """One problem as it is printed.

    Attributes:
        problem_id, subject, level: Of the problem.
        outcome: One of `flips.FLIPS`, or undecided.
        text: The problem as it was asked.
        target: The gold answer.
        sides: Under the baseline and under the condition.
    """

    problem_id: str
    subject: str
    level: int
    outcome: str
    text: str
    target: str | None
    sides: tuple[Side, Side]

    @classmethod
    def of(cls, problem: Problem, outcome: str, criterion: Criterion) -> FlipEntry:
        """The problem under the criterion's two conditions."""
        before, after = problem.prompts[criterion.baseline], problem.prompts[criterion.condition]
        first = second = None
        if outcome in CHANGES and criterion.repeats != "first":
            first, second = outcome == "right_to_wrong", outcome == "wrong_to_right"
        return cls(
            problem_id=problem.id,
            subject=problem.subject,
            level=problem.level,
            outcome=outcome,
            text="".join(segment.text for segment in before.segments if segment.role == "problem"),
            target=before.target,
            sides=(Side.of(before, right=first), Side.of(after, right=second)),
        )


def print_page(console: Console, entries: Iterable[FlipEntry], *, limit: int | None) -> None:
    """Print every entry, in two columns if the terminal is wide enough, else one side under the other.

    Args:
        console: The terminal.
        entries: The problems.
        limit: Show about this many characters of a completion, its beginning and its end. None shows all.
    """
    for entry in entries:
        console.print()
        for part in _render(entry, console, limit):
            console.print(part, overflow="fold", highlight=False)


def spell_out(text: str, encoding: str = "utf-8") -> Text:
    """The text without characters that a terminal would obey, except line breaks and tabs.

    Hidden characters, and those that the terminal's encoding lacks, are spelt by number in a style of their own.
    """
    shown = Text()
    for plain, characters in groupby(text.replace("\t", "    "), key=lambda one: _is_plain(one, encoding)):
        if plain:
            shown.append("".join(characters))
        else:
            shown.append("".join(map(name_character, characters)), style=_SPELT)
    return shown


def shorten(text: str, limit: int | None) -> tuple[str, int, str]:
    """Beginning, number of characters left out, and end, where the answer usually is."""
    if limit is None or len(text) <= limit + 40:
        return text, 0, ""
    head = limit // 2
    return text[:head], len(text) - limit, text[len(text) - (limit - head) :]


def _render(entry: FlipEntry, console: Console, limit: int | None) -> list[RenderableType]:
    def shown(text: str) -> Text:
        return spell_out(text, console.encoding)

    before, after = entry.sides
    outcome = entry.outcome.replace("_", " ")
    if max(before.samples, after.samples) > 1:
        outcome = f"{before.right} to {after.right} of {after.samples} right"
    level, style = f"  level {entry.level}  ", _STYLES.get(entry.outcome, "")
    title = Text.assemble(outcome, "  ", shown(entry.problem_id), level, shown(entry.subject), style=f"bold {style}")
    about = Text.assemble(("problem  ", "dim"), shown(entry.text.strip()))
    gold = Text.assemble(("target   ", "dim"), shown("-" if entry.target is None else entry.target))
    heads = [_head(side, console.encoding) for side in entry.sides]
    bodies = [_body(side, console.encoding, limit) for side in entry.sides]
    if console.width >= SIDE_BY_SIDE:
        table = Table(box=box.SQUARE, expand=True, show_lines=False, border_style="dim", header_style="")
        for head in heads:
            table.add_column(head, ratio=1, overflow="fold")
        table.add_row(*bodies)
        return [title, about, gold, table]
    stacked = [(head, Padding(body, (0, 0, 0, 2))) for head, body in zip(heads, bodies, strict=True)]
    return [title, about, gold, *(part for pair in stacked for part in pair)]


def _head(side: Side, encoding: str) -> Text:
    colour = {"correct": "green", None: ""}.get(side.verdict, "red")
    name = spell_out(label(side.condition), encoding)
    name.stylize("bold")
    several = f"  (sample {side.sample} of {side.samples}; {side.right} right)" if side.samples > 1 else ""
    return Text.assemble(
        name,
        (f"  {side.verdict or 'not graded'}", colour),
        ("  answer ", "dim"),
        spell_out("-" if side.answer is None else side.answer, encoding),
        (several, "dim"),
    )


def _body(side: Side, encoding: str, limit: int | None) -> Text:
    if side.completion is None:
        return Text("no completion is recorded", style="dim")
    head, left_out, tail = shorten(side.completion.strip("\n"), limit)
    gap = f"\n[{left_out:,} characters left out]\n" if left_out else ""
    return Text.assemble(spell_out(head, encoding), (gap, "dim"), spell_out(tail, encoding))


def _is_plain(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return character == "\n" or not is_hidden(character)
