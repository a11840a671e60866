"""`mless report`: runs as one page."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Baseline, MetricName, RunNames


def report(
    runs: RunNames,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path(
        "report.html"
    ),
    baseline: Baseline = None,
    metric: MetricName = None,
) -> None:
    """Write one HTML file about runs: results, figures, tables, all samples."""
    from harness.display.report.report_page import write_report
    from harness.runs.run_paths import locate_runs

    byte_count = write_report(locate_runs(runs), output, baseline=baseline, metric=metric)
    typer.echo(f"report  {output} ({byte_count / 1e6:.1f} MB)")
