"""`mless report`: runs and traces of their prompts as one page."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Baseline, Metric, RunNames


def report(
    runs: RunNames,
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="Traces of these runs' prompts, as `mless probe` writes; repeatable."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path(
        "report.html"
    ),
    baseline: Baseline = None,
    metric: Metric = None,
) -> None:
    """Write one HTML file about runs: results, figures, tables, all samples, attention."""
    from attention_probe.figures.trace_views import read_view
    from harness.display.report.attention_view import PAGE_BYTES
    from harness.display.report.report_page import write_report
    from harness.runs.run_paths import locate

    paths = locate(runs)
    views = [read_view(path, PAGE_BYTES) for path in traces or ()]
    size = write_report(paths, output, attention=views, baseline=baseline, metric=metric)
    typer.echo(f"report  {output} ({size / 1e6:.1f} MB)")
