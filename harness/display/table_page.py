"""The page of `mless table`: the tables of one run or several, in a format."""

import csv
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from harness.analysis.result_tables import Leaderboard, list_rows, make_leaderboard
from harness.constants import DEFAULT_SEED, SplitColumn, TableFormat
from harness.display.comparison_tables import make_comparison_table
from harness.display.printed_tables import render
from harness.display.side_tables import make_shown_side_tables
from harness.errors import ConfigError
from harness.runs.run_reader import Run
from harness.runs.versions_and_hashes import receipt_line

SCHEMA = "mless-table/2"
"""Name and version of the JSON that `table_json` writes: docs/tables.md."""


class TableOptions(NamedTuple):
    """The content and the format of a page.

    Attributes:
        output_format: Output format.
        by: Further columns to split by: values of `SplitColumn`.
        baseline: The condition that all others are compared with; None for the runs' own.
        score: See `baseline_comparison.Design`.
        common: Whether problems that a condition lacks are left out.
        requested_keys: Keys of side tables that are shown only on request, and are requested.
        explain: Whether plain text explains every column, or only what is needed to read the
            verdicts.
    """

    output_format: TableFormat = "text"
    by: Sequence[str] = ()
    baseline: str | None = None
    score: str | None = None
    common: bool = False
    requested_keys: Collection[str] = ()
    explain: bool = True


def make_table(runs: Sequence[Run], options: TableOptions) -> str:
    """The page of `mless table`.

    Args:
        runs: The runs.
        options: Content and format.

    Raises:
        ValueError: there is no such split.
        HarnessError: the runs cannot be read or compared, or the requested tables do not go
            together.
    """
    board = make_leaderboard(
        runs,
        baseline=options.baseline,
        by=list(dict.fromkeys(SplitColumn(name).value for name in options.by)),
        score=options.score,
        common=options.common,
    )
    for key in options.requested_keys:
        if board.score and key != "mediators":
            raise ConfigError(f"--{key} counts single right samples, which {board.score} does not.")
        if board.side_tables[key].empty:
            raise ConfigError(
                f"--{key}: expected completions (--together: several conditions or repeat runs), "
                "which these runs lack."
            )
    return write_board(board, options)


def write_board(board: Leaderboard, options: TableOptions) -> str:
    """A comparison with the requested side tables, in the requested format.

    JSON has all side tables.
    """
    if options.output_format == "csv":
        return table_csv(board, options.requested_keys)
    if options.output_format == "json":
        return table_json(board)
    tables = [
        make_comparison_table(board),
        *make_shown_side_tables(board, options.requested_keys).values(),
    ]
    footer = [receipt_line(receipt) for receipt in board.receipts]
    if not options.explain and options.output_format == "text":
        footer.insert(0, "--explain adds the meaning of each column.")
    return render(tables, footer, output_format=options.output_format, explain=options.explain)


def table_json(board: Leaderboard) -> str:
    """All tables as JSON in ASCII. docs/tables.md has the schema."""
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "baseline": board.baseline,
        "contrasts": board.contrasts,
        "primary": board.primary,
        "by": board.by,
        "score": board.score,
        "clusters": board.cluster_count,
        "copies": board.copy_count,
        "seed": DEFAULT_SEED,
        "rows": list_rows(board.comparison),
        **{key: list_rows(table) for key, table in board.side_tables.items()},
        "receipt": board.receipts,
    }
    return json.dumps(content, indent=2, allow_nan=False, default=str)


def table_csv(board: Leaderboard, requested_keys: Iterable[str] = ()) -> str:
    """The comparison as CSV with quoted strings; receipts and side tables begin with `#`."""
    csv_text = board.comparison.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).rstrip("\n")
    appendices: list[Any] = [*board.receipts]
    if board.score:
        appendices.append({"score": board.score})
    appendices += [{key: list_rows(board.side_tables[key])} for key in requested_keys]
    comments = [f"# {json.dumps(appendix, sort_keys=True, default=str)}" for appendix in appendices]
    return "\n".join([csv_text, *comments])
