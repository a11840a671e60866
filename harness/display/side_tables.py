"""The declarations of the side tables, for text, the report and docs/columns.md.

`make_leaderboard` computes their data under the same keys. A new side table needs an entry there
and one here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from harness.analysis import answer_shares, joint_outcomes, mediators_and_audit, other_texts
from harness.analysis.result_tables import Leaderboard
from harness.constants import ANSWER_LOGPROB, ANSWER_SHARE, Row
from harness.display.comparison_columns import COLUMN_BY_ENDING, text_column
from harness.display.comparison_tables import list_text_columns, rows_of_conditions
from harness.display.printed_tables import Column, Table
from harness.display.value_texts import (
    LEVEL_TEXT,
    format_count,
    format_difference,
    format_estimate,
    format_interval,
    format_number,
    format_p_value,
    format_signed_number,
    replace_accuracy,
)


class SideTable(NamedTuple):
    """A table beside the comparison.

    Attributes:
        key: The key of its data in `Leaderboard.side_tables` and in JSON.
        heading: The text above it.
        meaning_by_column: The meaning of each column of the data.
        columns: The columns of numbers.
        remarks: Sentences below it.
        only_on_request: Whether text leaves it out unless it is requested.
    """

    key: str
    heading: str
    meaning_by_column: Mapping[str, str]
    columns: tuple[Column, ...]
    remarks: tuple[str, ...] = ()
    only_on_request: bool = False


def _show_accuracy(accuracy: Any, change: Any) -> str:
    """A percentage with its difference from the baseline, which the baseline lacks."""
    if change is None:
        return format_number(accuracy)
    return f"{format_number(accuracy)} {format_signed_number(change)}"


def _show_spread(spread: Any, low: Any, high: Any) -> str:
    """The spread (standard deviation) of the true differences of other texts, with its interval."""
    return f"{format_number(spread)} {format_interval(low, high)}"


SIDE_TABLES = (
    SideTable(
        key="answers",
        heading="Log-probabilities of the answers, nats",
        meaning_by_column=answer_shares.ANSWER_COLUMNS,
        columns=(
            Column(ANSWER_SHARE, "log share", partial(format_number, decimals=2)),
            Column("difference low high", f"difference [{LEVEL_TEXT}]", format_difference),
            Column("p_adjusted", "p adj.", format_p_value),
            text_column("verdict"),
            Column(ANSWER_LOGPROB, "log-prob.", partial(format_number, decimals=2)),
            Column("logprob_difference", "difference", partial(format_signed_number, decimals=2)),
        ),
        remarks=("Log-probabilities of fewer than 50 clusters are not tested: unmeasured.",),
    ),
    SideTable(
        key="texts",
        heading="The range of other texts of the same length and placement, points",
        meaning_by_column=other_texts.TEXT_COLUMNS,
        columns=(
            Column("texts kind", "other texts", "{} {}".format),
            Column(
                "range_low range_high",
                f"range [{LEVEL_TEXT}]",
                partial(format_interval, has_sign=True),
                "that of the difference of one more such text on these problems and draws",
            ),
            Column("effect range_low range_high", "filler", format_estimate, is_optional=True),
            Column("place", "place", str),
            Column("rank", "rank", format_count),
            Column("as_extreme", "as extreme %", partial(format_number, decimals=0)),
            Column(
                "difference new_low new_high", f"minus their mean [{LEVEL_TEXT}]", format_difference
            ),
            Column("new_p", "p", format_p_value, is_optional=True),
            Column(
                "spread spread_low spread_high",
                f"spread [{LEVEL_TEXT}]",
                _show_spread,
                is_optional=True,
            ),
        ),
        remarks=(
            "range, as extreme: with fewer than 19 texts they rest on a normal distribution.",
            "The mean and the spread, for new texts and problems, decide nothing.",
        ),
    ),
    SideTable(
        key="together",
        heading="All conditions together, and repeat runs (A/A), percent of the problems",
        meaning_by_column=joint_outcomes.TOGETHER_COLUMNS,
        columns=(
            Column("all_right", "all right", format_number),
            Column("any_right", "any right", format_number),
            Column("same_answer", "same answer", format_number),
        ),
        only_on_request=True,
    ),
    SideTable(
        key="mediators",
        heading="Mediators, percent of the samples",
        meaning_by_column=mediators_and_audit.MEDIATOR_COLUMNS,
        columns=(
            *COLUMN_BY_ENDING.values(),
            Column("completion_tokens", "tokens", partial(format_number, decimals=0)),
            Column("next_question", "next question", format_number, is_optional=True),
        ),
        only_on_request=True,
    ),
    SideTable(
        key="audit",
        heading="Other graders of the same completions, percent correct and difference",
        meaning_by_column={
            "by_mless": "percent correct; GRADER_difference has the change from the baseline",
            "math_verify": "lm-eval's call of math_verify on the full text",
            "authors_rule": "the study's rule, which accepts substrings of the gold answer",
            "authors_rule_strict": "the study's rule with equality",
        },
        columns=(
            Column("math_verify math_verify_difference", "math_verify", _show_accuracy),
            Column("authors_rule authors_rule_difference", "authors'", _show_accuracy),
            Column("authors_rule_strict authors_rule_strict_difference", "strict", _show_accuracy),
        ),
        only_on_request=True,
    ),
)


def make_shown_side_tables(
    board: Leaderboard, requested_keys: Collection[str] | None = None
) -> dict[str, Table]:
    """The side tables that have rows, by key, in the order of `SIDE_TABLES`.

    Args:
        board: All tables.
        requested_keys: Keys of tables that are only shown on request, and are requested; None for
            all of them.
    """
    table_by_key = {}
    for side_table in SIDE_TABLES:
        key = side_table.key
        is_shown = not side_table.only_on_request or requested_keys is None or key in requested_keys
        rows = rows_of_conditions(board, board.side_tables[key])
        if rows and is_shown:
            table_by_key[key] = Table(
                replace_accuracy(side_table.heading, board.score),
                rows,
                [
                    *list_text_columns(rows, ("model", "layout", *board.by, "condition")),
                    *_select_filled_columns(side_table, rows, board.score),
                ],
                side_table.remarks,
            )
    return table_by_key


def _select_filled_columns(
    side_table: SideTable, rows: Sequence[Row], score_name: str | None
) -> Iterator[Column]:
    """The columns with a value in any row, and with a legend that names the score.

    A column without a legend has the meaning of its first field.
    """
    for column in side_table.columns:
        field, *_ = column.field_names.split()
        if any(row[field] is not None for row in rows):
            meaning = side_table.meaning_by_column.get(field, "")
            yield replace(column, legend=replace_accuracy(column.legend or meaning, score_name))
