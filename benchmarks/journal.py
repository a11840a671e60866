"""What the journal costs: an appended sample, opening a long journal again, memory as it grows, planning many requests.

Every figure comes from a fresh process. Records are those of a run, with completions of 2,000 characters; an append is
what a run does for a finished sample: make the record, write it, sync when two seconds have passed.

    python -m benchmarks.journal [--small]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import Figures, row, section
from benchmarks.runs import CONDITIONS, CONFIG, base_overrides, run_logged, say, work_folder, write_json
from harness.experiment.sample_key import sample_key

SIZES = (1_000, 10_000, 100_000)
SMALL_SIZES = (100, 1_000, 5_000)
CHARACTERS = 2_000
HEADER = {"run": "benchmark"}


def main() -> None:
    """Measure, print a Markdown section, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a short journal, to see that it works")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--step", nargs=3, metavar=("NAME", "JOURNAL", "FIGURES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        name, path, figures_path = arguments.step
        sizes = SMALL_SIZES if arguments.small else SIZES
        if name == "append":
            step = append_samples(Path(path), sizes)
        elif name == "open":
            step = open_journal(Path(path))
        else:
            step = plan_requests(sizes[-1])
        write_json(Path(figures_path), step)
        return
    figures = measure(small=arguments.small)
    write_json(arguments.json, figures)
    print(section(figures))


def measure(*, small: bool = False) -> Figures:
    """All figures, JSON-ready."""
    folder = work_folder(small) / "journal"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sizes = SMALL_SIZES if small else SIZES
    longest = folder / f"{sizes[-1]}.jsonl"
    say(f"journal: appending {sizes[-1]:,} samples")
    appended = _step("append", longest, small)
    opened = {}
    for size in sizes:
        path = folder / f"{size}.jsonl"
        if path != longest:
            with longest.open("rb") as whole, path.open("wb") as part:
                part.writelines(itertools.islice(whole, size + 1))
        say(f"journal: opening one of {size:,} samples")
        opened[size] = _step("open", path, small)
        path.unlink() if path != longest else None
    longest.unlink()
    say(f"journal: planning {sizes[-1]:,} requests")
    planned = _step("plan", longest, small)
    return _figures(sizes, appended, opened, planned)


def append_samples(path: Path, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Append samples as a run does; microseconds for each, and memory at each of the sizes."""
    from harness.experiment.problems import load_demo
    from harness.experiment.requests import Request
    from harness.experiment.sampling import Sampling
    from harness.runs.journal import Journal
    from harness.runs.records import Sample

    requests = [
        Request(
            task=f"demo_{condition}",
            problem_id=problem.id,
            seed=1,
            prompt=problem.problem,
            prompt_token_ids=tuple(range(150)),
            prompt_sha256="0" * 64,
            prompt_token_sha256="0" * 64,
            sampling=Sampling(source="explicit", temperature=0.7, top_p=0.95),
        )
        for problem in load_demo().problems
        for condition in CONDITIONS
    ]
    completions = [(problem.solution * CHARACTERS)[:CHARACTERS] for problem in load_demo().problems]
    memory, seconds = {}, 0.0
    with Journal(path, HEADER) as journal:
        before = _memory()
        for number in range(sizes[-1]):
            key = hashlib.sha256(str(number).encode()).hexdigest()
            request, completion = requests[number % len(requests)], completions[number % len(completions)]
            started = time.perf_counter()
            sample = Sample.of(request, key, completion, tokens=600, reason="stop")
            journal.append(sample)
            journal.sync_if_due()
            seconds += time.perf_counter() - started
            if number + 1 in sizes:
                memory[number + 1] = _memory() - before
    return {
        "microseconds": seconds / sizes[-1] * 1e6,
        "memory": memory,
        "bytes_per_record": path.stat().st_size / sizes[-1],
    }


def open_journal(path: Path) -> dict[str, Any]:
    """Open a journal as a continued run does; seconds, and the memory that it holds from then on."""
    from harness.runs.journal import Journal

    before = _memory()
    started = time.perf_counter()
    with Journal(path, HEADER) as journal:
        return {"seconds": time.perf_counter() - started, "keys": len(journal.keys), "memory": _memory() - before}


def plan_requests(count: int) -> dict[str, Any]:
    """Make the requests of a run with many samples a problem, and their keys."""
    from harness.execution.run import run_identity
    from harness.experiment.config import load_config
    from harness.experiment.plan import make_plan
    from harness.experiment.requests import make_requests

    repeats = -(-count // (500 * len(CONDITIONS)))
    settings = ["sampling={temperature: 0.7, top_p: 0.95}", f"samples_per_problem={repeats}"]
    plan = make_plan(load_config(CONFIG, [*base_overrides(), *settings]))
    sampling = plan.config.resolve_sampling(None)
    identity = run_identity(plan, sampling)
    started = time.perf_counter()
    requests = list(make_requests(plan, sampling))
    made = time.perf_counter()
    setting = identity.hash_setting()
    keys = {sample_key(request, setting) for request in requests}
    return {"requests": len(keys), "seconds": made - started, "key_seconds": time.perf_counter() - made}


def _step(name: str, path: Path, small: bool) -> dict[str, Any]:
    """One figure from a fresh process."""
    written = path.with_name(f"{name}-{path.stem}.json")
    command = [sys.executable, "-m", "benchmarks.journal", "--step", name, str(path), str(written)]
    run_logged([*command, "--small"] if small else command, written.with_suffix(".log"))
    return dict(json.loads(written.read_text(encoding="utf-8")))


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def _figures(
    sizes: tuple[int, ...], appended: dict[str, Any], opened: dict[int, dict[str, Any]], planned: dict[str, Any]
) -> Figures:
    grown = [appended["memory"][str(size)] / 2**20 for size in sizes]
    held = [opened[size]["memory"] / 2**20 for size in sizes]
    each = (appended["memory"][str(sizes[-1])] - appended["memory"][str(sizes[0])]) / (sizes[-1] - sizes[0])
    record = appended["bytes_per_record"]
    named = " / ".join(f"{size:,}" for size in sizes)
    last = opened[sizes[-1]]
    return {
        "title": "Journal",
        "what": f"Records of {record:,.0f} bytes (completions of {CHARACTERS:,} characters), where `results/` is.",
        "rows": [
            row("a sample appended, fsync every 2 s included", f"{appended['microseconds']:.0f} µs"),
            row(f"opening a journal of {last['keys']:,} samples", f"{last['seconds']:.2f} s"),
            row(f"memory grown after appending {named}", " / ".join(f"{one:.1f}" for one in grown) + " MiB"),
            row(f"memory grown by opening {named}", " / ".join(f"{one:.1f}" for one in held) + " MiB"),
            row("memory for each further sample appended", f"{each:.0f} bytes", ratio=each / record),
            row(
                f"making {planned['requests']:,} requests, and their keys",
                f"{planned['seconds']:.2f} s, {planned['key_seconds']:.2f} s",
            ),
        ],
        "notes": [
            "Memory is resident memory; the last ratio is to the record's size: only keys are kept, never records."
        ],
        "appended": appended,
        "opened": {str(size): one for size, one in opened.items()},
        "planned": planned,
    }


if __name__ == "__main__":
    main()
