"""The steps of `mless verify`. Each measures something into a folder of its own, and derives its findings from there.

The functions `measure_*` start real runs on this machine. The functions `derive_*` read files only, on any machine.
Those that compare mless with other programs stand in `comparisons`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import EngineError
from harness.runs.folder import JOURNAL, RECEIPT, read_samples
from harness.runs.sample_frame import load_run
from harness.verification import comparisons
from harness.verification.model_under_test import PUBLISHED, Bench
from harness.verification.processes import mless_command, read_json, start_logged, write_json
from harness.verification.record import Finding, expect

if TYPE_CHECKING:
    import pandas

REPEATED = 100
"""Problems that each repeat of the baseline asks."""
KILL_AFTER = 4
"""Samples in the journal before the run is killed: few, as a GPU makes all of them in a second or two."""
GONE_SECONDS = 30
"""How long the killed run's processes are waited for."""
TABLE = {
    "accuracy": ("accuracy", "%"),
    "difference": ("difference from wo", "points"),
    "low": ("95 % interval, from", "points"),
    "high": ("95 % interval, to", "points"),
    "p_adjusted": ("adjusted p", ""),
    "verdict": ("verdict", ""),
}
"""Columns of `mless table` that become findings, with their words and units."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: The step's name, and its folder's.
        title: What it shows.
        minutes: About how long it takes on one recent data-centre GPU with a 1.5B model.
        measure: Does the work and leaves files in the folder that it is given.
        derive: Derives the findings from that folder. It raises nothing if the files are as measured.
        needs: The device that it needs; None for any.
    """

    name: str
    title: str
    minutes: float
    measure: Callable[[Bench, Path], None]
    derive: Callable[[Path], list[Finding]]
    needs: str | None = None


def measure_installation(bench: Bench, folder: Path) -> None:
    """Keep what `mless doctor` finds."""
    from harness.check_installation import check_installation

    write_json(folder / "findings.json", [asdict(finding) for finding in check_installation(bench.model)])


def derive_installation(folder: Path) -> list[Finding]:
    """Checks that failed, and checks with a note."""
    found = read_json(folder / "findings.json")
    failed = [one["subject"] for one in found if one["fix"] and one["fatal"]]
    noted = [one["subject"] for one in found if one["fix"] and not one["fatal"]]
    return [
        expect("checks failed", ", ".join(failed) or "none", "none"),
        Finding("checks with a note", ", ".join(noted) or "none"),
    ]


def measure_demo(bench: Bench, folder: Path) -> None:
    """Run the bundled model under four conditions."""
    bench.run("demo", folder)


def measure_run(name: str, bench: Bench, folder: Path) -> None:
    """Run a shipped config, whole."""
    bench.run(name, folder, bench.changes(replay=True))


def derive_run(folder: Path) -> list[Finding]:
    """Accuracies and differences of the step's run, as `mless table` has them, and its speed."""
    from harness.display.table_pages import make_table

    run = folder / "run"
    timing = read_json(run / RECEIPT)["timing"]
    rows = json.loads(make_table([str(run)], form="json"))["rows"]
    return [
        *(
            Finding(f"{row['condition']}: {words}", row[column], unit)
            for row in rows
            for column, (words, unit) in TABLE.items()
            if column == "accuracy" or row["difference"] is not None
        ),
        Finding("samples", sum(1 for _ in read_samples(run))),
        Finding("speed", round(timing["tokens"] / timing["generation_seconds"], 1), "generated tokens/s"),
        Finding("loading", timing["load_seconds"], "s"),
        Finding("grading left after the last completion", timing["grading_after_last_completion_seconds"], "s"),
    ]


def measure_kill(bench: Bench, folder: Path) -> None:
    """Kill a run with SIGKILL in the middle, watch its processes go, and type the same command again."""
    import psutil

    run, log = folder / "run", bench.log("killed")
    command = mless_command(bench.config("demo"), run, limit=bench.settings.limit)
    with start_logged(command, log) as process:
        while _count_samples(run / JOURNAL) < KILL_AFTER and process.poll() is None:
            time.sleep(0.02)
        if process.poll() is not None:
            raise EngineError(f"The run to be killed ended by itself, with exit code {process.returncode}: see {log}.")
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        killed = time.monotonic()
        _, alive = psutil.wait_procs(family, timeout=GONE_SECONDS)
        seconds = round(time.monotonic() - killed, 2)
    write_json(folder / "processes.json", {"all": len(family), "alive": len(alive), "seconds": seconds})
    bench.run("demo", folder)


