"""What a table of many samples costs: one run of a million, and twenty models' runs that have a million together.

The runs are the committed greedy run with its samples multiplied: other keys, completions of 2,000 characters, one
verdict in ten turned round so that the statistics have something to count. Each figure is the command in a fresh
process, its start and imports included.

    python -m benchmarks.tables [--small]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.report import Figures, row, section
from benchmarks.runs import ROOT, say, work_folder, write_json
from harness import load_run
from harness.runs.journal import open_stored
from harness.runs.run_folder import JOURNAL, PROMPTS, RECEIPT, SCORES

SAMPLES, SMALL = 1_000_000, 40_000  # 20 models with all 2,000 prompts each
MODELS = 20
CHARACTERS = 2_000
SECONDS, GIGABYTES = 10.0, 0.8
READ, RATIO = 20_000, 2.0
"""Samples that `load_run` reads, and how many times the cost of `json.loads` over the same lines it may take."""
EXAMPLE = ROOT / "tests" / "data" / "greedy_run"


def main() -> None:
    """Measure, print a Markdown section, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="few samples, to see that it works")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--step", nargs=2, metavar=("COMMAND", "FIGURES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        command, measured = (
            json.loads(Path(arguments.step[0]).read_text(encoding="utf-8")),
            arguments.step[1],
        )
        started = time.perf_counter()
        subprocess.run(
            [str(Path(sys.executable).with_name("mless")), *command],
            check=True,
            capture_output=True,
        )
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        write_json(Path(measured), {"seconds": seconds, "bytes": peak})
        return
    figures = measure(small=arguments.small)
    write_json(arguments.json, figures)
    print(section(figures))


def measure(*, small: bool = False) -> Figures:
    """All figures, JSON-ready."""
    folder = work_folder(small) / "tables"
    shutil.rmtree(folder, ignore_errors=True)
    samples = SMALL if small else SAMPLES
    rows, measured = [], {}
    for models, command, flags in (
        (1, "table", ["--mediators", "--audit"]),
        (MODELS, "leaderboard", ["--models"]),
    ):
        say(f"tables: writing {samples:,} samples")
        runs = [multiply(folder / f"model-{number}", samples // models) for number in range(models)]
        said = " ".join(["mless table", *flags])
        say(f"tables: {said}")
        written = folder / f"{command}.json"
        write_json(folder / "command.json", ["table", *map(str, runs), *flags])
        step = [
            sys.executable,
            "-m",
            "benchmarks.tables",
            "--step",
            str(folder / "command.json"),
            str(written),
        ]
        subprocess.run(step, cwd=ROOT, check=True)
        found = json.loads(written.read_text(encoding="utf-8"))
        measured[command] = found
        what = f"{said}, {samples:,} samples of {models} model{'s' * (models > 1)}"
        met = found["seconds"] <= SECONDS, found["bytes"] <= GIGABYTES * 1e9
        rows += [
            row(
                f"{what}: time",
                f"{found['seconds']:.1f} s",
                target=f"at most {SECONDS:.0f} s",
                met=met[0],
            ),
            row(
                f"{what}: memory",
                f"{found['bytes'] / 1e9:.2f} GB",
                target=f"at most {GIGABYTES:g} GB",
                met=met[1],
            ),
        ]
        size = sum(file.stat().st_size for run in runs for file in run.iterdir())
        for run in runs:
            shutil.rmtree(run)
    say(f"tables: reading {READ:,} samples")
    measured["reading"] = found = time_reading(multiply(folder / "reading", READ))
    shutil.rmtree(folder / "reading")
    ratio = found["load_run"] / found["json_loads"]
    rows.append(
        row(
            f"load_run with its checks, {READ:,} samples, against json.loads over the same lines: CPU",
            f"{found['load_run']:.2f} s, {found['json_loads']:.2f} s",
            ratio=ratio,
            target=f"at most {RATIO:g} times",
            met=ratio <= RATIO,
        )
    )
    return {
        "title": "Tables",
        "what": f"Journals, scores and prompts of {size / 1e9:.1f} GB, completions of {CHARACTERS:,} characters. "
        "Memory is the peak.",
        "rows": rows,
        "notes": [],
        "measured": measured,
    }


def time_reading(run: Path) -> dict[str, float]:
    """Seconds of CPU, the least of three: `load_run` of a run, and `json.loads` over all lines of its files."""

    def loads() -> None:
        for name in (JOURNAL, SCORES, PROMPTS):
            with (run / name).open("rb") as stream:
                for line in stream:
                    json.loads(line)

    found = {}
    for name, read in (("json_loads", loads), ("load_run", partial(load_run, run))):
        seconds = []
        for _ in range(3):
            started = time.process_time()
            read()
            seconds.append(time.process_time() - started)
        found[name] = min(seconds)
    return found


def multiply(folder: Path, samples: int) -> Path:
    """A finished run folder of so many samples, made of the committed one."""
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
        (folder / SCORES).open("w", encoding="utf-8") as out,
    ):
        journal.write(f"{json.dumps(header)}\n{json.dumps(session)}\n")
        out.write(json.dumps(version) + "\n")
        for number in range(samples):
            repeat, place = divmod(number, len(base))
            sample, score = dict(base[place]), dict(by_key[base[place]["key"]])
            score["key"] = sample["key"] = hashlib.sha256(f"{label} {number}".encode()).hexdigest()
            sample["sample_index"] = sample["seed"] = repeat
            working = f"{sample['completion']} Once more, in other words ({rng.random()}):"
            sample["completion"] = (
                (working * CHARACTERS)[-CHARACTERS:]
                if number % 50 == 0
                else working + f" {filler[: CHARACTERS - len(working) - 1]}"
            )
            if rng.random() < 0.1:
                score["verdict"] = "incorrect" if score["verdict"] == "correct" else "correct"
            journal.write(json.dumps(sample, separators=(",", ":")) + "\n")
            out.write(json.dumps(score, separators=(",", ":")) + "\n")
    return folder


if __name__ == "__main__":
    main()
