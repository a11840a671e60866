"""The page of `mless table`: from one run or several to text, CSV or JSON."""

import csv
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.result_tables import Leaderboard, make_leaderboard, records
from harness.constants import DEFAULT_SEED, Format, Split
from harness.display.comparison_tables import show_comparison, show_leaderboard
from harness.display.format_table import Table, render
from harness.display.published_numbers import read_reference, reference_table, show_reference
from harness.display.side_tables import SIDE_TABLES, show_side_tables
from harness.errors import ConfigError
from harness.runs.read_runs import Run
from harness.runs.versions_and_hashes import receipt_line

SCHEMA = "mless-table/2"
"""Name and version of the JSON that `table_json` writes: docs/tables.md."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The content and the format of a page.

    Attributes:
        form: Output format.
        models: Whether each model and layout is one row. Otherwise each condition is a row.
        by: Further columns to split by: values of `Split`.
        baseline: The condition that all others are compared with; None for the runs' own.
        score: See `compare_with_baseline.Design`.
        side_tables: Keys of side tables to add that are not shown otherwise.
        reference: Published numbers to add: see `read_reference`.
        explain: Whether plain text explains every column, or only what is needed to read the
            verdicts.
    """

    form: Format = "text"
    models: bool = False
    by: Sequence[str] = ()
    baseline: str | None = None
    score: str | None = None
    side_tables: Collection[str] = ()
    reference: str | None = None
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
    if options.form == "csv" and (options.side_tables or options.reference):
        raise ConfigError(
            "CSV has only the comparison: use --mediators, --audit and --reference with text or "
            "JSON."
        )
    if options.reference and options.by:
        raise ConfigError("--reference has numbers for all problems together: use it without --by.")
    board = make_leaderboard(
        runs,
        baseline=options.baseline,
        by=list(dict.fromkeys(Split(name).value for name in options.by)),
        score=options.score,
    )
    if board.score and (options.reference or "audit" in options.side_tables):
        raise ConfigError(
            f"--audit and --reference count single right samples, which {board.score} does not."
        )
    tables = [*_show_tables(board, options)]
    reference = None
    if options.reference:
        published = read_reference(options.reference)
        numbers = reference_table(board.comparison, published)
        tables.append(show_reference(numbers, published))
        facts = published.model_dump(exclude={"accuracies"})
        reference = {"name": options.reference, **facts, "rows": records(numbers)}
    return write_board(board, tables, options.form, explain=options.explain, reference=reference)


def write_board(
    board: Leaderboard,
    tables: Sequence[Table],
    form: Format,
    *,
    explain: bool,
    reference: Mapping[str, Any] | None = None,
) -> str:
    """A comparison in a format: as text with these tables, as JSON with published numbers."""
    if form == "csv":
        return table_csv(board)
    if form == "json":
        return table_json(board, reference)
    footer = [receipt_line(receipt) for receipt in board.receipt]
    if not explain:
        footer.insert(0, "--explain adds the meaning of each column.")
    return render(tables, footer, explain=explain)


def table_json(board: Leaderboard, reference: Mapping[str, Any] | None = None) -> str:
    """All tables as JSON in ASCII, with published numbers. docs/tables.md has the schema."""
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
    if reference:
        values["reference"] = reference
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
    yield show_leaderboard(board) if options.models else show_comparison(board)
    tables = show_side_tables(board)
    for side in SIDE_TABLES:
        is_requested = side.key in options.side_tables
        # A leaderboard stays short: tables with rows for every model are shown only on request.
        is_hidden = side.on_request or (options.models and "model" in side.words)
        if side.key in tables and (is_requested or not is_hidden):
            yield tables[side.key]
