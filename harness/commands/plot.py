"""`mless plot`: figures of runs."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Baseline, Columns, MetricName, RunNames, ScoreName
from harness.constants import DEFAULT_SEED, FigureKind


def plot(
    runs: RunNames,
    kind: Annotated[
        list[FigureKind] | None, typer.Option(help="Figure to draw; repeatable; default: all.")
    ] = None,
    baseline: Baseline = None,
    metric: MetricName = None,
    columns: Columns = None,
    score: ScoreName = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the figures.")] = Path(
        "figures"
    ),
) -> None:
    """Draw figures of differences and sweeps; their numbers are in CSV files.

    `--kind dose` shows the difference against the length of the filler. It needs a run with several
    lengths of one filler.
    """
    from harness.analysis.result_tables import make_leaderboard
    from harness.analysis.sample_scores import NUMBER
    from harness.display.figures.figure_kinds import draw_figures
    from harness.display.figures.figure_style import write_figure
    from harness.errors import ConfigError
    from harness.runs.joined_runs import load_runs

    loaded_runs = load_runs(runs, metrics=[metric], columns=columns)
    board = make_leaderboard(loaded_runs, baseline=baseline, score=score)
    if board.score == NUMBER:
        raise ConfigError("Figures have percentages: expected scores from 0 to 1.")
    receipt = {
        "baseline": board.baseline,
        "score": board.score,
        "seed": DEFAULT_SEED,
        "runs": list(board.receipts),
    }
    for figure_name, (figure, figure_numbers) in draw_figures(board, loaded_runs, kind or []):
        for path in write_figure(
            figure, figure_numbers, output, figure_name, {"figure": figure_name, **receipt}
        ):
            typer.echo(f"{path.suffix[1:]:<4} {path}")
