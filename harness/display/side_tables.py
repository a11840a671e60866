"""Tables beside the comparison: mediators (what else changed), all graders, published numbers, accuracies alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.analysis.leaderboard import Leaderboard, Study, records
from harness.constants import FEWEST_MODELS
from harness.display.comparison_tables import heading, without_yardsticks
from harness.display.grid import Cell, Column, Grid, Row, make_grid, number_column, row_column, word_column
from harness.display.numbers import (
    LEVEL,
    NONE,
    PASSED,
    accuracy,
    count,
    difference,
    interval,
    label,
    number,
    p_value,
    plural,
    signed,
)

if TYPE_CHECKING:
    import pandas

    from harness.analysis.reference import Reference


def sweep_grid(board: Leaderboard) -> Grid | None:
    """Each filler that was run in several lengths: all lengths together, and the best of them. None without any."""
    rows = records(board.sweeps)
    if not rows:
        return None
    columns = [
        *(word_column(name) for name in ("model", "layout") if board.sweeps[name].nunique() > 1),
        *(word_column(name) for name in ("filler", "placement")),
        *([word_column("words")] if board.sweeps["words"].any() else []),
        row_column(f"all lengths [{LEVEL}]", "difference", difference),
        number_column("p adj.", "p_adjusted", p_value),
        word_column("shape"),
        number_column("best", "best", str),
    ]
    return make_grid(
        "Lengths of a filler, difference in points",
        columns,
        rows,
        (
            f"all lengths: the mean over {_lengths(rows)} tokens, tested as one question in two "
            "shapes, plateau (all alike) and peak (middle lengths most), by Holm over these rows, a family of their "
            "own. none: no trend found. An effect of one length alone is found by its own row above.",
            "best: the length that did best, in tokens.",
        ),
    )


def _lengths(rows: Sequence[Row]) -> str:
    """The lengths of all rows, or of each filler if they differ."""
    named = {" ".join(filter(None, (row[name] for name in ("filler", "placement", "words")))): row for row in rows}
    listed = {name: str(row["lengths"]).replace(" ", ", ") for name, row in named.items()}
    one, *others = dict.fromkeys(listed.values())
    return "; ".join(f"{lengths} ({filler})" for filler, lengths in listed.items()) if others else one


def mediator_grid(board: Leaderboard) -> Grid:
    """What else a condition changes, and how the difference splits into format and answer."""
    columns = [
        number_column("no box %", "no_box", number),
        number_column("cut off", "truncated", number),
        row_column("unread", "refused", lambda row: number(row["refused"] + row["timed_out"])),
        number_column("tokens", "completion_tokens", lambda value: number(value, 0)),
        number_column("loops", "looping", number),
        number_column("format moved", "format_changed", number),
        number_column("by format", "format_difference", signed),
        number_column("by answer", "answer_difference", signed),
    ]
    return make_grid(
        "What else changed: percent of the samples; points of the difference",
        [*_words(board), *columns],
        without_yardsticks(board, board.mediators),
        (
            "no box, cut off (at the token limit), unread (the grader refused it, or timed out): without a graded "
            "answer, by reason. loops: the last 100 characters occur at least 4 times in the completion.",
            "The difference is the sum of two parts, by pairs of samples of one problem: by format, where only one of "
            "the two has a graded answer, and by answer, where both have; format moved: pairs with one, or that lack "
            "it for different reasons.",
        ),
    )


def pooled_grid(pooled: pandas.DataFrame, study: Study | None) -> Grid | None:
    """One effect over all models of each contrast; None without rows."""
    rows = records(pooled)
    if not rows:
        return None

    def of_new(row: Row) -> str:
        return interval(row["new_low"], row["new_high"], sign=True) or NONE

    def passed(row: Row) -> Cell:
        return Cell(text=row["verdict"], strong=row["verdict"] in PASSED)

    def tested(row: Row) -> str:
        return p_value(row["p_adjusted"] if row["registered"] else row["p"])

    several = len({row["layout"] for row in rows}) > 1
    alike = len({(row["models"], row["n"]) for row in rows}) == 1
    counts = [number_column("models", "models", count), number_column("n", "n", count)]
    columns = [
        *([word_column("layout")] if several else []),
        word_column("condition"),
        *([] if alike else counts),
        row_column(f"these models [{LEVEL}]", "difference", difference),
        row_column("p", "p", tested),
        Column(header="verdict", cell=passed, numeric=False),
    ]
    shares = " Layouts share alpha: p of the starred is times their number." if several else ""
    new = f"What new models would do needs {FEWEST_MODELS} models."
    if any(row["new_low"] is not None for row in rows):
        columns.append(row_column("new models", "new_low", of_new))
        new = (
            f"new models: {LEVEL} interval of the mean over all models that these are a sample of (crossed random "
            "effects of models and problems)."
        )
    notes = [
        "these models: a problem's difference averaged over the models, tested over problems as one model's is. "
        f"{new}{shares}",
        _about_study(study, rows),
    ]
    starred = [{**row, "primary": row["registered"]} for row in rows]
    size = ""
    if alike:
        models, n = rows[0]["models"], rows[0]["n"]
        size = f", {models} {plural('model', models)} on {n} {plural('problem', n)}"
    return make_grid(f"All models together{size}, in points", columns, starred, notes)


def _about_study(study: Study | None, rows: Sequence[Row]) -> str:
    """Whether the pooled effect was named beforehand, and what its test means for the others."""
    if study is None:
        return "Exploratory: the runs were not registered as one study."
    if any(row["registered"] for row in rows):
        return (
            f"*: the primary contrast of the study {study.name}, named before any of its runs, and tested before the "
            "contrasts of single models: these can only be found behind it. The other rows are exploratory."
        )
    if study.missing:
        return f"Exploratory: of the study {study.name} the runs of {', '.join(study.missing)} are not here."
    return (
        f"Exploratory: not all models of the study {study.name} were asked the same problems in every layout, or there "
        "are models of no study."
    )


def yardstick_grid(board: Leaderboard) -> Grid | None:
    """Each condition against harmless rewordings and other fillers; None without these."""
    rows = [row for row in without_yardsticks(board, board.comparison) if row["wordings"] or row["fillers"]]
    if not rows or board.by:
        return None

    columns: list[Column] = []
    notes = []
    for name, kind, header in (("wording", "rewording", "rewordings"), ("filler", "other filler", "fillers")):
        if any(row[f"{name}s"] for row in rows):
            columns.append(number_column(f"less {header}", f"{name}_difference", signed))
            notes.append(f"{_KINDS[kind]}, {_spread(rows, records(board.comparison), name, kind)}.")
    notes[-1] += " less: the accuracy less their mean, in points."
    return make_grid("Against harmless rewordings and other fillers", [*_words(board), *columns], rows, notes)


_KINDS = {
    "rewording": "rewordings: harmless edits of the instruction without a filler, and the baseline's own wording",
    "other filler": "fillers: others of the same length and place, sentences and random tokens",
}


def _spread(rows: Sequence[Row], every: Sequence[Row], name: str, kind: str) -> str:
    """How many yardsticks of a kind there are and how far they lie apart, by model and layout if there are several."""
    settings = {(row["model"], row["layout"]): row for row in rows if row[f"{name}s"]}
    said, several = [], len(settings) > 1
    for (model, layout), row in settings.items():
        moves = [
            one["difference"]
            for one in every
            if one["verdict"] == kind and (one["model"], one["layout"]) == (model, layout)
        ]
        where = f" in {model}, {layout}" if several else ""
        reach = f"{signed(min(moves))} to {signed(max(moves))}"
        spread = number(row[f"{name}_spread"], 2)
        said.append(
            f"{row[f'{name}s']} of them with a standard deviation of {spread} points{where} ({reach} from the baseline)"
        )
    return "; ".join(said)


GRADERS = {
    "ours": "ours",
    "math_verify": "math_verify",
    "exact_match_boxed": "boxed",
    "authors_rule": "authors'",
    "authors_rule_strict": "strict",
    "first_box": "first box",
}
"""Every grader, and what a table calls it."""


def audit_grid(board: Leaderboard) -> Grid:
    """Each grader's accuracy on the same completions, and its difference from the baseline."""
    rows = without_yardsticks(board, board.audit)
    settings = ["model", "layout", *board.by]
    _, words = heading(board)
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        for name in GRADERS:
            setting = {key: row[key] for key in settings}
            line = lines.setdefault((*setting.values(), name), {**setting, "grader": GRADERS[name]})
            line[row["condition"]] = (row[name], row[f"{name}_difference"])

    def said(line: Row, condition: str) -> Cell:
        right, change = line.get(condition, (None, None))
        return Cell(text=number(right) + ("" if right is None or change is None else f" {signed(change)}"))

    columns = [word_column(name) for name in [*(name for name in words if name in settings), "grader"]]
    columns += [
        Column(header=label(condition), cell=partial(said, condition=condition))
        for condition in dict.fromkeys(row["condition"] for row in rows)
    ]
    notes = [
        "Percent right by each grader, and its difference from the baseline in points. boxed is "
        "lm-eval's exact_match on the last box; authors' is the study's rule (the answer may "
        "be a substring of the gold), strict the same without substrings.",
    ]
    return make_grid("The same completions by every grader", columns, lines.values(), notes)


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
    agreement = {None: "", True: ", agrees", False: ", differs"}

    def ours(row: Row) -> str:
        return (
            "not run" if row["accuracy"] is None else f"{number(row['accuracy'])} {interval(row['low'], row['high'])}"
        )

    def change(row: Row) -> str:
        return difference({**row, "low": row["difference_low"], "high": row["difference_high"]})

    def theirs(row: Row) -> str:
        return number(row["reference"]) + agreement[row["agrees"]]

    def their_change(row: Row) -> str:
        return signed(row["reference_difference"]) + agreement[row["difference_agrees"]]

    columns = [
        *map(word_column, words),
        row_column(f"ours % [{LEVEL}]", "accuracy", ours),
        number_column("authors'", "authors_rule", number),
        row_column("theirs", "reference", theirs),
        row_column("our difference", "difference", change),
        row_column("their difference", "reference_difference", their_change),
    ]
    read = "" if reference.exact else f", give or take {reference.uncertainty:g} points of reading error"
    note = (
        f"agrees: their number lies in our {LEVEL} interval{read}. It is for another run on the same problems with "
        f"{reference.setup.samples} {plural('sample', reference.setup.samples)} each: only the dice differ. With one "
        "sample a problem of ours nothing says how far they move."
    )
    return make_grid(title, columns, rows, [note, *differences])


def plain_grid(table: pandas.DataFrame) -> Grid:
    """Accuracies alone, for runs without a baseline. `table` is from `outcomes.accuracy_table`."""
    columns = [
        *map(word_column, ("model", "layout", "condition")),
        row_column(f"accuracy % [{LEVEL}]", "accuracy", accuracy),
        number_column("n", "n", count),
        number_column("no box", "no_box", count),
        number_column("truncated", "truncated", count),
        number_column("ungraded", "ungraded", count),
    ]
    note = "Accuracies alone: there is no baseline condition among them that others could be compared with."
    return make_grid("Accuracy", columns, records(table), [note])


def _words(board: Leaderboard) -> list[Column]:
    _, words = heading(board)
    return [word_column(name) for name in words if name not in ("n", "k")]
