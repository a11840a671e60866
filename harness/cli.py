"""The command `mless`. A command imports its stage when it runs, so that `--help` is fast."""

import errno
import gc
import os
import re
import signal
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harness.display.value_texts import visible
from harness.errors import HarnessError, RunInterrupted, print_message

OBJECTS_BEFORE_COLLECTION = 100_000
"""The number of new objects before Python searches for cycles. With its default of 700 a
leaderboard takes a sixth longer."""


COMMANDS = {
    "Run": {
        "harness.commands.run": "mless run --model Qwen/Qwen2.5-Math-7B",
        "harness.commands.regrade": "mless regrade results/mine",
        "harness.commands.fetch": "mless fetch smollm2",
    },
    "Read the result": {
        "harness.commands.table": "mless table results/example --mediators --audit",
        "harness.commands.compare": "mless compare results/example:random results/example:mless",
        "harness.commands.show": "mless show results/example 4x7",
        "harness.commands.plot": "mless plot results/example --kind forest -o figures",
        "harness.commands.report": "mless report results/example -o report.html",
        "harness.commands.export": "mless export results/example -o logs",
    },
    "Look into the model": {
        "attention_probe.commands.probe": (
            "mless probe results/example --flip changed --controls -o flipped.traces"
        ),
        "attention_probe.commands.heads": "mless heads flipped.traces -o page.html",
        "attention_probe.commands.figure": "mless figure configs/figures/qwen-heads-12-13-14.yaml",
    },
    "Use lm-eval, check the installation": {
        "harness.commands.tasks": (
            'lm_eval --tasks math500_mless --include_path "$(mless tasks)" ...'
        ),
        "attention_probe.commands.doctor": "mless doctor --model smollm2",
    },
}
"""All commands in the order of `--help`, under its headings: the module, whose name is that of its
function and of the command, and a call. Only this table of `harness` names the other package."""


class _GroupedCommands(TyperGroup):
    """Lists the commands in groups, with their full first sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, example_by_module in COMMANDS.items():
            command_names = [module_name.rpartition(".")[2] for module_name in example_by_module]
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (command_name, self.commands[command_name].get_short_help_str(200))
                        for command_name in command_names
                    ]
                )


app = typer.Typer(
    name="mless",
    cls=_GroupedCommands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    """Print the version and exit, if `--version` is given."""
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


for example_by_module in COMMANDS.values():
    for module_name, example in example_by_module.items():
        # All are imported at every start, so the module of a command imports nothing heavy at its
        # top.
        command = getattr(import_module(module_name), module_name.rpartition(".")[2])
        app.command(epilog=f"Example: {example}")(command)

INTERRUPTED_EXIT_CODE = 130
"""The exit code after an interruption, as in shells."""


def main() -> None:
    """Run the command. An expected error becomes one line on stderr and exit code 2."""
    from harness.display.progress import report_slow_start

    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    # a job scheduler's SIGTERM ends a command as Ctrl-C does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    exit_code = 2
    try:
        with report_slow_start():
            # shells leave the `~` of `--output=~/x` as it is
            app(
                [
                    re.sub(r"^(--[\w-]+=)~(?=/|$)", rf"\1{Path.home()}", argument)
                    for argument in sys.argv[1:]
                ]
            )
        return
    except HarnessError as error:
        # the error may quote a file or a model, whose hidden characters could change the terminal
        message = visible(" ".join(str(error).split()))
        if isinstance(error, RunInterrupted):
            exit_code = INTERRUPTED_EXIT_CODE
    except (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        if error.filename is None:
            raise
        # the user gave a path that is of the wrong kind or belongs to somebody else
        message = f"{error.filename} cannot be used: {error.strerror}. Choose another path."
    except OSError as error:
        # an error of writing to standard output names no file
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        # When Python exits, it tries to write the rest of the output again. The output now leads to
        # /dev/null, so that this causes no second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message = "standard output is full: no space left on device. Redirect it elsewhere."
    except ModuleNotFoundError as error:
        from harness.installation import explain_missing

        if not (remedy := explain_missing(error)):
            raise
        message = f"{error}. {remedy}"
    except KeyboardInterrupt:
        message = "interrupted"
        exit_code = INTERRUPTED_EXIT_CODE
    print_message(message)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
