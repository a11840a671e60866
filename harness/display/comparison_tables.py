"""The comparison and the leaderboard as people see them: which columns, in which words, and what must be said below."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from harness.analysis.leaderboard import Leaderboard, records
from harness.display.grid import Cell, Column, Field, Grid, Row, make_grid, number_field, verdict_field, word_field
from harness.display.words import (
    LEVEL,
    NOISE,
    PASSED,
    difference,
    flips,
    interval,
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
    """One row a condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = without_edits(board, board.comparison)
    ranked = any(row["null_p"] is not None for row in rows)
    accuracy = number_field("acc. %", "accuracy", lambda r: number(r["accuracy"]))
    if not board.by and not ranked:  # with either the table would be too wide
        accuracy = number_field(f"accuracy % [{LEVEL}]", "accuracy", _accuracy)
    fields = [
        accuracy,
        number_field(f"difference [{LEVEL}]", "difference", _difference),
        number_field("p adj.", "p_adjusted", lambda r: p_value(r["p_adjusted"])),
        verdict_field(),
        number_field("+ / -", "wrong_to_right", lambda r: flips(r, "" if r["wrong_to_right"] is not None else "aa_")),
        *([number_field("rank p", "null_p", lambda r: p_value(r["null_p"]))] if ranked else []),
    ]
    title, words = heading(board)
    fields = [*map(word_field, words), *fields]
    return make_grid(title, fields, rows, comparison_notes(board, [field.column.header for field in fields]))


def leaderboard_grid(board: Leaderboard) -> Grid:
    """One row a model and layout, best baseline first: the primary difference whole, the others as bare numbers."""
    rows = without_edits(board, board.comparison)
    others = [name for name in dict.fromkeys(row["condition"] for row in rows) if name != board.baseline]
    main = next((name for name in others if name in board.primary), others[0] if others else None)
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    keys = ("model", "layout", *board.by)
    for row in rows:
        lines.setdefault(tuple(row[key] for key in keys), {})[row["condition"]] = row
    title, words = heading(board)
    fields = [_of(board.baseline, word_field(name)) for name in words if name != "condition"]
    accuracy = number_field(f"{label(board.baseline)} %", "accuracy", lambda r: number(r["accuracy"]))
    fields.append(_of(board.baseline, accuracy))
    if main is not None:
        star = " *" if board.primary else ""
        fields += [
            _of(main, number_field(f"{label(main)}{star} [{LEVEL}]", "difference", difference)),
            _of(main, number_field("p adj.", "p_adjusted", lambda r: p_value(r.get("p_adjusted")))),
            _of(main, verdict_field(), absent="not run"),
        ]
    fields += [_of(name, _bare(name)) for name in others if name != main]
    bracketed = any(row["verdict"] == "exploratory" and row["condition"] != main for row in rows)
    brackets = ", those in brackets exploratory" if bracketed else ""
    return make_grid(
        title,
        fields,
        sorted(lines.values(), key=lambda line: -line[board.baseline]["accuracy"]),
        (
            "Best baseline first. Every condition's number is its difference from "
            f"{label(board.baseline)}; only those that passed their test are bold{brackets}.",
            *comparison_notes(board, [field.column.header for field in fields]),
        ),
    )


def without_edits(board: Leaderboard, table: pandas.DataFrame) -> list[Row]:
    """The rows without those of the prompt null, which stand in a note."""
    return [row for row in records(table) if row["condition"] not in board.edits]


def heading(board: Leaderboard) -> tuple[str, list[str]]:
    """The title, which says what is the same in all rows, and the columns of words for what is not."""
    whole = records(board.comparison)
    words = ["model", "layout", *board.by, "condition"]
    said = []
    for name in ("model", "layout"):
        values = {row[name] for row in whole}
        if len(values) == 1:
            said.append(str(values.pop()))
            words.remove(name)
    for name, singular in (("n", "problem"), ("k", "sample")):
        values = {row[name] for row in whole}
        if len(values) == 1:
            amount = int(values.pop())
            said.append(f"{amount} {plural(singular, amount)}" + (" each" if name == "k" else ""))
        else:
            words.append(name)
    return ", ".join(said) or "Differences from the baseline", words


def comparison_notes(board: Leaderboard, header: Collection[str]) -> list[str]:
    """What the numbers under this header are, how they were tested, and the noise that they stand beside."""
    rows = without_edits(board, board.comparison)
    return [*_about_tests(board, rows, header), *_about_noise(board, rows, header)]