def _count_samples(journal: Path) -> int:
    return journal.read_bytes().count(b'"problem_id":') if journal.is_file() else 0


def derive_kill(folder: Path) -> list[Finding]:
    """Processes that stayed, samples that were safe, completions that differ from the undisturbed run's."""
    from harness.runs.journal import read_journal
    from harness.runs.records import SESSION

    run, whole = folder / "run", load_run(folder.parent / "demo" / "run")
    processes = read_json(folder / "processes.json")
    records = list(read_journal(run / JOURNAL))
    sessions = [place for place, record in enumerate(records) if str(record.get("key", "")).startswith(SESSION)]
    safe = sum("task" in record for record in records[: sessions[-1]])
    completions, verdicts = _count_differences(whole, load_run(run))
    on_cpu = read_json(run / RECEIPT)["engine"]["device"] == "cpu"
    gone = processes["alive"] == 0 < processes["all"]
    return [
        Finding("processes of the killed run", processes["all"]),
        Finding(f"of these alive after {GONE_SECONDS} s", processes["alive"], expected="0", holds=gone),
        Finding("last one gone after", processes["seconds"], "s"),
        Finding("samples safe when killed", safe, expected=f"0 to {len(whole)}", holds=0 < safe < len(whole)),
        expect("sessions", len(sessions), 2),
        Finding(
            f"completions that differ from the whole run's, of {len(whole)}",
            completions,
            expected="0 on a CPU",
            holds=completions == 0 if on_cpu else None,
        ),
        Finding("verdicts that differ", verdicts),
    ]


def _count_differences(first: pandas.DataFrame, second: pandas.DataFrame) -> tuple[int, int]:
    """How many completions and how many verdicts differ between two frames of the same samples."""
    both = first.merge(second, on=["layout", "condition", "problem_id", "sample_index"], validate="1:1")
    completions, verdicts = (both[f"{name}_x"] != both[f"{name}_y"] for name in ("completion", "verdict"))
    return int(completions.sum()), int(verdicts.sum())


def measure_repeats(changes: Sequence[str], bench: Bench, folder: Path) -> None:
    """Run the baseline twice, greedily, in another order, with these changes of the config."""
    fixed = ["conditions=[wo]", "contrasts=[]", "primary=null", "replicates=2", "sampling=greedy", "audit=false"]
    bench.run(PUBLISHED, folder, [*bench.changes(), *fixed, *changes], bench.at_most(REPEATED))


def derive_repeats(folder: Path) -> list[Finding]:
    """Completions and verdicts that differ between the two times."""
    frame = load_run(folder / "run", replicates=True)
    first = frame[frame["replicate"] == 0]
    completions, verdicts = _count_differences(first, frame[frame["replicate"] == 1])
    return [
        Finding("prompts asked twice, in another order", len(first)),
        Finding("completions that differ", completions),
        Finding("verdicts that differ", verdicts),
    ]


def _repeat(name: str, *changes: str, needs: str | None = None) -> Step:
    title = f"The baseline against itself (A/A), greedy, {name}"
    changes = tuple(f"model.arguments.{change}" for change in changes)
    return Step(f"repeat-{name}", title, 2, partial(measure_repeats, changes), derive_repeats, needs)


STEPS = (
    Step("doctor", "The installation", 0.2, measure_installation, derive_installation),
    Step("demo", "The bundled model, whole", 2, measure_demo, derive_run),
    Step("kill", "Killed with SIGKILL and continued by the same command", 3, measure_kill, derive_kill),
    Step(
        "logits",
        "First-token log-probabilities beside Hugging Face, float32",
        3,
        comparisons.measure_logits,
        comparisons.derive_logits,
    ),
    _repeat("float32", "dtype=float32"),
    _repeat("bfloat16", "dtype=bfloat16"),
    _repeat("batch-invariant", "dtype=bfloat16", "batch_invariant=true", needs="cuda"),
    Step(PUBLISHED, "The study's prompts, greedy, float32", 5, partial(measure_run, PUBLISHED), derive_run),
    Step(
        f"{PUBLISHED}-sampled",
        "The study's prompts, 8 samples each, float32",
        20,
        partial(measure_run, f"{PUBLISHED}-sampled"),
        derive_run,
    ),
    Step("probe", "The probe beside eager attention", 2, comparisons.measure_probe, comparisons.derive_probe),
    Step(
        "throughput",
        "`mless run` beside raw vLLM, bfloat16",
        8,
        comparisons.measure_throughput,
        comparisons.derive_throughput,
    ),
)
"""All steps, in their order."""
