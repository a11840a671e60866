"""`harness.run`: an experiment from Python, in a process of its own; also other commands."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import yaml

from harness.errors import RunError, RunInterrupted
from harness.experiment.run_config import RunConfig, load_config
from harness.runs.read_runs import Run

INTERRUPTION_SECONDS = 10
"""A command that a terminal or a notebook interrupts together with us ends within about 5 s."""


def run(
    config: RunConfig | str | Path,
    *,
    limit: int | None = None,
    output: Path | str = "",
    engines: int | str = "",
) -> Run:
    """Run an experiment, or continue it, and read the result. For scripts and notebooks.

    The engine starts processes of its own, which in a script would need a main guard and in a
    notebook a fresh kernel. So the command `mless run` makes the run, and its messages are printed
    here line by line.

    Args:
        config: A run config, or its file.
        limit: The number of problems, from the dataset's first.
        output: The run folder; by default the config's.
        engines: As the command's `--engines`.

    Raises:
        ConfigError: the file is no run config.
        RunError: the run failed. The message is the command's.
        RunInterrupted: the run was interrupted; the same call continues it.
    """
    settings = config if isinstance(config, RunConfig) else load_config(Path(config))
    folder = Path(output or settings.folder)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, f"{settings.name}.yaml")
        path.write_text(yaml.safe_dump(settings.as_written()), encoding="utf-8")
        arguments = ["run", str(path), "--quiet", "--output", str(folder)]
        if limit is not None:
            arguments += ["--limit", str(limit)]
        if engines != "":
            arguments += ["--engines", str(engines)]
        call_command(arguments)
    return Run.load(folder)


def call_command(arguments: Sequence[str], stdout: int | IO[str] = subprocess.DEVNULL) -> None:
    """Call `mless` in a process of its own, and print its messages on stderr line by line.

    Args:
        arguments: The command and its options.
        stdout: Where its output goes.

    Raises:
        RunError: the command failed. The message is the command's.
        RunInterrupted: the command was interrupted.
    """
    command = [sys.executable, "-m", "harness.cli", *arguments]
    message = ""
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # because of PIPE
        try:
            for line in process.stderr:
                message = line.rstrip("\n")
                print(message, file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            try:
                process.communicate(timeout=INTERRUPTION_SECONDS)
            except subprocess.TimeoutExpired:  # the signal went to this process alone
                process.terminate()
                process.communicate()
            raise
    # 130 is a command's exit code after an interruption
    if process.returncode:
        error = RunInterrupted if process.returncode == 130 else RunError
        raise error(message.removeprefix("mless: ") or f"exit code {process.returncode}")
