"""`mless heads`: look at the attention of single heads and tokens."""

from pathlib import Path
from typing import Annotated

import typer


def heads(
    traces: Annotated[
        list[Path], typer.Argument(help="Folders of traces, as `mless probe` writes them.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path(
        "attention.html"
    ),
) -> None:
    """Write one HTML file in which you choose a head and see which tokens it attends to."""
    from attention_probe.figures.trace_views import read_view
    from harness.display.report.attention_view import make_page
    from harness.display.report.page_template import prepare_page_file
    from harness.runs.stored_files import explain_write_errors, write_whole

    prepare_page_file(output)
    page = make_page([read_view(path) for path in traces])
    with explain_write_errors(output):
        write_whole(output, page)
    typer.echo(f"page  {output} ({len(page.encode()) / 1e6:.1f} MB)")
