"""The command `mless`. A command imports its stage when it runs, so that `--help` is fast."""

import errno
import gc
import os
import re
import sys
from importlib import import_module
from importlib.metadata import version
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from harness.display.format_values import visible
from harness.errors import HarnessError, RunInterrupted

GARBAGE_OBJECTS = 100_000
"""New objects before Python searches for cycles. With its default of 700 a leaderboard takes a
sixth longer."""


class Command(NamedTuple):
    """A command: the function that has the name of its module.

    Attributes:
        group: The heading under which `--help` lists it.
        module: The module's full name. Only here `harness` names the probe.
        example: A call of the command.
    """

    group: str
    module: str
    example: str

    @property
    def name(self) -> str:
        """The word that a user types after `mless`."""
        return self.module.rpartition(".")[2]


_RUN, _READ, _MODEL = "Run", "Read the result", "Look into the model"
_INSTALLATION = "Use lm-eval, check the installation"
COMMANDS = (
    Command(_RUN, "harness.commands.run", "mless run --model Qwen/Qwen2.5-Math-7B"),
    Command(_RUN, "harness.commands.study", "mless study smollm2 Qwen/Qwen2.5-Math-7B --limit 40"),
    Command(_RUN, "harness.commands.regrade", "mless regrade results/mine"),
    Command(
        _RUN, "harness.commands.fetch", "mless fetch configs/runs/qwen2.5-math-7b-published.yaml"
    ),
    Command(_READ, "harness.commands.table", "mless table results/example --mediators --audit"),
    Command(
        _READ,
        "harness.commands.compare",
        "mless compare results/example:random results/example:mless",
    ),
    Command(_READ, "harness.commands.show", "mless show results/example --changed"),
    Command(_READ, "harness.commands.plot", "mless plot results/example --kind forest -o figures"),
    Command(
        _READ, "attention_probe.commands.report", "mless report results/example -o report.html"
    ),
    Command(_READ, "harness.commands.export", "mless export results/example -o logs"),
    Command(
        _MODEL,
        "attention_probe.commands.probe",
        "mless probe results/example --flip changed --controls -o flipped.traces",
    ),
    Command(
        _MODEL,
        "attention_probe.commands.attention",
        "mless attention flipped.traces -o page.html",
    ),
    Command(
        _MODEL,
        "attention_probe.commands.figure",
        "mless figure configs/figures/qwen-heads-12-13-14.yaml",
    ),
    Command(
        _INSTALLATION,
        "harness.commands.tasks",
        'lm_eval --tasks math500_mless --include_path "$(mless tasks)" ...',
    ),
    Command(_INSTALLATION, "harness.commands.doctor", "mless doctor"),
)
"""All commands, in the order of `--help`."""


class _Grouped(TyperGroup):
    """Lists the commands in groups, with their full first sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, commands in groupby(COMMANDS, key=attrgetter("group")):
            rows = [
                (command.name, self.commands[command.name].get_short_help_str(200))
                for command in commands
            ]
            with formatter.section(group):
                formatter.write_dl(rows)


app = typer.Typer(
    name="mless",
    cls=_Grouped,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"mless {version('mless')}")
        raise typer.Exit


@app.callback()
def mless(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Put meaningless tokens before a maths question, and measure the change in accuracy."""


for command in COMMANDS:
    # All are imported at every start, so the module of a command imports nothing heavy at its top.
    function = getattr(import_module(command.module), command.name)
    app.command(epilog=f"Example: {command.example}")(function)

_UNUSABLE = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
"""Errors of the operating system about a path from the user that is of the wrong kind."""


def main() -> None:
    """Run the command. An expected error becomes one line on stderr and exit code 2."""
    from harness.display.progress import sign_of_life

    gc.set_threshold(GARBAGE_OBJECTS)
    try:
        with sign_of_life():
            # shells leave the `~` of `--output=~/x` as it is
            home = rf"\1{Path.home()}"
            app([re.sub(r"^(--[\w-]+=)~(?=/|$)", home, text) for text in sys.argv[1:]])
    except HarnessError as error:
        # it may quote a file or a model, whose hidden characters could change the terminal
        message = visible(" ".join(str(error).split()), keep="")
        typer.echo(f"mless: {message}", err=True)
        sys.exit(130 if isinstance(error, RunInterrupted) else 2)
    except OSError as error:
        if isinstance(error, _UNUSABLE) and error.filename is not None:
            message = f"{error.filename} cannot be used: {error.strerror}. Choose another path."
        elif error.errno == errno.ENOSPC and error.filename is None:
            # Python writes its buffer again when it exits, so the buffer goes to nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            message = "standard output is full: no space left on device. Redirect it elsewhere."
        else:
            raise
        typer.echo(f"mless: {message}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("mless: interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
