"""The command `mless`. A command imports its stage of the work only when it runs, so that `--help` is instant."""

from __future__ import annotations

import errno
import gc
import os
import sys
from importlib import import_module
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harness.constants import GARBAGE_OBJECTS
from harness.display.wording import visible
from harness.errors import HarnessError, RunInterrupted

GROUPS = {
    "Run": {
        "run": "mless run --model Qwen/Qwen2.5-Math-7B",
        "regrade": "mless regrade results/mine",
        "fetch": "mless fetch configs/runs/qwen2.5-math-7b-published.yaml",
    },
    "Read the result": {
        "table": "mless table results/example --mediators --audit",
        "compare": "mless compare results/example:random results/example:mless",
        "show": "mless show results/example --changed",
        "plot": "mless plot results/example --kind forest -o figures",
        "report": "mless report results/example -o report.html",
    },
    "Look into the model": {
        "probe": "mless probe results/example --flip changed --controls -o flipped.traces",
        "heads": "mless heads flipped.traces --measure mass_filler",
        "figure": "mless figure configs/figures/qwen-heads-12-13-14.yaml",
    },
    "Use lm-eval, check the installation": {
        "tasks": 'lm_eval --tasks math500_mless --include_path "$(mless tasks)" ...',
        "doctor": "mless doctor --model Qwen/Qwen2.5-Math-7B",
    },
}
"""The commands in groups, as `--help` lists them, with an example each. Each is the function of that name in a module
of that name, here or in a package that adds its own."""


class _Grouped(TyperGroup):
    """Lists the commands in their groups, each with its first sentence, whole."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, examples in GROUPS.items():
            found = {name: self.commands[name].get_short_help_str(200) for name in examples if name in self.commands}
            with formatter.section(group):
                formatter.write_dl(list(found.items()))


app = typer.Typer(
    name="mless",
    cls=_Grouped,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mless {version('mless')}")
        raise typer.Exit


@app.callback()
def mless(
    _: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Put meaningless tokens before a maths question, and measure whether the model answers better."""


def add_commands() -> None:
    """Add all commands, those of packages that build on this one too. This package must not import them.

    Entry points of the group `mless.commands` name the packages that have a module for each of their commands.
    """
    if app.registered_commands:
        return
    packages = ["harness.commands", *(entry.module for entry in entry_points(group="mless.commands"))]
    for name, example in ((name, example) for group in GROUPS.values() for name, example in group.items()):
        for package in packages:
            if find_spec(f"{package}.{name}"):
                module = import_module(f"{package}.{name}")
                app.command(epilog=f"Example: {example}")(getattr(module, name))
                break


_UNUSABLE = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
"""What the operating system raises of a path that a user gave and that cannot be what it should be."""


def main() -> None:
    """Run the command. An expected error becomes one line on stderr and exit code 2."""
    from harness.display.progress import sign_of_life

    gc.set_threshold(GARBAGE_OBJECTS)
    try:
        add_commands()
        with sign_of_life():
            app()
    except HarnessError as error:
        message = visible(" ".join(str(error).split()), keep="")  # it may quote a file or a model
        typer.echo(f"mless: {message}", err=True)
        sys.exit(130 if isinstance(error, RunInterrupted) else 2)
    except OSError as error:
        if isinstance(error, _UNUSABLE) and error.filename is not None:
            told = f"{error.filename} cannot be used: {error.strerror}. Choose another path."
        elif error.errno == errno.ENOSPC and error.filename is None:
            # what is still buffered goes nowhere: Python would try again as it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            told = "standard output is full: no space left on device. Send it elsewhere."
        else:
            raise
        typer.echo(f"mless: {told}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("mless: interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
