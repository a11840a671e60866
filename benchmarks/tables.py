"""Measure the cost of tables: one run of a million samples, and twenty models' runs with as many.

The runs are copies of the committed greedy run with more samples: new keys, completions of 2,000
characters, and one verdict in ten changed, so that the statistics have differences to count. Each
command runs in a fresh process, and its figures include its start and imports.

    python -m benchmarks.tables [--small]
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, Row, row
from benchmarks.runs import ROOT, run_benchmark, say
from harness import load_run
from harness.runs.run_files import JOURNAL, PROMPTS, RECEIPT, SCORES
from harness.runs.stored_files import open_stored

SAMPLES, SMALL = 1_000_000, 40_000  # 20 models with all 2,000 prompts each
MODELS = 20
CHARACTERS = 2_000
FILLING = " ".join(map(str, range(CHARACTERS)))
SECONDS, GIGABYTES = 10.0, 4.5
READ, RATIO = 20_000, 2.0
"""Samples that `load_run` reads, and the target of its CPU time relative to `json.loads`."""
EXAMPLE = ROOT / "tests" / "data" / "greedy_run"


def measure(folder: Path, small: bool) -> Figures:
    """Measure all figures."""
    samples = SMALL if small else SAMPLES
    rows: list[Row] = []
    measured: dict[str, Any] = {}
    for models, name, flags in (
        (1, "table", ["--mediators", "--audit"]),
        (MODELS, "leaderboard", []),
    ):
        say(f"tables: writing {samples:,} samples")
        runs = [multiply(folder / f"model-{index}", samples // models) for index in range(models)]
        command = " ".join(["mless table", *flags])
        say(f"tables: {command}")
        figures = time_command(["table", *map(str, runs), *flags])
        measured[name] = figures
        title = f"{command}, {samples:,} samples of {models} model{'s' * (models > 1)}"
        rows += describe_command(title, figures)
        size = sum(file.stat().st_size for run in runs for file in run.iterdir())
        for run in runs:
            shutil.rmtree(run)
    say(f"tables: reading {READ:,} samples")
    measured["reading"] = time_reading(multiply(folder / "reading", READ))
    shutil.rmtree(folder / "reading")
    return {
        "title": "Tables",
        "what": f"Journals, scores and prompts of {size / 1e9:.1f} GB, completions of "
        f"{CHARACTERS:,} characters. Memory is the peak.",
        "rows": [*rows, describe_reading(measured["reading"])],
        "notes": [],
        "measured": measured,
    }


def describe_command(title: str, figures: Mapping[str, float]) -> list[Row]:
    """The rows of a command: its time and its memory."""
    seconds, gigabytes = figures["seconds"], figures["bytes"] / 1e9
    return [
        row(
            f"{title}: time",
            f"{seconds:.1f} s",
            target=f"at most {SECONDS:.0f} s",
            met=seconds <= SECONDS,
        ),
        row(
            f"{title}: memory",
            f"{gigabytes:.2f} GB",
            target=f"at most {GIGABYTES:g} GB",
            met=gigabytes <= GIGABYTES,
        ),
    ]


def describe_reading(figures: Mapping[str, float]) -> Row:
    """The row of `load_run`."""
    reading, parser = figures["load_run"], figures["json_loads"]
    return row(
        f"CPU time of load_run with its checks, {READ:,} samples, and of json.loads on its lines",
        f"{reading:.2f} s, {parser:.2f} s",
        ratio=reading / parser,
        target=f"at most {RATIO:g} times",
        met=reading <= RATIO * parser,
    )


def time_command(arguments: list[str]) -> dict[str, float]:
    """Run `mless` in a fresh process. Return its seconds and its peak memory in bytes."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("mless")), *arguments], stdout=subprocess.DEVNULL
    )
    # Linux counts the memory of this process at its start too, which is less than the peak.
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"`mless {arguments[0]} ...` failed with status {status}.")
    return {"seconds": seconds, "bytes": usage.ru_maxrss * 1024}


def time_reading(run: Path) -> dict[str, float]:
    """Measure the CPU seconds of `load_run`, and of `json.loads` over all lines of a run's files.

    The result is the smallest of three measurements.
    """

    def loads() -> None:
        for name in (JOURNAL, SCORES, PROMPTS):
            with (run / name).open("rb") as stream:
                for line in stream:
                    json.loads(line)

    figures = {}
    for name, read in (("json_loads", loads), ("load_run", partial(load_run, run))):
        seconds = []
        for _ in range(3):
            started = time.process_time()
            read()
            seconds.append(time.process_time() - started)
        figures[name] = min(seconds)
    return figures


def multiply(folder: Path, samples: int) -> Path:
    """Write a finished run folder with this number of samples, copied from the committed run."""
    folder.mkdir(parents=True)
    label, rng = folder.name, random.Random(folder.name)
    header, *records = read_lines(JOURNAL)
    version, *scores = read_lines(SCORES)
    scores_by_key = {score["key"]: score for score in scores}
    session = next(record for record in records if record["key"].startswith("session"))
    receipt = json.loads((EXAMPLE / RECEIPT).read_text(encoding="utf-8"))
    for record in (session, receipt):
        record["config"]["model"]["label"] = label
    (folder / RECEIPT).write_text(json.dumps(receipt), encoding="utf-8")
    with open_stored(EXAMPLE / PROMPTS) as prompts:
        (folder / PROMPTS).write_bytes(prompts.read())
    originals = [record for record in records if "task" in record]
    with (
        (folder / JOURNAL).open("w", encoding="utf-8") as journal,
        (folder / SCORES).open("w", encoding="utf-8") as graded,
    ):
        for record in (header, session):
            journal.write(json.dumps(record, separators=(",", ":")) + "\n")
        graded.write(json.dumps(version) + "\n")
        for number in range(samples):
            sample_index, index = divmod(number, len(originals))
            key = hashlib.sha256(f"{label} {number}".encode()).hexdigest()
            original = originals[index]
            score = {**scores_by_key[original["key"]], "key": key}
            sample = {**original, "key": key, "sample_index": sample_index, "seed": sample_index}
            sample["completion"] = lengthen(original["completion"], number, rng)
            if rng.random() < 0.1:
                score["verdict"] = "incorrect" if score["verdict"] == "correct" else "correct"
            journal.write(json.dumps(sample, separators=(",", ":")) + "\n")
            graded.write(json.dumps(score, separators=(",", ":")) + "\n")
    return folder


def read_lines(name: str) -> list[dict[str, Any]]:
    """The records in a file of the committed run."""
    with open_stored(EXAMPLE / name) as lines:
        return [json.loads(line) for line in lines]


def lengthen(completion: str, number: int, rng: random.Random) -> str:
    """Make a completion longer. Every fiftieth repeats itself to its end, as some models do."""
    working = f"{completion} Once more, in other words ({rng.random()}):"
    if number % 50 == 0:
        return (working * CHARACTERS)[-CHARACTERS:]
    return f"{working} {FILLING}"[:CHARACTERS]


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
