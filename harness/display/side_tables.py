"""The tables that stand beside a comparison, each declared once: for text, the report and docs/columns.md.

`make_leaderboard` computes their data under the same keys. A new side table has an entry there and one here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.analysis import causes, controls, other_prompts, pooled, reference, sweeps
from harness.analysis.leaderboard import Leaderboard, records
from harness.display.columns import MEDIATORS, word
from harness.display.comparison_tables import describe_shared_values, rows_of_conditions
from harness.display.table import Column, Row, Table
from harness.display.wording import (
    LEVEL,
    NONE,
    accuracy,
    count,
    difference,
    interval,
    number,
    p_value,
    plural,
    signed,
)

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTable:
    """A table beside the comparison.

    Attributes:
        key: Of its data in `Leaderboard.side_tables` and in JSON.
        heading: Stands above it. `{shared}` is replaced by what all rows have in common.
        meanings: The meaning of each column of the data.
        words: Columns of words, of which those that are facts of the whole table are left out.
        columns: The columns of numbers. Without any, each further column of the data is one.
        remarks: Sentences that stand below it.
        on_request: Whether text has it only if it is asked for.
    """

    key: str
    heading: str
    meanings: Mapping[str, str]
    words: tuple[str, ...] = ("model", "layout", "condition")
    columns: tuple[Column, ...] = ()
    remarks: tuple[str, ...] = ()
    on_request: bool = False


def _show_new_models(low: Any, high: Any) -> str:
    return interval(low, high, sign=True) or NONE


def _show_lengths(lengths: Any) -> str:
    return str(lengths).replace(" ", ", ")


def _show_grader(right: Any, change: Any) -> str:
    return number(right) if change is None else f"{number(right)} {signed(change)}"


def _show_own_accuracy(value: Any, low: Any, high: Any) -> str:
    return "not run" if value is None else accuracy(value, low, high)


def _show_agreement(value: Any, agrees: Any, write: Callable[[Any], str] = number) -> str:
    return write(value) + {None: "", True: ", agrees", False: ", differs"}[agrees]


SIDE_TABLES = (
    SideTable(
        key="pooled",
        heading="All models together{shared}, in points",
        meanings=pooled.POOLED_COLUMNS,
        words=("layout", "condition", "models", "n"),
        columns=(
            Column("difference low high", f"these models [{LEVEL}]", difference),
            Column("p", "p", p_value),
            Column("new_low new_high", "new models", _show_new_models),
        ),
        remarks=("Exploratory: neither adjusted nor judged.",),
    ),
    SideTable(
        key="wordings",
        heading="Over all instructions, points",
        meanings=other_prompts.WORDING_COLUMNS,
        columns=(
            Column("wordings", "instructions", count),
            Column("least most", "from, to", partial(interval, sign=True)),
            Column("better worse", "better, worse in", "{}, {}".format),
            Column("difference new_low new_high", f"mean [{LEVEL}]", difference),
            Column("new_p", "p", p_value),
        ),
        remarks=(
            "Verdicts above are of these instructions; the interval here is for new ones of this kind, on new "
            "problems.",
        ),
    ),
    SideTable(
        key="texts",
        heading="Against other texts of as many tokens at its place, points",
        meanings=other_prompts.TEXT_COLUMNS,
        columns=(
            Column("texts kind", "against", "{} {}".format),
            Column("least most", "their accuracies", interval),
            Column("difference new_low new_high", f"less their mean [{LEVEL}]", difference),
            Column("new_p", "p", p_value),
        ),
        remarks=(
            "Intervals are for new texts of the kind, on new problems. Exploratory: neither adjusted nor judged.",
        ),
    ),
    SideTable(
        key="sweeps",
        heading="Lengths of a filler, difference in points",
        meanings=sweeps.SWEEP_COLUMNS,
        words=("model", "layout", "filler", "placement", "words"),
        columns=(
            Column("lengths", "tokens", _show_lengths),
            Column("difference low high", f"all lengths [{LEVEL}]", difference),
            Column("slope slope_low slope_high", "shortest to longest", difference),
            Column("p_adjusted", "p adj.", p_value),
            Column("best", "best", str),
        ),
    ),
    SideTable(
        key="causes",
        heading="What of a filler counts{shared}, points",
        meanings=causes.CAUSE_COLUMNS,
        words=("model", "layout", "condition", "n"),
        columns=(
            Column("layers", "layers", str),
            Column("effect", "effect", str),
            Column("difference low high", f"on less off [{LEVEL}]", difference),
            Column("p_adjusted", "p adj.", p_value),
        ),
        remarks=(
            "Each effect is a mean over the settings of the other switches; p is adjusted within a filler and layers.",
        ),
    ),
    SideTable(
        key="near_zero",
        heading="Activations near zero, percent",
        meanings={},
        words=("model", "condition"),
        remarks=(
            "Near zero: what 5 percent are under the baseline, of the tokens behind the filler in the prompts checked.",
        ),
    ),
    SideTable(
        key="mediators",
        heading="What else changed: percent of the samples",
        meanings=controls.MEDIATOR_COLUMNS,
        columns=MEDIATORS,
        on_request=True,
    ),
    SideTable(
        key="audit",
        heading="The same completions by other graders: percent right, difference in points",
        meanings={
            "exact_match_boxed": "lm-eval's exact_match on the last box",
            "authors_rule": "the study's rule: the answer may be a substring of the gold",
            "authors_rule_strict": "the same without substrings",
        },
        columns=(
            Column("math_verify math_verify_difference", "math_verify", _show_grader),
            Column("exact_match_boxed exact_match_boxed_difference", "boxed", _show_grader),
            Column("authors_rule authors_rule_difference", "authors'", _show_grader),
            Column("authors_rule_strict authors_rule_strict_difference", "strict", _show_grader),
            Column("first_box first_box_difference", "first box", _show_grader),
        ),
        on_request=True,
    ),
)
REFERENCE = SideTable(
    key="reference",
    heading="Reference: {source}{shared}",
    meanings=reference.REFERENCE_COLUMNS,
    columns=(
        Column("accuracy low high", f"ours % [{LEVEL}]", _show_own_accuracy),
        Column("authors_rule", "authors'", number),
        Column("reference agrees", "theirs", _show_agreement),
        Column("difference difference_low difference_high", "our difference", difference),
        Column("reference_difference difference_agrees", "their difference", partial(_show_agreement, write=signed)),
    ),
    on_request=True,
)


def show_side_tables(board: Leaderboard) -> dict[str, Table]:
    """The side tables that have rows, by key, in the order of `SIDE_TABLES`."""
    tables = {}
    for side in SIDE_TABLES:
        rows = rows_of_conditions(board, board.side_tables[side.key])
        if rows:
            # only tables of models and layouts are split
            words = (*side.words[:2], *board.by, *side.words[2:])
            columns = tuple(_filled_columns(side, rows))
            tables[side.key] = _make_table(replace(side, words=words, columns=columns), rows)
    return tables


def _filled_columns(side: SideTable, rows: Sequence[Row]) -> Iterator[Column]:
    """The columns that have a value in any row, each with the meaning of its first field as its legend."""
    # shares near zero have a column for each layer that an intervention changes
    further = (Column(name, name.replace("_", " ").capitalize(), number) for name in rows[0] if name not in side.words)
    for column in side.columns or further:
        name, *_ = column.key.split()
        if any(row[name] is not None for row in rows):
            yield replace(column, legend=side.meanings.get(name, ""))


def show_reference(table: pandas.DataFrame, published: reference.Reference, differences: Sequence[str]) -> Table:
    """Published numbers beside ours."""
    error = "" if published.exact else f", give or take {published.uncertainty:g} points of reading error"
    samples = published.setup.samples
    agreement = (
        f"agrees: their number lies in our {LEVEL} interval{error}. It is for another run on the same problems with "
        f"{samples} {plural('sample', samples)} each: only the dice differ. Where our run has one sample a problem, "
        "nothing says how far they move."
    )
    heading = REFERENCE.heading.replace("{source}", published.source)
    side = replace(REFERENCE, heading=heading, remarks=(agreement, *differences))
    return _make_table(side, records(table))


def _make_table(side: SideTable, rows: Sequence[Row]) -> Table:
    shared, differing = describe_shared_values(rows, side.words)
    heading = side.heading.replace("{shared}", f", {shared}" if shared else "")
    return Table(heading, rows, [*map(word, differing), *side.columns], side.remarks)
