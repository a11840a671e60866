"""The command `mless plot`: runs in, figures with their numbers and receipt out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.leaderboard import Leaderboard, make_leaderboard
from harness.choices import Kind, Width
from harness.display.figures.bars import draw_accuracy_bars
from harness.display.figures.flip_matrix import draw_flip_matrix
from harness.display.figures.forest import draw_forest
from harness.display.figures.lengths import draw_lengths, length_shares
from harness.display.figures.saving import save_figure
from harness.display.figures.splits import draw_split_differences
from harness.display.figures.style import without_edits
from harness.errors import ComparisonError, ConfigError
from harness.runs.comparable import join
from harness.runs.find_runs import locate
from harness.runs.read_run import read_run
from harness.runs.run import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plot:
    """A figure to be drawn, its table, and whether it shows the prompt null."""

    draw: Callable[..., Figure]
    table: pandas.DataFrame
    edits: bool = False

    @property
    def shown(self) -> pandas.DataFrame:
        """The rows that the figure shows."""
        return self.table if self.edits else without_edits(self.table)


def make_plots(
    runs: Sequence[str],
    folder: Path,
    *,
    kinds: Sequence[str] = (),
    width: Width = "page",
    baseline: str = "wo",
    margin: float | None = None,
    metric: str | None = None,
) -> list[Path]:
    """Draw figures of some runs: PNG, SVG, PDF and the table that is shown as CSV, each named after its kind.

    Args:
        runs: See `find_runs.locate`.
        folder: Where the files go.
        kinds: Values of `Kind`; none for all.
        width: `page` is 7 inches, `column` 3.3, which the names of the files then say.
        baseline: The condition that others are compared with.
        margin: Equivalence margin in points; None is the default.
        metric: What in the logs of other tasks says right or wrong.

    Raises:
        ValueError: there is no such kind.
        ConfigError: the files cannot be written.
        HarnessError: the runs cannot be read or compared.
    """
    read = [read_run(run, metric=metric) for run in locate(runs)]
    board = partial(make_leaderboard, read, baseline=baseline, margin=margin)
    whole = board()
    if whole.comparison["difference"].isna().all():
        raise ComparisonError(
            f"{' '.join(runs)}: there is nothing to compare with {baseline}: expected a further condition "
            "beside it. Run one, or merge the runs that hold them."
        )
    files = []
    for kind in dict.fromkeys(map(Kind, kinds or Kind)):
        plot = _plot(kind, read, whole, board)
        stem = kind if width == "page" else f"{kind}-column"
        files += _write(plot, folder / stem, width, _receipt(kind, whole))
    return files


def _plot(kind: Kind, read: Sequence[Run], whole: Leaderboard, board: Callable[..., Leaderboard]) -> Plot:
    if kind in ("levels", "subjects"):
        by = kind.removesuffix("s")
        return Plot(draw=partial(draw_split_differences, by=by), table=board(by=(by,)).comparison)
    if kind == "lengths":
        frame = join(read)
        return Plot(draw=draw_lengths, table=length_shares(frame[~frame["condition"].isin(whole.edits)]))
    if kind == "bars":
        names = dict.fromkeys(str(one.facts.get("dataset_name") or "the problems") for one in read)
        title = f"Results on {', '.join(names)}"
        return Plot(draw=partial(draw_accuracy_bars, title=title), table=whole.comparison)
    if kind == "flips":
        return Plot(draw=draw_flip_matrix, table=whole.comparison)
    return Plot(draw=draw_forest, table=whole.comparison, edits=True)


def _write(plot: Plot, path: Path, width: Width, receipt: dict[str, Any]) -> list[Path]:
    figure = plot.draw(plot.table, width=width)
    numbers = path.with_name(f"{path.name}.csv")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files = save_figure(figure, path, receipt, formats=("png", "svg", "pdf"), dpi=300)
        plot.shown.to_csv(numbers, index=False)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be written: {error.strerror}. Choose another folder.") from None
    return [*files, numbers]


def _receipt(kind: str, board: Leaderboard) -> dict[str, Any]:
    receipt = {
        "figure": kind,
        "baseline": board.baseline,
        "margin": float(board.comparison["margin"].iloc[0]),
        "seed": board.seed,
        "runs": list(board.receipt),
    }
    plain: dict[str, Any] = json.loads(json.dumps(receipt, default=str))
    return plain
