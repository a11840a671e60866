"""`mless doctor`: check the installation."""

import typer


def doctor() -> None:
    """Check the installation, and name the fix for each check that fails."""
    from harness.display.comparison_columns import text_column
    from harness.display.printed_tables import Table, render
    from harness.installation import check_installation

    checks = check_installation()
    columns = [*map(text_column, ("result", "subject", "found"))]
    rows = [
        {"result": check.result, "subject": check.subject, "found": check.state} for check in checks
    ]
    # several checks may need the same packages
    fixes = [*dict.fromkeys(check.fix for check in checks if check.fix)]
    typer.echo(render([Table("Installation", rows, columns, fixes)]))
    if any(check.result == "FAIL" for check in checks):
        raise typer.Exit(2)
