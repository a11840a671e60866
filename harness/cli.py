"""The command `mless`. A command imports its stage of the work only when it runs, so that `--help` is instant."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import entry_points

import typer

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

COMMANDS = "run merge regrade pack table leaderboard plot flips report export tasks doctor verify fetch".split()
"""The commands as `--help` lists them. Each is the function of that name in the module of that name in `commands`."""

for name in COMMANDS:
    app.command()(getattr(import_module(f"harness.commands.{name}"), name))


def add_commands() -> None:
    """Add the commands of packages that build on this one. This package must not import them.

    They are found by entry points of the group `mless.commands`: functions that take the typer app.
    """
    for entry in sorted(entry_points(group="mless.commands"), key=lambda entry: entry.name):
        entry.load()(app)


def main() -> None:
    """Run the command. An expected error becomes one line on stderr and exit code 2."""
    try:
        add_commands()
        app()
    except HarnessError as error:
        message = visible(" ".join(str(error).split()), keep="")  # it may quote a file or a model
        typer.echo(f"mless: {message}", err=True)
        sys.exit(130 if isinstance(error, RunInterrupted) else 2)
    except KeyboardInterrupt:
        typer.echo("mless: interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
