"""The pages that `mless table` and `mless leaderboard` print: from names of runs to text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.analysis.leaderboard import (
    Leaderboard,
    as_csv,
    as_json,
    make_leaderboard,
    records,
    task_name,
)
from harness.analysis.reference import read_reference, reference_table, setup_differences
from harness.constants import Format, Split
from harness.display import comparison_tables as shown
from harness.display.table import Table, render
from harness.errors import ConfigError, list_first
from harness.runs.read import Run, locate
from harness.runs.receipts import receipt_line
from harness.runs.same_settings import by_table


def make_table(
    runs: Sequence[str],
    *,
    form: Format = "text",
    by: Sequence[str] = (),
    baseline: str | None = None,
    margin: float | None = None,
    metric: str | None = None,
    mediators: bool = False,
    audit: bool = False,
    reference: str | None = None,
    explain: bool = True,
) -> str:
    """The page of `mless table`.

    Args:
        runs: Names of runs, as `paths.locate` takes them.
        form: Output format.
        by: Further columns to split by: values of `Split`.
        baseline: The condition that others are compared with; None for the runs' own.
        margin: Equivalence margin in points; None for the default.
        metric: The metric that tells right from wrong in logs of other tasks.
        mediators: Whether to add what else changed. A further table stands in place of the comparison in CSV.
        audit: Whether to add what other graders say.
        reference: Published numbers to add: see `read_reference`.
        explain: Whether plain text says what every column means, or only what must be known to read the verdicts.

    Raises:
        ValueError: there is no such split.
        HarnessError: the runs cannot be read or compared, or the tables asked for do not go together.
    """
    by = list(dict.fromkeys(Split(name).value for name in by))
    read = [Run.load(run, metric=metric) for run in locate(runs)]
    if form == "csv" and mediators + audit + bool(reference) > 1:
        raise ConfigError("CSV holds one table: expected one of --mediators, --audit and --reference at most.")
    if reference and by:
        raise ConfigError("--reference has numbers over all problems: expected no --by beside it. Leave one out.")
    board = make_leaderboard(read, baseline=baseline, margin=margin, by=by)
    tables = [
        shown.show_comparison(board),
        shown.show_pooled(board),
        shown.show_wordings(board),
        shown.show_texts(board),
        shown.show_sweeps(board),
        shown.show_causes(board),
    ]
    frame, further = board.comparison, dict[str, Any]()
    if mediators:
        tables.append(shown.show_mediators(board))
        frame = board.mediators
    if audit:
        tables.append(shown.show_audit(board))
        frame = board.audit
    if reference:
        published = read_reference(reference)
        frame = reference_table(board.comparison, board.audit, published, baseline=board.baseline)
        differences = setup_differences(published, board.receipt, list(board.comparison["layout"]))
        tables.append(shown.show_reference(frame, published, differences))
        said = published.model_dump(exclude={"accuracies"})
        further["reference"] = {"name": reference, **said, "rows": records(frame), "differences": differences}
    if form == "json":
        return as_json(board, **further)
    return as_csv(frame, board) if form == "csv" else _page(tables, form, explain, board)


def make_leaderboard_page(
    runs: Sequence[str],
    *,
    form: Format = "text",
    by: Sequence[str] = (),
    baseline: str | None = None,
    margin: float | None = None,
    metric: str | None = None,
    explain: bool = True,
) -> str:
    """The page of `mless leaderboard`: a table for each dataset's runs that can be compared.

    Args and Raises: see `make_table`.
    """
    by = list(dict.fromkeys(Split(name).value for name in by))
    groups = by_table([Run.load(run, metric=metric) for run in locate(runs)])
    boards = [make_leaderboard(group, baseline=baseline, margin=margin, by=by) for group in groups]
    names = [
        f"{task_name(board.receipt)}, {list_first([str(entry['name']) for entry in board.receipt])}" for board in boards
    ]
    if form == "csv" and len(boards) > 1:
        raise ConfigError(
            f"CSV holds one table: expected the runs of one, got tables of {'; '.join(names)}. Name those of one."
        )
    if form == "csv":
        return as_csv(boards[0].comparison, boards[0])
    if form == "json":
        pages = [as_json(board) for board in boards]
        return pages[0] if len(pages) == 1 else f"[{', '.join(pages)}]"
    tables: list[Table | None] = []
    for name, board in zip(names, boards, strict=True):
        first = shown.show_leaderboard(board)
        title = f"{name}: {first.title}" if len(boards) > 1 else first.title
        tables += [replace(first, title=title), shown.show_pooled(board)]
    return _page(tables, form, explain, *boards)


def show_board(board: Leaderboard, form: Format = "text", *, explain: bool = True) -> str:
    """The page of `mless compare`: the comparison alone."""
    if form == "json":
        return as_json(board)
    if form == "csv":
        return as_csv(board.comparison, board)
    return _page([shown.show_comparison(board)], form, explain, board)


def _page(tables: Sequence[Table | None], form: Format, explain: bool, *boards: Leaderboard) -> str:
    below = [receipt_line(entry) for board in boards for entry in board.receipt]
    if form == "text" and not explain:
        below.insert(0, "What each column means, and more: --explain.")
    return render([table for table in tables if table], form, below, explain=explain)
