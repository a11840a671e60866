"""The comparison with the baseline as tables, for `mless table`, `mless leaderboard` and the report, with notes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.analysis.controls import APART
from harness.analysis.leaderboard import Leaderboard, records
from harness.constants import ALPHA, FEWEST_YARDSTICKS
from harness.display.grid import (
    Cell,
    Column,
    Grid,
    Row,
    make_grid,
    number_column,
    row_column,
    verdict_column,
    word_column,
)
from harness.display.numbers import (
    LEVEL,
    NOISE,
    PASSED,
    define_flips,
    difference,
    flips,
    label,
    number,
    p_value,
    plural,
    signed,
    verdicts,
)

if TYPE_CHECKING:
    import pandas


def comparison_grid(board: Leaderboard) -> Grid:
    """One row per condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = without_yardsticks(board, board.comparison)
    title, words = heading(board)
    columns = [
        *map(word_column, words),
        number_column("acc. %", "accuracy", number),
        row_column(f"difference [{LEVEL}]", "difference", _difference),
        number_column("p adj.", "p_adjusted", p_value),
        verdict_column(),
        row_column("+ / -", "wrong_to_right", lambda row: flips(row, "aa_" if row["wrong_to_right"] is None else "")),
    ]
    return make_grid(title, columns, rows, comparison_notes(board, [column.header for column in columns]))


def leaderboard_grid(board: Leaderboard) -> Grid:
    """One row per model and layout, best baseline first: the primary difference whole, the others as bare numbers."""
    rows = without_yardsticks(board, board.comparison)
    others = [name for name in dict.fromkeys(row["condition"] for row in rows) if name != board.baseline]
    main = next((row["condition"] for row in rows if row["primary"]), others[0] if others else None)
    not_run = dict.fromkeys(board.comparison.columns) | {"verdict": "not run"}
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        setting = tuple(row[key] for key in ("model", "layout", *board.by))
        lines.setdefault(setting, dict.fromkeys(others, not_run))[row["condition"]] = row
    title, words = heading(board)
    columns = [_of(board.baseline, word_column(name)) for name in words if name != "condition"]
    columns.append(_of(board.baseline, number_column(f"{label(board.baseline)} %", "accuracy", number)))
    if main is not None:
        star = " *" if board.primary else ""
        columns += [
            _of(main, row_column(f"{label(main)}{star} [{LEVEL}]", "difference", difference)),
            _of(main, number_column("p adj.", "p_adjusted", p_value)),
            _of(main, verdict_column()),
        ]
    columns += [_of(name, Column(header=label(name), cell=_bare)) for name in others if name != main]
    bracketed = any(row["verdict"] == "exploratory" and row["condition"] != main for row in rows)
    brackets = ", those in brackets exploratory" if bracketed else ""
    return make_grid(
        title,
        columns,
        sorted(lines.values(), key=lambda line: -line[board.baseline]["accuracy"]),
        (
            f"Best baseline first. All but the baseline's are differences; only those that passed their test are bold"
            f"{brackets}.",
            *comparison_notes(board, [column.header for column in columns]),
        ),
    )


def without_yardsticks(board: Leaderboard, table: pandas.DataFrame) -> list[Row]:
    """The rows of a table of the leaderboard, without those of the yardsticks, which have a table of their own."""
    return [row for row in records(table) if row["condition"] not in board.yardsticks]


def heading(board: Leaderboard) -> tuple[str, list[str]]:
    """The title, which names what all rows share, and the columns of words for what they do not."""
    found = {name: set(board.comparison[name]) for name in ("model", "layout", "n", "k")}
    same = {name: values.pop() for name, values in found.items() if len(values) == 1}
    said = [str(same[name]) for name in ("model", "layout") if name in same]
    if "n" in same:
        said.append(f"{same['n']} {plural('problem', same['n'])}")
    if "k" in same:
        said.append(f"{same['k']} {plural('sample', same['k'])} each")
    words = [name for name in ("model", "layout", *board.by, "condition", "n", "k") if name not in same]
    return ", ".join(said) or "Differences from the baseline", words


def comparison_notes(board: Leaderboard, header: Collection[str]) -> list[str]:
    """Notes for a table with these headings: what the numbers are, how they were tested, and how large the noise is."""
    rows = without_yardsticks(board, board.comparison)
    notes = _about_tests(board, rows, header)
    if board.by:  # noise and yardsticks are of all problems; a split table has A/A in its rows
        return notes
    every, layouts = records(board.comparison), {row["layout"] for row in rows}
    controls = {_setting(row, layouts): row for row in every if row["verdict"] == "positive control"}
    several = len(controls) > 1
    return [
        *notes,
        *_about_noise(board, rows, "+ / -" in header),
        *_about_yardsticks(board, every),
        *(f"{f'{name}: ' * several}{_about_control(row)}" for name, row in controls.items()),
    ]


