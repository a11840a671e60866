"""The commands `mless table` and `mless leaderboard`: runs in, a page of tables out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError
from harness.evaluations import Evaluation, read_evaluation
from harness.grid import Grid
from harness.grids import comparison_grid, leaderboard_grid
from harness.leaderboard import Leaderboard, accuracy_table, as_csv, as_json, make_leaderboard, records
from harness.receipts import receipt_line
from harness.reference import read_reference, reference_table, setup_differences
from harness.rendering import Format, check_format, render_grids
from harness.run_folder import RECEIPT
from harness.side_grids import audit_grid, mediator_grid, plain_grid, reference_grid

SPLITS = ("subject", "level")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which tables to show beside the comparison; for CSV, which to show instead."""

    mediators: bool = False
    audit: bool = False
    reference: str | None = None


def make_table(
    runs: Sequence[str],
    *,
    form: str = "text",
    by: Sequence[str] = (),
    baseline: str = "wo",
    margin: float | None = None,
    metric: str | None = None,
    parts: Parts | None = None,
    lenient: bool = False,
) -> str:
    """The page of `mless table`.

    Args:
        runs: Run folders, lm-eval's output folders or sample logs; `CONDITION=FILE` names a log's condition, and all
            that are named so are one run.
        form: One of `rendering.FORMATS`.
        by: Further columns to split by, of `SPLITS`.
        baseline: The condition that others are compared with.
        margin: Equivalence margin in points; None is the default.
        metric: What in the logs of other tasks says right or wrong.
        parts: Further tables.
        lenient: Where the runs have no baseline, show accuracies alone instead of refusing.

    Raises:
        HarnessError: the runs cannot be read or compared, or an argument is not known.
    """
    chosen, parts = check_format(form), parts or Parts()
    _check_splits(by)
    evaluations = _read(runs, metric)
    if lenient and not all((one.frame["condition"] == baseline).any() for one in evaluations):
        frame = evaluations[0].frame
        return render_grids([plain_grid(accuracy_table(frame))], "text")
    published = None if parts.reference is None else read_reference(parts.reference)
    if published is not None and by:
        raise ConfigError("--reference has numbers over all problems: expected no --by beside it. Leave one out.")
    board = make_leaderboard(evaluations, baseline=baseline, margin=margin, by=by)
    beside = None
    if published is not None:
        beside = reference_table(board.comparison, board.audit, published, receipts=board.receipt, baseline=baseline)
        differences = setup_differences(published, board.receipt, list(board.comparison["layout"]))
    if chosen == "json":
        if published is None or beside is None:
            return as_json(board)
        said = {**published.model_dump(exclude={"accuracies"}), "rows": records(beside), "differences": differences}
        return as_json(board, reference={"name": parts.reference, **said})
    if chosen == "csv":
        tables = {"--mediators": board.mediators, "--audit": board.audit, "--reference": beside}
        asked = [name for name in tables if getattr(parts, name.removeprefix("--"))]
        if len(asked) > 1:
            raise ConfigError(
                f"CSV holds one table: expected at most one of {', '.join(tables)}, got {' and '.join(asked)}."
            )
        table = tables[asked[0]] if asked else board.comparison
        assert table is not None
        return as_csv(table, board)
    grids = [comparison_grid(board)]
    grids += [mediator_grid(board)] if parts.mediators else []
    grids += [audit_grid(board)] if parts.audit else []
    if published is not None and beside is not None:
        grids.append(reference_grid(beside, published, differences))
    return _page(grids, chosen, board)


def make_leaderboard_page(
    runs: Sequence[str],
    *,
    form: str = "text",
    by: Sequence[str] = (),
    baseline: str = "wo",
    margin: float | None = None,
    metric: str | None = None,
) -> str:
    """The page of `mless leaderboard`: a folder that is no run stands for the finished runs in it.

    Args and Raises: see `make_table`.
    """
    chosen = check_format(form)
    _check_splits(by)
    found = [str(path) for run in runs for path in _expand(run)]
    board = make_leaderboard(_read(found, metric), baseline=baseline, margin=margin, by=by)
    if chosen == "json":
        return as_json(board)
    if chosen == "csv":
        return as_csv(board.comparison, board)
    return _page([leaderboard_grid(board)], chosen, board)


def _page(grids: Sequence[Grid], form: Format, board: Leaderboard) -> str:
    return render_grids(grids, form, [receipt_line(entry) for entry in board.receipt], colour=sys.stdout.isatty())


def locate(runs: Sequence[str]) -> list[Path | dict[str, Path]]:
    """Where runs lie that are named on the command line; sample logs named by condition are one run together.

    Raises:
        ConfigError: a condition is named twice.
    """
    named: dict[str, Path] = {}
    found: list[Path | dict[str, Path]] = []
    for run in runs:
        condition, equals, file = run.partition("=")
        if not equals or Path(run).exists():
            found.append(Path(run))
        elif condition in named:
            raise ConfigError(
                f"{run}: the condition {condition!r} has a log already, {named[condition]}. Name each once."
            )
        else:
            named[condition] = Path(file)
    return [*found, named] if named else found


def _read(runs: Sequence[str], metric: str | None) -> list[Evaluation]:
    return [read_evaluation(run, metric=metric) for run in locate(runs)]


def _expand(run: str) -> list[Path | str]:
    """The run itself, or the finished runs in a folder of runs."""
    path = Path(run)
    inside = sorted(receipt.parent for receipt in path.glob(f"*/{RECEIPT}")) if path.is_dir() else []
    return [run] if not inside or (path / RECEIPT).is_file() else list(inside)


def _check_splits(by: Sequence[str]) -> None:
    if unknown := [name for name in by if name not in SPLITS]:
        raise ConfigError(f"--by expects {' or '.join(SPLITS)}, got {unknown[0]!r}.")
