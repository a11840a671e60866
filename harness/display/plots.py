"""Figures of runs, as `mless plot` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas
from matplotlib.figure import Figure

from harness.analysis.leaderboard import join_factors, make_leaderboard
from harness.analysis.sweeps import find_sweeps
from harness.constants import BASELINE, Kind
from harness.display.figures.dots import draw_accuracies, draw_forest
from harness.display.figures.ecdf import draw_completion_lengths, length_shares
from harness.display.figures.lines import draw_dose
from harness.display.figures.style import without_contrasts, without_yardsticks, write_figure
from harness.errors import ComparisonError
from harness.runs.paths import locate
from harness.runs.read import Run
from harness.runs.same_settings import join


def make_plots(
    runs: Sequence[str],
    folder: Path,
    *,
    kinds: Sequence[Kind] = (),
    baseline: str = BASELINE,
    margin: float | None = None,
    metric: str | None = None,
) -> list[Path]:
    """Draw figures of some runs: PNG, SVG, PDF and the table that is shown as CSV, each named after its kind.

    Args:
        runs: See `paths.locate`.
        folder: Where the files go.
        kinds: None for all.
        baseline: The condition that others are compared with.
        margin: Equivalence margin in points; None is the default.
        metric: What in the logs of other tasks says right or wrong.

    Raises:
        ConfigError: the files cannot be written.
        HarnessError: the runs cannot be read or compared.
    """
    read = [Run.load(run, metric=metric) for run in locate(runs)]
    whole = make_leaderboard(read, baseline=baseline, margin=margin)
    table, factors = whole.comparison, join_factors(read)
    plain = without_yardsticks(table)
    if plain["difference"].isna().all():
        raise ComparisonError(f"{' '.join(runs)}: there is nothing to compare with {baseline}.")

    def accuracy() -> tuple[Figure, pandas.DataFrame]:
        names = dict.fromkeys(str(one.about.get("dataset_name") or "the problems") for one in read)
        return draw_accuracies(table, title=f"Results on {', '.join(names)}"), plain

    def forest() -> tuple[Figure, pandas.DataFrame]:
        return draw_forest(table, pooled=whole.pooled), table

    def completion_lengths() -> tuple[Figure, pandas.DataFrame]:
        frame = join(read)
        shares = length_shares(frame[~frame["condition"].isin(whole.yardsticks)])
        return draw_completion_lengths(shares), shares

    def dose() -> tuple[Figure, pandas.DataFrame]:
        if not find_sweeps(factors):
            raise ComparisonError(f"{' '.join(runs)}: no filler has two lengths or more, so there is no sweep to draw.")
        places = pandas.DataFrame([{"condition": name, **of} for name, of in factors.items()])
        swept = without_contrasts(table).merge(places, on="condition", how="left")
        return draw_dose(swept, factors), swept

    drawers: dict[Kind, Callable[[], tuple[Figure, pandas.DataFrame]]] = {
        Kind.ACCURACY: accuracy,
        Kind.FOREST: forest,
        Kind.COMPLETION_LENGTHS: completion_lengths,
        Kind.DOSE: dose,
    }
    receipt = {
        "baseline": whole.baseline,
        "margin": float(table["margin"].iloc[0]),
        "seed": whole.seed,
        "runs": list(whole.receipt),
    }
    files = []
    for kind in dict.fromkeys(kinds or [kind for kind in Kind if kind != Kind.DOSE or find_sweeps(factors)]):
        figure, shown = drawers[kind]()
        files += write_figure(figure, shown, folder, kind, {"figure": kind, **receipt})
    return files
