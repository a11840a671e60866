"""`mless report`: runs and traces of their prompts as one page."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.commands.options import Baseline, Margin, Metric, RunNames
from harness.constants import Definition


def report(
    runs: RunNames,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            help="Traces of these runs' prompts; repeatable; default: what they recorded."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path(
        "report.html"
    ),
    baseline: Baseline = None,
    margin: Margin = None,
    metric: Metric = None,
    layer: Annotated[
        int | None, typer.Option(help="Counted from 1; default: the first of the traces.")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option(help="Counted from 1; repeatable; default: all.")
    ] = None,
    definition: Annotated[
        Definition, typer.Option(help="Queries that the attention curves average over.")
    ] = "common",
) -> None:
    """Write one HTML file about runs: the answer, figures, tables, every sample, attention curves; no network."""
    from harness.display.report.report_page import write_report
    from harness.runs.read_runs import locate
    from harness.runs.run_folder import RECORDED

    # the probe's, which this package must not import, only name
    read_attention = import_module("attention_probe.figures.trace_figures").read_attention
    chosen = head and list(dict.fromkeys(head))
    found = locate(runs)
    own = [run / RECORDED for run in found if isinstance(run, Path)]
    shown = traces or [path for path in own if path.is_dir()]
    curves = [
        read_attention(path, layer=layer, heads=chosen, definition=definition) for path in shown
    ]
    given: dict[str, Any] = {"baseline": baseline, "margin": margin, "metric": metric}
    size = write_report(found, output, attention=curves, **given)
    typer.echo(f"report  {output} ({size / 1e6:.1f} MB)")
