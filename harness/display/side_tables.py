"""The tables that stand beside a comparison, each declared once: for text, the report and docs/columns.md.

`make_leaderboard` computes their data under the same keys. A new side table has an entry there and one here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.analysis import (
    filler_parts,
    mediators_and_audit,
    other_texts_and_instructions,
    pool_models,
    published_numbers,
    sweeps,
)
from harness.analysis.result_tables import Leaderboard, records
from harness.display.comparison_columns import UNGRADED_ENDINGS, word
from harness.display.comparison_tables import describe_shared_values, rows_of_conditions
from harness.display.format_table import Column, Row, Table
from harness.display.format_values import (
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
        columns: The columns of numbers.
        remarks: Sentences that stand below it.
        on_request: Whether text has it only if it is asked for.
    """

    key: str
    heading: str
    meanings: Mapping[str, str]
    words: tuple[str, ...] = ("model", "layout", "condition")
    columns: tuple[Column, ...]
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


def _show_layers(layers: Any) -> str:
    return layers or NONE


def _show_validity(is_valid: Any) -> str:
    return "yes" if is_valid else "no"


SIDE_TABLES = (
    SideTable(
        key="pooled",
        heading="All models together{shared}, in points",
        meanings=pool_models.POOLED_COLUMNS,
        words=("layout", "condition", "models", "problems"),
        columns=(
            Column("difference low high", f"these models [{LEVEL}]", difference),
            Column("p", "p", p_value),
            Column("new_low new_high", "new models", _show_new_models),
        ),
        remarks=("Exploratory: neither adjusted nor judged.",),
    ),
    SideTable(
        key="instructions",
        heading="Over all instructions, points",
        meanings=other_texts_and_instructions.INSTRUCTION_COLUMNS,
        columns=(
            Column("instructions", "instructions", count),
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
        meanings=other_texts_and_instructions.TEXT_COLUMNS,
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
            Column(
                "longest_less_shortest longest_low longest_high",
                "longest less shortest",
                difference,
            ),
            Column("p_adjusted", "p adj.", p_value),
            Column("best", "best", str),
        ),
    ),
    SideTable(
        key="causes",
        heading="Parts of a filler{shared}, points",
        meanings=filler_parts.CAUSE_COLUMNS,
        words=("model", "layout", "filler", "condition", "problems"),
        columns=(
            Column("layers", "layers", _show_layers),
            Column("valid_attention", "weights add up to 1", _show_validity),
            Column("difference low high", f"less the gap [{LEVEL}]", difference),
            Column("p_adjusted", "p adj.", p_value),
        ),
        remarks=(
            "Each condition is compared with the position gap. Where scale or bias is on alone, attention weights do "
            "not add up to 1: this is not valid attention, and no prompt makes a model compute it.",
        ),
    ),
    SideTable(
        key="mediators",
        heading="What else changed: percent of the samples",
        meanings=mediators_and_audit.MEDIATOR_COLUMNS,
        columns=(
            *UNGRADED_ENDINGS,
            Column("completion_tokens", "tokens", partial(number, digits=0)),
            Column("looping", "loops", number),
        ),
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
        ),
        on_request=True,
    ),
)
REFERENCE = SideTable(
    key="reference",
    heading="Reference: {source}{shared}",
    meanings=published_numbers.REFERENCE_COLUMNS,
    columns=(
        Column("accuracy accuracy_low accuracy_high", f"ours % [{LEVEL}]", _show_own_accuracy),
        Column("authors_rule", "authors'", number),
        Column("reference", "theirs", number),
        Column("difference low high", "our difference", difference),
        Column("reference_difference", "their difference", signed),
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
    for column in side.columns:
        name, *_ = column.key.split()
        if any(row[name] is not None for row in rows):
            yield replace(column, legend=side.meanings.get(name, ""))


def show_reference(
    table: pandas.DataFrame, published: published_numbers.Reference, differences: Sequence[str]
) -> Table:
    """Published numbers next to ours."""
    samples = f"{published.setup.samples} {plural('sample', published.setup.samples)}"
    reading_error = (
        "" if published.exact else f", read off a figure to within {published.uncertainty:g} points"
    )
    remark = f"theirs: means of {samples} a problem{reading_error}."
    heading = REFERENCE.heading.replace("{source}", published.source)
    side = replace(REFERENCE, heading=heading, remarks=(remark, *differences))
    return _make_table(side, records(table))


def _make_table(side: SideTable, rows: Sequence[Row]) -> Table:
    shared, differing = describe_shared_values(rows, side.words)
    heading = side.heading.replace("{shared}", f", {shared}" if shared else "")
    return Table(heading, rows, [*map(word, differing), *side.columns], side.remarks)
