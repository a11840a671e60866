"""`mless report`: runs and traces of their prompts as one page."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Baseline, Margin, Metric, RunNames
from harness.constants import MARGIN


def report(
    runs: RunNames,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            help="Traces of these runs' prompts; repeatable; default: those that the runs recorded."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path(
        "report.html"
    ),
    baseline: Baseline = None,
    margin: Margin = MARGIN,
    metric: Metric = None,
) -> None:
    """Write one HTML file about runs: results, figures, tables, all samples, attention."""
    from harness.display.report.attention_view import PAGE_BYTES
    from harness.display.report.report_page import write_report
    from harness.runs.find_runs import locate
    from harness.runs.run_files import RECORDED

    # by name, because this package must not import the probe
    read_view = import_module("attention_probe.figures.trace_views").read_view
    paths = locate(runs)
    if not traces:
        recorded_traces = [path / RECORDED for path in paths if isinstance(path, Path)]
        traces = [path for path in recorded_traces if path.is_dir()]
    views = [read_view(path, PAGE_BYTES) for path in traces]
    size = write_report(
        paths, output, attention=views, baseline=baseline, margin=margin, metric=metric
    )
    typer.echo(f"report  {output} ({size / 1e6:.1f} MB)")
