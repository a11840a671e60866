"""What the benchmarks share: commands in their own processes, the toy's config, problems, figures."""

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
from typing import Any

import yaml

from benchmarks.report import Figures, section
from harness.errors import EngineError
from harness.experiment.problems import PATH_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "tests" / "data" / "toy"
"""A tiny model and the 500 problems that it was trained for, where speed or a set of problems matters."""
CONFIG = TOY / "demo.yaml"
PROBLEMS = TOY / "demo.jsonl"
SHAPES = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
"""The sizes of models that get random or dummy weights."""
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}  # for every process of every side
os.environ.setdefault(PATH_VARIABLE, str(PROBLEMS))  # unless it names MATH-500's file
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
LOG_BYTES = 2000
"""How much of a failed command's log is shown."""
STOP_SECONDS = 20
"""A command that is told to end may take this long; then it is killed."""


def run_benchmark(
    description: str | None, measure: Callable[..., Figures], shapes: Sequence[str] = ()
) -> None:
    """A benchmark's command line: measure, print a Markdown section, and write the figures as JSON.

    Args:
        description: The benchmark's docstring.
        measure: Makes the figures, in an empty folder; `small` is a few problems, to see that it works.
        shapes: The model shapes that `measure` can be asked for, the default one first.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a few problems, to see that it works")
    parser.add_argument("--json", type=Path, help="write the figures here")
    if shapes:
        help_text = "sizes of the model"
        parser.add_argument(
            "--shape", nargs="+", choices=shapes, default=shapes[:1], help=help_text
        )
    arguments = parser.parse_args()
    folder = work_folder(arguments.small) / Path(sys.argv[0]).stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options = {"shapes": arguments.shape} if shapes else {}
    figures = measure(folder, arguments.small, **options)
    write_json(arguments.json, figures)
    print(section(figures))
    if errors := figures.get("errors"):
        raise SystemExit("\n".join(errors))


def work_folder(small: bool) -> Path:
    """Where runs, logs and figures go: beside ordinary runs, on the same disk, ignored by git."""
    folder = ROOT / "results" / ("bench-small" if small else "bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_mless(
    overrides: Sequence[str], output: Path, log: Path, *, limit: int | None = None
) -> dict[str, Any]:
    """`mless run` on the toy's config in a fresh process; the receipt's `timing`, and `wall_seconds` of the command.

    Raises:
        EngineError: it failed.
    """
    command = [
        sys.executable,
        "-m",
        "harness.cli",
        "run",
        str(CONFIG),
        "--quiet",
        "--output",
        str(output),
    ]
    command += [part for override in overrides for part in ("--set", override)]
    wall = run_logged(command + (["--limit", str(limit)] if limit else []), log)
    return {**read_json(output / "run.json")["timing"], "wall_seconds": round(wall, 2)}


def write_json(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Write figures where asked."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Print what is going on, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def run_logged(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> float:
    """Run a command to its end; its output goes into a log file.

    Returns:
        Wall seconds.

    Raises:
        EngineError: the command failed; the message has the end of its log.
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
            env={**os.environ, **QUIET, **(environment or {})},
            start_new_session=True,
        )
        try:
            failed = process.wait()
        finally:  # whatever stops us: an engine must not stay behind
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
    if failed:
        end = log.read_text(encoding="utf-8", errors="replace")[-LOG_BYTES:].strip()
        raise EngineError(
            f"`{' '.join(command[1:5])} ...` failed with exit code {failed}. {log} ends: {end}"
        )
    return time.monotonic() - started