def _about_tests(board: Leaderboard, rows: Sequence[Row], header: Collection[str]) -> list[str]:
    compared = [row for row in rows if row["test"] is not None]
    if not compared:
        return ["One condition only: nothing is compared."]
    said = f"Differences from {label(board.baseline)} in points, paired by problem, with score intervals"
    if "+ / -" in header:
        said += "; + / -: problems from wrong to right and from right to wrong"
    judged = any(row["p_adjusted"] is not None for row in compared)
    notes = [f"{said}; {_about_family(board, compared)}."]
    if judged:
        notes.append(f"{verdicts(compared[0]['margin'])}, which is no evidence of no effect.")
    if judged and "rank p" in header:
        notes[-1] += " Equivalence and rank p are not adjusted for several: each may err 5 times in 100."
    elif judged:
        notes[-1] += " Equivalence is not adjusted for several: it may err 5 times in 100."
    return notes


def _about_family(board: Leaderboard, compared: Sequence[Row]) -> str:
    """What gives p, over which tests it is adjusted, who chose them, and what that leaves out."""
    test = {"mcnemar": "exact McNemar test", "sign-flip": "sign-flip permutation test"}
    holm = f"p: {' or '.join(dict.fromkeys(test[row['test']] for row in compared))}, adjusted by Holm over"
    count = sum(row["p_adjusted"] is not None for row in compared)
    tests = f"{count} {plural('test', count)}"
    if board.family is None:
        return f"{holm} {'the' if count == 1 else 'all'} {tests} shown, not registered beforehand"
    if not count:
        return "no test was registered beforehand, so all are exploratory: neither adjusted nor judged"
    said = f"{holm} the {tests} registered beforehand ({', '.join(map(label, board.family))})"
    if board.primary:
        said += "; *: the primary contrast"
    if count < len(compared):
        said += "; exploratory: not among them, so neither adjusted nor judged"
    return said


def _about_noise(board: Leaderboard, rows: Sequence[Row], header: Collection[str]) -> list[str]:
    """The A/A and the prompt null by model and layout; of a split the rows tell them themselves."""
    layouts = {row["layout"] for row in rows}
    notes = []
    again = [row for row in rows if row["aa_p"] is not None and row["verdict"] == "baseline"]
    if again and not board.by:
        told = [
            (
                f"{_setting(row, layouts)} {signed(row['aa_difference'])}"
                + (f", {flips(row, 'aa_')}" if "+ / -" in header else ""),
                row["model"] in board.greedy,
            )
            for row in again
        ]
        said = [
            f"({'; '.join(text for text, of in told if of == greedy)}): {what}"
            for greedy, what in NOISE.items()
            if any(of == greedy for _, of in told)
        ]
        notes.append(f"A/A: the baseline run again, in another order, against itself {'; '.join(said)}.")
    said = [] if board.by else _moved(board, layouts)
    if board.edits and "rank p" in header:
        said.append("rank p: (1 + edits at least as far) / (1 + edits)")
    if said:
        null = f"Prompt null (harmless edits of the prompt, without filler: {len(board.edits)})"
        notes.append(f"{null}: {'; '.join(said)}.")
    return notes


def _moved(board: Leaderboard, layouts: Collection[str]) -> list[str]:
    """How far the edits of the prompt move the accuracy, named by model and layout where there are several."""
    null: dict[str, list[float]] = {}
    for row in records(board.comparison):
        if row["condition"] in board.edits:
            null.setdefault(_setting(row, layouts), []).append(row["difference"])
    ranges = {name: f"{signed(min(moves))} to {signed(max(moves))} points" for name, moves in null.items()}
    if len(ranges) > 1:
        return [f"accuracy moves by {', '.join(f'{said} ({name})' for name, said in ranges.items())}"]
    return [f"accuracy moves by {said}" for said in ranges.values()]


def _setting(row: Row, layouts: Collection[str]) -> str:
    return f"{row['model']}, {row['layout']}" if len(layouts) > 1 else str(row["model"])


def _of(condition: str, field: Field, absent: str = "") -> Field:
    """A field of a line of the leaderboard, which has a row for each condition that was run."""

    def cell(line: dict[str, Row]) -> Cell:
        if condition not in line and absent:
            return Cell(text=absent)
        return field.cell(line.get(condition, {}))

    return Field(column=field.column, cell=cell)


def _bare(condition: str) -> Field:
    """A difference without its interval, strong where it passed its test, in brackets where it had none."""

    def cell(row: Row) -> Cell:
        text = signed(row.get("difference"))
        tested = row.get("verdict") != "exploratory"
        return Cell(text=text if tested else f"({text})", strong=row.get("verdict") in PASSED)

    return Field(column=Column(header=label(condition)), cell=cell)


def _accuracy(row: Row) -> str:
    return f"{number(row['accuracy'])} {interval(row['accuracy_low'], row['accuracy_high'])}"


def _difference(row: Row) -> str:
    """A difference; the baseline's is from itself."""
    if row["verdict"] == "baseline" and row["aa_p"] is not None:
        return f"A/A {signed(row['aa_difference'])}"
    return difference(row)
