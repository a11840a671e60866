"""The command `mless`. Heavy imports wait until a command needs them, so that `--help` is instant."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points

import typer

from harness.commands.doctor import doctor
from harness.commands.export import export
from harness.commands.fetch import fetch
from harness.commands.flips import flips
from harness.commands.leaderboard import leaderboard
from harness.commands.merge import merge
from harness.commands.pack import pack
from harness.commands.plot import plot
from harness.commands.regrade import regrade
from harness.commands.report import report
from harness.commands.run import run
from harness.commands.table import table
from harness.commands.tasks import tasks
from harness.commands.verify import verify
from harness.display.visible import visible
from harness.errors import HarnessError, RunInterrupted

app = typer.Typer(
    name="mless",
    help="Put meaningless tokens before a maths question, and measure honestly whether the model answers better.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ORDER: list[Callable[..., None]] = [
    run,
    merge,
    regrade,
    pack,
    table,
    leaderboard,
    plot,
    flips,
    report,
    export,
    tasks,
    doctor,
    verify,
    fetch,
]
"""The commands as `--help` lists them."""

for command in ORDER:
    app.command()(command)


def add_commands() -> None:
    """Add the commands of packages that build on this one, which it must not import.

    An entry point of the group `mless.commands` is a function that takes the typer app.
    """
    for entry in sorted(entry_points(group="mless.commands"), key=lambda entry: entry.name):
        entry.load()(app)


def main() -> None:
    """Run the command; an expected error is one line on stderr and exit code 2."""
    try:
        add_commands()
        app()
    except HarnessError as error:
        told = visible(" ".join(str(error).split()), keep="")  # it may quote what a file or a model says
        typer.echo(f"mless: {told}", err=True)
        sys.exit(130 if isinstance(error, RunInterrupted) else 2)
    except KeyboardInterrupt:
        typer.echo("mless: interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
