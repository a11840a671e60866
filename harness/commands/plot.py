"""`mless plot`: figures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Baseline, Margin, Metric, RunNames
from harness.constants import DEFAULT_SEED, Kind


def plot(
    runs: RunNames,
    kind: Annotated[list[Kind] | None, typer.Option(help="Figure to draw; repeatable; default: all.")] = None,
    baseline: Baseline = None,
    margin: Margin = None,
    metric: Metric = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The figures' folder.")] = Path("figures"),
) -> None:
    """Draw accuracies, differences, lengths of completions and sweeps: PNG, SVG, PDF, the numbers as CSV.

    A sweep's figure (`--kind dose`) shows the difference against the filler's length. It needs a run of one filler in
    several lengths.
    """
    import pandas

    from harness.analysis.leaderboard import join_conditions, make_leaderboard
    from harness.analysis.sweeps import find_sweeps
    from harness.display.figures.dots import draw_accuracies, draw_causes, draw_forest, draw_wordings
    from harness.display.figures.lines import draw_completion_lengths, draw_dose, length_shares
    from harness.display.figures.style import without_contrasts, without_reference_conditions, write_figure
    from harness.errors import ComparisonError
    from harness.runs.read import Run, locate
    from harness.runs.same_settings import join

    read = [Run.load(run, metric=metric) for run in locate(runs)]
    whole = make_leaderboard(read, baseline=baseline, margin=margin)
    table, conditions = whole.comparison, join_conditions(read)
    plain = without_reference_conditions(table)
    if plain["difference"].isna().all():
        raise ComparisonError(f"{' '.join(runs)}: there is nothing to compare with {whole.baseline}.")
    receipt = {
        "baseline": whole.baseline,
        "margin": float(table["margin"].iloc[0]),
        "seed": DEFAULT_SEED,
        "runs": list(whole.receipt),
    }
    lacks = dict[Kind, str]()
    if not find_sweeps(conditions):
        lacks[Kind.DOSE] = "no filler has two lengths"
    if not len(whole.wordings):
        lacks[Kind.WORDINGS] = "no condition was asked under four instructions"
    if not len(whole.causes):
        lacks[Kind.CAUSES] = "no filler was taken apart whole"
    for one in dict.fromkeys(kind or [each for each in Kind if each not in lacks]):
        if one in lacks:
            raise ComparisonError(f"{' '.join(runs)}: {lacks[one]}, so there is no such figure to draw.")
        if one == Kind.ACCURACY:
            names = dict.fromkeys(str(each.about.get("dataset_name") or "the problems") for each in read)
            figure, shown = draw_accuracies(table, title=f"Results on {', '.join(names)}"), plain
        elif one == Kind.FOREST:
            figure, shown = draw_forest(table, pooled=whole.pooled), table
        elif one == Kind.COMPLETION_LENGTHS:
            frame = join(read)
            shown = length_shares(frame[~frame["condition"].isin(whole.reference_conditions)])
            figure = draw_completion_lengths(shown)
        elif one == Kind.WORDINGS:
            shown = whole.wordings
            figure = draw_wordings(shown)
        elif one == Kind.CAUSES:
            shown = whole.causes
            figure = draw_causes(shown)
        else:
            places = pandas.DataFrame([{"condition": name, **one.describe()} for name, one in conditions.items()])
            shown = without_contrasts(table).merge(places, on="condition", how="left")
            figure = draw_dose(shown, conditions)
        for path in write_figure(figure, shown, output, one, {"figure": one, **receipt}):
            typer.echo(f"{path.suffix[1:]:<4} {path}")
