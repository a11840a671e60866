"""The page of `mless table`: from one run or several to a format of tables."""

import csv
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.result_tables import Leaderboard, make_leaderboard, records
from harness.constants import DEFAULT_SEED, Format, Split
from harness.display.comparison_tables import show_comparison
from harness.display.printed_tables import Table, render
from harness.display.side_tables import SIDE_TABLES, show_side_tables
from harness.errors import ConfigError
from harness.runs.run_reader import Run
from harness.runs.versions_and_hashes import receipt_line

SCHEMA = "mless-table/2"
"""Name and version of the JSON that `table_json` writes: docs/tables.md."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The content and the format of a page.

    Attributes:
        form: Output format.
        by: Further columns to split by: values of `Split`.
        baseline: The condition that all others are compared with; None for the runs' own.
        score: See `baseline_comparison.Design`.
        common: See `make_leaderboard`.
        side_tables: Keys of side tables to add that are not shown otherwise.
        explain: Whether plain text explains every column, or only what is needed to read the
            verdicts.
    """

    form: Format = "text"
    by: Sequence[str] = ()
    baseline: str | None = None
    score: str | None = None
    common: bool = False
    side_tables: Collection[str] = ()
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
    if options.form == "csv" and options.side_tables:
        raise ConfigError(
            "CSV has only the comparison: use --mediators and --audit with another format."
        )
    board = make_leaderboard(
        runs,
        baseline=options.baseline,
        by=list(dict.fromkeys(Split(name).value for name in options.by)),
        score=options.score,
        common=options.common,
    )
    if board.score and "audit" in options.side_tables:
        raise ConfigError(f"--audit counts single right samples, which {board.score} does not.")
    for key in options.side_tables:
        if board.side_tables[key].empty:
            raise ConfigError(f"--{key}: expected completions, which these runs lack.")
    tables = [*_show_tables(board, options)]
    return write_board(board, tables, options.form, explain=options.explain)


def write_board(board: Leaderboard, tables: Sequence[Table], form: Format, *, explain: bool) -> str:
    """A comparison in a format; plain text, Markdown and LaTeX have these tables."""
    if form == "csv":
        return table_csv(board)
    if form == "json":
        return table_json(board)
    footer = [receipt_line(receipt) for receipt in board.receipt]
    if not explain and form == "text":
        footer.insert(0, "--explain adds the meaning of each column.")
    return render(tables, footer, form=form, explain=explain)


def table_json(board: Leaderboard) -> str:
    """All tables as JSON in ASCII. docs/tables.md has the schema."""
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "baseline": board.baseline,
        "contrasts": board.contrasts,
        "primary": board.primary,
        "by": board.by,
        "score": board.score,
        "clusters": board.clusters,
        "copies": board.copies,
        "seed": DEFAULT_SEED,
        "rows": records(board.comparison),
    }
    values |= {key: records(table) for key, table in board.side_tables.items()}
    values["receipt"] = board.receipt
    return json.dumps(values, indent=2, allow_nan=False, default=str)


def table_csv(board: Leaderboard) -> str:
    """The comparison as CSV with quoted strings; the receipt in lines that begin with `#`."""
    rows = board.comparison.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).rstrip("\n")
    receipts = [*board.receipt, {"score": board.score}] if board.score else board.receipt
    notes = [f"# {json.dumps(facts, sort_keys=True, default=str)}" for facts in receipts]
    return "\n".join([rows, *notes])


def _show_tables(board: Leaderboard, options: TableOptions) -> Iterator[Table]:
    """The comparison, then the side tables that are requested or always shown."""
    yield show_comparison(board)
    tables = show_side_tables(board)
    for side in SIDE_TABLES:
        if side.key in tables and (side.key in options.side_tables or not side.on_request):
            yield tables[side.key]
