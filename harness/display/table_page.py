"""The page of `mless table`: from the names of one run or several to text, CSV or JSON."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.analysis.result_tables import (
    Leaderboard,
    as_csv,
    as_json,
    make_leaderboard,
    records,
    task_name,
)
from harness.constants import Format, Split
from harness.display.comparison_tables import show_comparison, show_leaderboard
from harness.display.format_table import Table, render
from harness.display.published_numbers import read_reference, reference_table, show_reference
from harness.display.side_tables import SIDE_TABLES, show_side_tables
from harness.errors import ConfigError, list_first
from harness.runs.find_runs import locate
from harness.runs.join_runs import group_by_table
from harness.runs.read_runs import Run
from harness.runs.versions_and_hashes import receipt_line


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The content and the format of a page.

    Attributes:
        form: Output format.
        models: Whether each model and layout is one row, and runs that cannot be compared have
            tables of their own. Otherwise each condition is a row, and such runs are refused.
        by: Further columns to split by: values of `Split`.
        baseline: The condition that all others are compared with; None for the runs' own.
        margin: Equivalence margin in points; None for the default.
        metric: The metric that separates right from wrong in logs of other tasks.
        score: As of `compare_with_baseline.Design`.
        side_tables: Keys of side tables to add that are not shown otherwise.
        reference: Published numbers to add: see `read_reference`.
        explain: Whether plain text explains every column, or only what is needed to read the
            verdicts.
    """

    form: Format = "text"
    models: bool = False
    by: Sequence[str] = ()
    baseline: str | None = None
    margin: float | None = None
    metric: str | None = None
    score: str | None = None
    side_tables: Collection[str] = ()
    reference: str | None = None
    explain: bool = True


@dataclass(slots=True, kw_only=True)
class _Page:
    """One comparison.

    Attributes:
        board: All its data.
        tables: Its tables in text.
        reference: The published numbers in JSON, if they are requested.
    """

    board: Leaderboard
    tables: list[Table]
    reference: Mapping[str, Any] | None = None


def make_table(runs: Sequence[str], options: TableOptions) -> str:
    """The page of `mless table`.

    Args:
        runs: Names of runs, as `find_runs.locate` takes them.
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
    if options.score and (options.reference or "audit" in options.side_tables):
        raise ConfigError("--audit and --reference count single samples: use them without --score.")
    loaded_runs = [Run.load(run, metric=options.metric) for run in locate(runs)]
    groups = group_by_table(loaded_runs) if options.models else [loaded_runs]
    pages = [_make_page(group, options) for group in groups]
    if len(pages) > 1:
        names = [_name_page(page.board) for page in pages]
        if options.form == "csv":
            raise ConfigError(
                "CSV has one table: expected runs that form one table, "
                f"got tables of {'; '.join(names)}."
            )
        for name, page in zip(names, pages, strict=True):
            table = page.tables[0]
            page.tables[0] = replace(table, title=f"{name}: {table.title}")
    return _write(pages, options.form, explain=options.explain)


def show_board(board: Leaderboard, form: Format = "text", *, explain: bool = True) -> str:
    """The page of `mless compare`: the comparison alone."""
    page = _Page(board=board, tables=[show_comparison(board)])
    return _write([page], form, explain=explain)


def _make_page(runs: Sequence[Run], options: TableOptions) -> _Page:
    splits = list(dict.fromkeys(Split(name).value for name in options.by))
    board = make_leaderboard(
        runs,
        baseline=options.baseline,
        margin=options.margin,
        by=splits,
        score=options.score,
    )
    table = show_leaderboard(board) if options.models else show_comparison(board)
    page = _Page(board=board, tables=[table])
    tables = show_side_tables(board)
    for side in SIDE_TABLES:
        is_requested = side.key in options.side_tables
        # A leaderboard shows only the side tables that are about all models together.
        is_hidden = side.on_request or (options.models and "model" in side.words)
        if side.key in tables and (is_requested or not is_hidden):
            page.tables.append(tables[side.key])
    if options.reference:
        _add_reference(page, options.reference)
    return page


def _add_reference(page: _Page, name: str) -> None:
    """Add published numbers."""
    published = read_reference(name)
    table = reference_table(page.board.comparison, published)
    page.tables.append(show_reference(table, published))
    facts = published.model_dump(exclude={"accuracies"})
    page.reference = {"name": name, **facts, "rows": records(table)}


def _name_page(board: Leaderboard) -> str:
    """The dataset and the runs."""
    runs = [str(receipt["name"]) for receipt in board.receipt]
    return f"{task_name(board.receipt)}, {list_first(runs)}"


def _write(pages: Sequence[_Page], form: Format, *, explain: bool) -> str:
    if form == "csv":
        (page,) = pages
        return as_csv(page.board)
    if form == "json":
        texts = [as_json(page.board, page.reference) for page in pages]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    tables: list[Table] = []
    footer = []
    for page in pages:
        tables += page.tables
        footer += [receipt_line(receipt) for receipt in page.board.receipt]
    if not explain:
        footer.insert(0, "--explain adds the meaning of each column.")
    return render(tables, footer, explain=explain)
