"""`mless doctor`: check the installation, and with `--model` a model on this machine."""

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="Also run ten problems, an intervention and a recorded prompt with this model: "
            "folder, hub name, or smollm2."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="With --model: the page for an issue.")
    ] = Path("doctor.md"),
) -> None:
    """Check the installation, and name the fix for each check that fails."""
    from harness.display.comparison_columns import text_column
    from harness.display.printed_tables import Table, render
    from harness.installation import check_installation

    checks = check_installation()
    rows = [
        {"result": check.result, "subject": subject, "found": check.state}
        for subject, check in checks.items()
    ]
    # without repetitions, as several checks can need the same packages
    fixes = [*dict.fromkeys(check.fix for check in checks.values() if check.fix)]
    page = render([Table("Installation", rows, [*map(text_column, rows[0])], fixes)])
    typer.echo(page)
    has_failed = any(check.result == "FAIL" for check in checks.values())
    if model and not has_failed:
        from attention_probe.model_check import check_model

        report, has_failed = check_model(model)
        typer.echo(f"\n{report}")
        output.write_text(f"```\n{page}\n\n{report}\n```\n", "utf-8")
        typer.echo(f"page    {output}")
    if has_failed:
        raise typer.Exit(2)
