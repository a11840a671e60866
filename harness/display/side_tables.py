"""The tables beside the comparison: what else changed, what every grader says, published numbers, accuracies alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.analysis.leaderboard import Leaderboard, records
from harness.display.comparison_tables import heading, without_edits
from harness.display.grid import Field, Grid, Row, make_grid, number_field, word_field
from harness.display.words import LEVEL, count, difference, interval, label, number, signed

if TYPE_CHECKING:
    import pandas

    from harness.analysis.reference import Reference


def mediator_grid(board: Leaderboard) -> Grid:
    """What else a condition changes, and how the difference splits into format and answer."""
    columns = {
        "no box %": ("no_box", number),
        "truncated": ("truncated", number),
        "refused": ("refused", number),
        "timed out": ("timed_out", number),
        "tokens": ("completion_tokens", lambda value: number(value, 0)),
        "looping": ("looping", number),
        "format moved": ("format_changed", number),
        "by format": ("format_difference", signed),
        "by answer": ("answer_difference", signed),
    }
    return make_grid(
        "What else changed: percent of the samples; points of the difference",
        [*_words(board), *(_value_field(header, name, write) for header, (name, write) in columns.items())],
        without_edits(board, board.mediators),
        (
            "no box, truncated, refused, timed out: without a graded answer, by reason. looping: the last 100 "
            "characters occur at least 4 times in the completion.",
            "The difference is the sum of two parts, by pairs of samples of one problem: by format, where only one of "
            "the two has a graded answer, and by answer, where both have; format moved: pairs with one, or that lack "
            "it for different reasons.",
        ),
    )


def audit_grid(board: Leaderboard) -> Grid:
    """Each grader's accuracy of the same completions, and its difference from the baseline."""
    from harness.grading import COLUMNS as GRADERS

    rows = without_edits(board, board.audit)
    headers = {
        "ours": "ours",
        "math_verify": "math_verify",
        "exact_match": "sentence",
        "exact_match_boxed": "boxed",
        "authors_rule": "authors'",
        "authors_rule_strict": "strict",
        "first_box": "first box",
    }

    def write(name: str) -> Callable[[Row], str]:
        def said(row: Row) -> str:
            change = row[f"{name}_difference"]
            return number(row[name]) + ("" if row[name] is None or change is None else f" {signed(change)}")

        return said

    most = max(
        ((r[f"{g}_only_ours"] + r[f"{g}_only_theirs"], g, r) for r in rows for g in GRADERS if g != "exact_match"),
        key=lambda item: item[0],
        default=None,
    )
    notes = [
        "Percent right by each grader, and its difference from the baseline in points. sentence and boxed are "
        "lm-eval's exact_match on its own sentence and on the last box; authors' is the study's rule (the answer may "
        "be a substring of the gold), strict the same without substrings.",
    ]
    if most is not None and most[0]:
        notes.append(
            f"Most at odds with ours: {most[1]}, {label(most[2]['condition'])}: {most[2][f'{most[1]}_only_ours']} "
            f"samples are right by ours only, {most[2][f'{most[1]}_only_theirs']} by it only."
        )
    return make_grid(
        "The same completions by every grader",
        [*_words(board), *(number_field(header, name, write(name)) for name, header in headers.items())],
        rows,
        notes,
    )


def reference_grid(table: pandas.DataFrame, reference: Reference, differences: Sequence[str]) -> Grid:
    """Published numbers beside ours."""
    rows = records(table)
    words = ["model", "layout", "condition"]
    title = f"Reference: {reference.source}"
    if len({row["layout"] for row in rows if row["layout"]}) < 2:
        words.remove("layout")
    if len({row["model"] for row in rows}) == 1:
        words.remove("model")
        title += f", {rows[0]['model']}"

    def theirs(name: str, agrees: str, write: Callable[[Row], str]) -> Callable[[Row], str]:
        said = {None: "", True: ", agrees", False: ", differs"}
        return lambda row: write(row) + said[row[agrees]]

    fields = [
        *map(word_field, words),
        number_field(f"ours % [{LEVEL}]", "accuracy", _ours),
        _value_field("authors'", "authors_rule", number),
        number_field("theirs", "reference", theirs("reference", "agrees", lambda r: number(r["reference"]))),
        number_field(
            "our difference",
            "difference",
            lambda r: difference({**r, "low": r["difference_low"], "high": r["difference_high"]}),
        ),
        number_field(
            "their difference",
            "reference_difference",
            theirs("reference_difference", "difference_agrees", lambda r: signed(r["reference_difference"])),
        ),
    ]
    note = f"agrees: their number lies in our {LEVEL} interval" + (
        "; their own noise is not stated."
        if reference.exact
        else f", give or take {reference.uncertainty:g} points of reading error."
    )
    return make_grid(title, fields, rows, [note, *differences])


def plain_grid(table: pandas.DataFrame) -> Grid:
    """`accuracy.accuracy_table`: accuracies alone, of runs that have no baseline to compare with."""
    fields = [
        *map(word_field, ("model", "layout", "condition")),
        number_field(
            f"accuracy % [{LEVEL}]",
            "accuracy",
            lambda r: f"{number(r['accuracy'])} {interval(r['accuracy_low'], r['accuracy_high'])}",
        ),
        *(
            _value_field(header, name, count)
            for header, name in (("n", "n"), ("no box", "no_box"), ("truncated", "truncated"), ("ungraded", "ungraded"))
        ),
    ]
    note = "Accuracies alone: there is no baseline condition among them that others could be compared with."
    return make_grid("Accuracy", fields, records(table), [note])


def _words(board: Leaderboard) -> list[Field]:
    _, words = heading(board)
    return [word_field(name) for name in words if name not in ("n", "k")]


def _value_field(header: str, name: str, write: Callable[[float | None], str]) -> Field:
    return number_field(header, name, lambda row: write(row[name]))


def _ours(row: Row) -> str:
    return "not run" if row["accuracy"] is None else f"{number(row['accuracy'])} {interval(row['low'], row['high'])}"
