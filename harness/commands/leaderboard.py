"""`mless leaderboard`: many models, one row each."""

from __future__ import annotations

from typing import Any

import typer

from harness.commands.options import Baseline, Explain, FormatName, Margin, Metric, RunNames, SplitBy


def leaderboard(
    runs: RunNames,
    form: FormatName = "text",
    by: SplitBy = None,
    baseline: Baseline = None,
    margin: Margin = None,
    metric: Metric = None,
    explain: Explain = False,
) -> None:
    """Many models, one row each: the primary contrast whole, the other conditions as bare differences."""
    from harness.display.table_pages import make_leaderboard_page

    facts: dict[str, Any] = {"baseline": baseline, "margin": margin, "metric": metric, "explain": explain}
    typer.echo(make_leaderboard_page(runs, form=form, by=by or (), **facts))
