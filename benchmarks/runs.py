"""Shared by the benchmarks: command line, commands in processes, the tests' model and problems."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import yaml

from benchmarks.report import Figures, section
from harness.errors import EngineError
from harness.experiment.problems import PATH_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
TEST_FOLDER = ROOT / "tests" / "data" / "toy"
"""A tiny model and the 500 problems that it was trained for."""
CONFIG = TEST_FOLDER / "demo.yaml"
PROBLEMS = TEST_FOLDER / "demo.jsonl"
SHAPES = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
"""Sizes of models with random or dummy weights."""
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}  # for all processes
os.environ.setdefault(PATH_VARIABLE, str(PROBLEMS))  # it may name the file of MATH-500
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
LOG_BYTES = 2000
"""Length of the end of a failed command's log in its error message."""
STOP_SECONDS = 20
"""Time for a command to end before it is killed."""


def run_benchmark(
    description: str | None, measure: Callable[..., Figures], shapes: Sequence[str] = ()
) -> None:
    """Run a benchmark's command line: measure, print a Markdown section, write figures as JSON.

    Args:
        description: The benchmark's docstring.
        measure: Measures the figures, in an empty folder. If its second argument is true, it uses
            few problems, as a test.
        shapes: The possible model shapes, the default first.
    """
    parser = make_parser(description)
    parser.add_argument("--json", type=Path, help="write the figures here")
    if shapes:
        parser.add_argument(
            "--shape", nargs="+", choices=shapes, default=shapes[:1], help="sizes of the model"
        )
    arguments = parser.parse_args()
    folder = work_folder(arguments.small) / Path(sys.argv[0]).stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options = {"shapes": arguments.shape} if shapes else {}
    figures = measure(folder, arguments.small, **options)
    write_json(arguments.json, figures)
    print(section(figures))


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with the option --small."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{Path(sys.argv[0]).stem}".removesuffix(".__main__"),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--small", action="store_true", help="a short test that it works")
    return parser


def work_folder(small: bool) -> Path:
    """Create the folder of runs, logs and figures, on the disk of ordinary runs, ignored by git."""
    folder = ROOT / "results" / ("bench-small" if small else "bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_mless(
    overrides: Sequence[str], output: Path, log: Path, *, limit: int | None = None
) -> dict[str, Any]:
    """Run `mless run` with the tests' config in a fresh process.

    Returns:
        The receipt's `timing`, and `wall_seconds` of the command.

    Raises:
        EngineError: The command failed.
    """
    command = [sys.executable, "-m", "harness.cli", "run", str(CONFIG), "--quiet"]
    command += [f"--output={output}", *(f"--set={override}" for override in overrides)]
    if limit:
        command.append(f"--limit={limit}")
    wall = run_logged(command, log)
    return {**read_json(output / "run.json")["timing"], "wall_seconds": round(wall, 2)}


def run_mless_here(arguments: Sequence[str]) -> None:
    """Run the command `mless` in this process.

    Raises:
        SystemExit: The command failed.
    """
    from harness.cli import main

    with patch.object(sys, "argv", ["mless", *arguments]):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


def write_json(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Write figures to a file, if there is a path."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Print a progress message with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def run_logged(
    command: Sequence[str], log: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> float:
    """Run a command to its end, with its output in a log file.

    Returns:
        Wall-clock seconds.

    Raises:
        EngineError: The command failed. The message contains the end of its log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **QUIET, **environment},
            start_new_session=True,
        )
        try:
            exit_code = process.wait()
        finally:  # after any error no engine may keep running
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
    if exit_code:
        end = log.read_text(encoding="utf-8", errors="replace")[-LOG_BYTES:].strip()
        raise EngineError(
            f"`{' '.join(command[1:5])} ...` failed with exit code {exit_code}. {log} ends: {end}"
        )
    return time.monotonic() - started
