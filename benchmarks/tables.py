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
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, row
from benchmarks.runs import ROOT, run_benchmark, say
from harness import load_run
from harness.runs.run_files import JOURNAL, PROMPTS, RECEIPT, SCORES
from harness.runs.stored_files import open_stored

SAMPLES, SMALL = 1_000_000, 40_000  # 20 models with all 2,000 prompts each
MODELS = 20
CHARACTERS = 2_000
SECONDS, GIGABYTES = 10.0, 0.8
READ, RATIO = 20_000, 2.0
"""Samples that `load_run` reads, and its target: CPU seconds relative to `json.loads` on its lines."""
EXAMPLE = ROOT / "tests" / "data" / "greedy_run"


def measure(folder: Path, small: bool) -> Figures:
    """Measure all figures."""
    samples = SMALL if small else SAMPLES
    rows = []
    measured: dict[str, Any] = {}
    for models, name, flags in (
        (1, "table", ["--mediators", "--audit"]),
        (MODELS, "leaderboard", ["--models"]),
    ):
        say(f"tables: writing {samples:,} samples")
        runs = [multiply(folder / f"model-{index}", samples // models) for index in range(models)]
        command = " ".join(["mless table", *flags])
        say(f"tables: {command}")
        figures = time_command(["table", *map(str, runs), *flags])
        measured[name] = figures
        title = f"{command}, {samples:,} samples of {models} model{'s' * (models > 1)}"
        rows += [
            row(
                f"{title}: time",
                f"{figures['seconds']:.1f} s",
                target=f"at most {SECONDS:.0f} s",
                met=figures["seconds"] <= SECONDS,
            ),
            row(
                f"{title}: memory",
                f"{figures['bytes'] / 1e9:.2f} GB",
                target=f"at most {GIGABYTES:g} GB",
                met=figures["bytes"] <= GIGABYTES * 1e9,
            ),
        ]
        size = sum(file.stat().st_size for run in runs for file in run.iterdir())
        for run in runs:
            shutil.rmtree(run)
    say(f"tables: reading {READ:,} samples")
    reading = time_reading(multiply(folder / "reading", READ))
    measured["reading"] = reading
    shutil.rmtree(folder / "reading")
    ratio = reading["load_run"] / reading["json_loads"]
    rows.append(
        row(
            f"load_run with its checks, {READ:,} samples, against json.loads over the same lines: "
            "CPU",
            f"{reading['load_run']:.2f} s, {reading['json_loads']:.2f} s",
            ratio=ratio,
            target=f"at most {RATIO:g} times",
            met=ratio <= RATIO,
        )
    )
    return {
        "title": "Tables",
        "what": f"Journals, scores and prompts of {size / 1e9:.1f} GB, completions of "
        f"{CHARACTERS:,} characters. Memory is the peak.",
        "rows": rows,
        "notes": [],
        "measured": measured,
    }


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
    with open_stored(EXAMPLE / JOURNAL) as journal, open_stored(EXAMPLE / SCORES) as graded:
        header, *records = map(json.loads, journal)
        version, *scores = map(json.loads, graded)
    by_key = {score["key"]: score for score in scores}
    session = next(record for record in records if record["key"].startswith("session"))
    session["config"]["model"]["label"] = label
    receipt = json.loads((EXAMPLE / RECEIPT).read_text(encoding="utf-8"))
    receipt["config"]["model"]["label"] = label
    (folder / RECEIPT).write_text(json.dumps(receipt), encoding="utf-8")
    with open_stored(EXAMPLE / PROMPTS) as prompts:
        (folder / PROMPTS).write_bytes(prompts.read())
    filler = " ".join(map(str, range(CHARACTERS)))
    base = [record for record in records if "task" in record]
    with (
        (folder / JOURNAL).open("w", encoding="utf-8") as journal,
        (folder / SCORES).open("w", encoding="utf-8") as graded,
    ):
        journal.write(f"{json.dumps(header)}\n{json.dumps(session)}\n")
        graded.write(json.dumps(version) + "\n")
        for number in range(samples):
            sample_index, base_index = divmod(number, len(base))
            sample = dict(base[base_index])
            score = dict(by_key[sample["key"]])
            score["key"] = sample["key"] = hashlib.sha256(f"{label} {number}".encode()).hexdigest()
            sample["sample_index"] = sample["seed"] = sample_index
            working = f"{sample['completion']} Once more, in other words ({rng.random()}):"
            sample["completion"] = f"{working} {filler}"[:CHARACTERS]
            if number % 50 == 0:
                sample["completion"] = (working * CHARACTERS)[-CHARACTERS:]
            if rng.random() < 0.1:
                score["verdict"] = "incorrect" if score["verdict"] == "correct" else "correct"
            journal.write(json.dumps(sample, separators=(",", ":")) + "\n")
            graded.write(json.dumps(score, separators=(",", ":")) + "\n")
    return folder


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