def _about_tests(board: Leaderboard, rows: Sequence[Row], header: Collection[str]) -> list[str]:
    compared = [row for row in rows if row["test"] is not None]
    if not compared:
        return ["One condition only: nothing is compared."]
    judged = any(row["p_adjusted"] is not None for row in compared)
    said = f"Differences from {label(board.baseline)} in points, paired by problem, with score intervals"
    if judged:
        said += f" that hold 0 exactly where adjusted p is not below {ALPHA:g}"
    if "+ / -" in header:
        said += f"; + / -: flips, {define_flips(max(row['k'] for row in compared))}"
    notes = [f"{said}; {_about_family(board, compared)}."]
    if others := dict.fromkeys(row["condition"] for row in compared if row["baseline"] != board.baseline):
        notes[0] += f" {', '.join(map(label, others))}: the first condition less the second."
    if judged:
        equivalence = "Equivalence is not adjusted for several: it may err 5 times in 100."
        notes.append(f"{verdicts(compared[0]['margin'])}. {equivalence}")
    return notes


def _about_family(board: Leaderboard, compared: Sequence[Row]) -> str:
    """The test, the tests that p is adjusted over, who chose it, and what is outside it."""
    test = {"mcnemar": "exact McNemar test", "sign-flip and score": "sign-flip and score test, the larger p of the two"}
    holm = f"p: {' or '.join(dict.fromkeys(test[row['test']] for row in compared))}, adjusted by Holm over"
    count = sum(row["p_adjusted"] is not None for row in compared)
    tests = f"{count} {plural('test', count)}"
    if board.contrasts is None:
        return f"{holm} {'the' if count == 1 else 'all'} {tests} shown, not registered beforehand"
    if not count:
        return "no test was registered beforehand, so all are exploratory: neither adjusted nor judged"
    named = dict.fromkeys(label(row["condition"]) for row in compared if row["p_adjusted"] is not None)
    said = f"{holm} the {tests} registered beforehand ({', '.join(named)})"
    if board.study and not board.behind:
        said += f"; the pooled contrast of the study {board.study.name}, which comes before these, is not tested here"
    if board.primary:
        shared = len({(row["model"], row["layout"]) for row in compared}) > 1
        share = ", with an equal share of alpha for each model and layout" if shared else ""
        before = f" after the pooled one of the study {board.study.name}" if board.study and board.behind else ""
        said += f"; *: the primary contrast, tested first{before}{share}: the others can only be found behind it"
    if count < len(compared):
        said += "; exploratory: not among them, so neither adjusted nor judged"
    return said


def _about_noise(board: Leaderboard, rows: Sequence[Row], with_flips: bool) -> list[str]:
    """The noise of A/A, by model and layout."""
    layouts = {row["layout"] for row in rows}
    said: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        if row["aa_difference"] is not None and row["verdict"] == "baseline":
            changes = f", {flips(row, 'aa_')}" * with_flips
            told = f"{_setting(row, layouts)} {signed(row['aa_difference'])}{changes}"
            said[row["model"] in board.greedy].append(told)
    if not any(said.values()):
        return []
    each = "; ".join(f"({'; '.join(said[greedy])}): {what}" for greedy, what in NOISE.items() if said[greedy])
    return [f"A/A: the baseline run again, in another order, against itself {each}."]


def _about_yardsticks(board: Leaderboard, rows: Sequence[Row]) -> list[str]:
    """Rewordings that were set apart, and yardsticks that are too few to show a spread."""
    apart = [
        f"{row['condition']} ({row['model']}: {signed(row['difference'])})" for row in rows if row["verdict"] == APART
    ]
    notes = []
    if apart:
        notes.append(
            f"Set apart, and counted nowhere: {', '.join(apart)}. It changes how many samples have a gradable answer."
        )
    for kind, column in (("rewording", "wordings"), ("other filler", "fillers")):
        there = sum(name == kind for name in board.yardsticks.values())
        if there and all(row[column] is None for row in rows):
            notes.append(f"{there} {plural(kind, there)}: too few to show a spread, which takes {FEWEST_YARDSTICKS}.")
    return notes


def _about_control(control: Row) -> str:
    return f"Positive control (an answer at once, no working): {describe_control(control)}."


def describe_control(control: Row) -> str:
    """What the positive control, which must do harm, did to a model."""
    harmed = control["p"] < ALPHA and control["difference"] < 0
    seen = "this run sees harm" if harmed else "NOT SEEN: this run has not shown that it could see any effect"
    return f"{difference(control)}, p {p_value(control['p'])}: {seen}"


def _setting(row: Row, layouts: Collection[str]) -> str:
    return f"{row['model']}, {row['layout']}" if len(layouts) > 1 else str(row["model"])


def _of(condition: str, column: Column) -> Column:
    """The column of one condition in the leaderboard, whose lines map conditions to rows."""
    return replace(column, cell=lambda line: column.cell(line[condition]))


def _bare(row: Row) -> Cell:
    """A difference without interval: strong if its test was passed, in brackets if it had none."""
    text = signed(row["difference"])
    return Cell(text=f"({text})" if row["verdict"] == "exploratory" else text, strong=row["verdict"] in PASSED)


def _difference(row: Row) -> str:
    """A difference with its interval. For the baseline, the difference between its two replicates."""
    if row["verdict"] == "baseline" and row["aa_difference"] is not None:
        return f"A/A {signed(row['aa_difference'])}"
    return difference(row)
