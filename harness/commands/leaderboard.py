"""`mless leaderboard`: many models, one row each."""

from __future__ import annotations

import typer

from harness.commands.options import Baseline, FormatName, Margin, Metric, RunNames, SplitBy


def leaderboard(
    runs: RunNames,
    form: FormatName = "text",
    by: SplitBy = None,
    baseline: Baseline = None,
    margin: Margin = None,
    metric: Metric = None,
) -> None:
    """Many models, one row each: the primary contrast whole, the other conditions as bare differences."""
    from harness.display.table_pages import make_leaderboard_page

    typer.echo(make_leaderboard_page(runs, form=form, by=by or (), baseline=baseline, margin=margin, metric=metric))
