"""The command `mless plot`: runs in, figures with their numbers and receipt out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas
from matplotlib.figure import Figure

from harness.analysis.leaderboard import Leaderboard, join_factors, make_leaderboard
from harness.analysis.sweeps import find_sweeps
from harness.constants import Kind
from harness.display.figures.accuracies import draw_accuracies
from harness.display.figures.completion_lengths import draw_completion_lengths, length_shares
from harness.display.figures.dose import draw_dose
from harness.display.figures.forest import draw_forest
from harness.display.figures.saving import write_figure
from harness.display.figures.style import without_contrasts, without_yardsticks
from harness.errors import ComparisonError
from harness.runs.comparable import join
from harness.runs.find_runs import locate
from harness.runs.read_run import read_run
from harness.runs.run import Run


def make_plots(
    runs: Sequence[str],
    folder: Path,
    *,
    kinds: Sequence[str] = (),
    baseline: str = "wo",
    margin: float | None = None,
    metric: str | None = None,
) -> list[Path]:
    """Draw figures of some runs: PNG, SVG, PDF and the table that is shown as CSV, each named after its kind.

    Args:
        runs: See `find_runs.locate`.
        folder: Where the files go.
        kinds: Values of `Kind`; none for all.
        baseline: The condition that others are compared with.
        margin: Equivalence margin in points; None is the default.
        metric: What in the logs of other tasks says right or wrong.

    Raises:
        ValueError: there is no such kind.
        ConfigError: the files cannot be written.
        HarnessError: the runs cannot be read or compared.
    """
    read = [read_run(run, metric=metric) for run in locate(runs)]
    whole = make_leaderboard(read, baseline=baseline, margin=margin)
    if without_yardsticks(whole.comparison)["difference"].isna().all():
        raise ComparisonError(
            f"{' '.join(runs)}: there is nothing to compare with {baseline}: expected a further condition "
            "beside it. Run one."
        )
    receipt = {
        "baseline": whole.baseline,
        "margin": float(whole.comparison["margin"].iloc[0]),
        "seed": whole.seed,
        "runs": list(whole.receipt),
    }
    files = []
    factors = join_factors(read)
    chosen = dict.fromkeys(map(Kind, kinds or (kind for kind in Kind if kind != "dose" or find_sweeps(factors))))
    if "dose" in chosen and not find_sweeps(factors):
        raise ComparisonError(
            f"{' '.join(runs)}: there is no sweep to draw: expected a filler in two lengths or more, in a run of ours. "
            "Run one with `sweep: {unit: ['/'], count: [10, 25, 40]}`."
        )
    for kind in chosen:
        draw, table = _plot(kind, read, whole, factors)
        shown = table if kind in ("forest", "dose") else without_yardsticks(table)
        figure = draw(table)
        files += write_figure(figure, shown, folder, kind, {"figure": kind, **receipt})
    return files


def _plot(
    kind: Kind,
    read: Sequence[Run],
    whole: Leaderboard,
    factors: Mapping[str, Mapping[str, Any]],
) -> tuple[Callable[..., Figure], pandas.DataFrame]:
    """What draws a kind of figure, and the table that it draws."""
    if kind == "completion-lengths":
        frame = join(read)
        return draw_completion_lengths, length_shares(frame[~frame["condition"].isin(whole.yardsticks)])
    if kind == "accuracy":
        names = dict.fromkeys(str(one.facts.get("dataset_name") or "the problems") for one in read)
        return partial(draw_accuracies, title=f"Results on {', '.join(names)}"), whole.comparison
    if kind == "dose":
        places = [{"condition": name, **of} for name, of in factors.items()]
        table = without_contrasts(whole.comparison).merge(pandas.DataFrame(places), on="condition", how="left")
        return partial(draw_dose, factors=factors), table
    return partial(draw_forest, pooled=whole.pooled), whole.comparison
