"""What the files of a verification show. Everything here is derived from files alone, on any machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.runs.folder import JOURNAL, read_prompts, read_samples, read_scores
from harness.verification.measures import GONE_SECONDS

CURVE_LIMIT = 1e-4
"""Largest difference of an average attention weight from eager attention."""
RAW_SHARE, LEAST_REQUESTS = 0.9, 1000
"""Least share of raw vLLM's tokens/s, with journal, grading and audit on, over so many requests or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the page.

    Attributes:
        measure: What was measured.
        value: The number, or a word.
        unit: Of the number.
        expected: What would be right, in words; empty where nothing is expected.
        holds: Whether it is; None where nothing is expected.
    """

    measure: str
    value: float | str | None
    unit: str = ""
    expected: str = ""
    holds: bool | None = None


def derive_doctor(folder: Path) -> list[Finding]:
    """Checks that failed, and checks with a note."""
    found = _read(folder / "findings.json")
    failed = [one["subject"] for one in found if one["fix"] and one["fatal"]]
    noted = [one["subject"] for one in found if one["fix"] and not one["fatal"]]
    return [
        Finding(measure="checks failed", value=", ".join(failed) or "none", expected="none", holds=not failed),
        Finding(measure="checks with a note", value=", ".join(noted) or "none"),
    ]


def derive_table(folder: Path) -> list[Finding]:
    """Accuracies and differences of the step's run, as `mless table` has them, and its speed."""
    from harness.display.table_pages import make_table

    run = folder / "run"
    table = json.loads(make_table([str(run)], form="json"))
    found = []
    for row in table["rows"]:
        name = row["condition"]
        found.append(Finding(measure=f"{name}: accuracy", value=row["accuracy"], unit="%"))
        if row["difference"] is not None:
            found += [
                Finding(measure=f"{name}: difference from wo", value=row["difference"], unit="points"),
                Finding(measure=f"{name}: 95 % interval, from", value=row["low"], unit="points"),
                Finding(measure=f"{name}: 95 % interval, to", value=row["high"], unit="points"),
                Finding(measure=f"{name}: adjusted p", value=row["p_adjusted"]),
                Finding(measure=f"{name}: verdict", value=row["verdict"]),
            ]
    return [*found, *_speed(run)]


def changed_verdicts(run: Path) -> int:
    """Samples of a run whose verdict is another one when their completion is graded again."""
    from harness.grading import GradeJob, GraderPool

    targets = {row["doc"]["id"]: row["doc"]["answer"] for row in read_prompts(run)}
    scores, wrong = read_scores(run), 0
    with GraderPool() as pool:
        for sample in read_samples(run):
            job = GradeJob(
                completion=sample.completion,
                target=targets[sample.problem_id],
                finish_reason=sample.finish_reason,
            )
            pool.submit(sample.key, job)
        for key, grade in pool.drain():
            wrong += grade.verdict != scores[str(key)].verdict  # type: ignore[union-attr]
    return wrong


def _speed(run: Path) -> list[Finding]:
    timing = _read(run / "run.json")["timing"]
    return [
        Finding(measure="samples", value=sum(1 for _ in read_samples(run))),
        Finding(
            measure="speed", value=round(timing["tokens"] / timing["generation_seconds"], 1), unit="generated tokens/s"
        ),
        Finding(measure="loading", value=timing["load_seconds"], unit="s"),
        Finding(
            measure="grading left after the last completion",
            value=timing["grading_after_last_completion_seconds"],
            unit="s",
        ),
    ]


def derive_kill(folder: Path) -> list[Finding]:
    """Processes that stayed, samples that were safe, completions that differ from the undisturbed run's."""
    from harness.runs.journal import read_journal
    from harness.runs.records import SESSION

    gone = _read(folder / "processes.json")["gone_after_seconds"]
    left = sum(seconds is None for seconds in gone)
    before = sessions = 0
    for record in read_journal(folder / "run" / JOURNAL):
        sessions += str(record.get("key", "")).startswith(SESSION)
        before += sessions == 1 and "task" in record
    total, differing, verdicts = _compared(folder.parent / "demo" / "run", folder / "run")
    return [
        Finding(measure="processes of the killed run", value=len(gone)),
        Finding(
            measure=f"of these alive after {GONE_SECONDS} s",
            value=left,
            expected="0",
            holds=left == 0 and len(gone) > 0,
        ),
        Finding(measure="last one gone after", value=max((s for s in gone if s is not None), default=0.0), unit="s"),
        Finding(measure="samples safe when killed", value=before, expected=f"0 to {total}", holds=0 < before < total),
        Finding(measure="sessions", value=sessions, expected="2", holds=sessions == 2),
        Finding(
            measure=f"completions that differ from the whole run's, of {total}",
            value=differing,
            expected="0 on a CPU",
            holds=differing == 0 if _read(folder / "run" / "run.json")["engine"]["device"] == "cpu" else None,
        ),
        Finding(measure="verdicts that differ", value=verdicts),
    ]


def _compared(one: Path, other: Path) -> tuple[int, int, int]:
    """Samples, and how many differ in completion and in verdict, between two runs of one config."""
    first = {sample.key: sample.completion for sample in read_samples(one)}
    scores, others = read_scores(one), read_scores(other)
    differing = verdicts = 0
    for sample in read_samples(other):
        differing += first[sample.key] != sample.completion
        verdicts += scores[sample.key].verdict != others[sample.key].verdict
    return len(first), differing, verdicts


def derive_logits(folder: Path) -> list[Finding]:
    """How far the two sides' log-probabilities are from each other."""
    from harness.verification.logit_check import LARGEST, MEAN, LogitCheck, Logprobs

    check = LogitCheck.of([Logprobs(**one) for one in _read(folder / "logprobs.json")["prompts"]])
    return [
        Finding(measure="prompts", value=check.prompts),
        Finding(
            measure="largest difference of a log-probability",
            value=check.largest,
            unit="nats",
            expected=f"under {LARGEST:g}",
            holds=check.largest < LARGEST,
        ),
        Finding(
            measure="mean difference",
            value=check.mean,
            unit="nats",
            expected=f"under {MEAN:g}",
            holds=check.mean < MEAN,
        ),
        Finding(
            measure="prompts with the same first token",
            value=check.same_first,
            expected=str(check.prompts),
            holds=check.same_first == check.prompts,
        ),
    ]


def derive_repeats(folder: Path) -> list[Finding]:
    """Completions and verdicts that differ between the two times."""
    texts: dict[str, dict[int, tuple[str, str]]] = {}
    scores = read_scores(folder / "run")
    for sample in read_samples(folder / "run"):
        told = sample.completion, scores[sample.key].verdict
        texts.setdefault(sample.problem_id, {})[sample.replicate] = told
    pairs = [(both[0], both[1]) for both in texts.values()]
    return [
        Finding(measure="prompts asked twice, in another order", value=len(pairs)),
        Finding(measure="completions that differ", value=sum(a[0] != b[0] for a, b in pairs)),
        Finding(measure="verdicts that differ", value=sum(a[1] != b[1] for a, b in pairs)),
    ]


def derive_probe(folder: Path) -> list[Finding]:
    """How far the probe's average attention weights are from eager attention's."""
    import numpy as np

    with np.load(folder / "curves.npz") as kept:
        names = [name.removesuffix("/ours") for name in kept.files if name.endswith("/ours")]
        ours, eager = (float(seconds) for seconds in kept["seconds"])
        pairs = [(kept[f"{name}/ours"], kept[f"{name}/eager"]) for name in names]
    undefined = sum(int((np.isnan(a) != np.isnan(b)).sum()) for a, b in pairs)
    largest = max(float(np.nanmax(abs(a - b))) for a, b in pairs)
    return [
        Finding(measure=f"prompts, Layers 1 to {pairs[0][0].shape[0]}, {pairs[0][0].shape[1]} heads", value=len(pairs)),
        Finding(
            measure="largest difference of an average attention weight from eager attention",
            value=largest,
            expected=f"under {CURVE_LIMIT:g}",
            holds=largest < CURVE_LIMIT,
        ),
        Finding(measure="weights undefined on one side only", value=undefined, expected="0", holds=undefined == 0),
        Finding(measure="time of eager attention, in ours", value=round(eager / ours, 2), unit="times"),
    ]


def derive_throughput(folder: Path) -> list[Finding]:
    """Tokens per second of both sides, and the time of stock lm-eval in ours."""
    sides = _read(folder / "sides.json")
    samples = sum(1 for _ in read_samples(folder / "run"))
    ours = {**_read(folder / "run" / "run.json")["timing"], "wall_seconds": sides["wall_seconds"]}
    speeds = {name: one["tokens"] / one["generation_seconds"] for name, one in (("mless", ours), ("raw", sides["raw"]))}
    share = speeds["mless"] / speeds["raw"]
    stock = []
    if "stock" in sides:
        for part, key in (("generation", "generation_seconds"), ("the whole command", "wall_seconds")):
            ratio = round(sides["stock"][key] / ours[key], 2)
            stock.append(Finding(measure=f"stock lm-eval at its best, {part}", value=ratio, unit="times mless's"))
    return [
        Finding(measure="requests", value=samples),
        Finding(measure="raw vLLM", value=round(speeds["raw"], 1), unit="generated tokens/s"),
        Finding(
            measure="mless run with journal, grading and audit",
            value=round(speeds["mless"], 1),
            unit="generated tokens/s",
        ),
        Finding(
            measure="its share of raw vLLM's speed",
            value=round(share, 3),
            expected=f"at least {RAW_SHARE}, over {LEAST_REQUESTS:,} requests",
            holds=share >= RAW_SHARE if samples >= LEAST_REQUESTS else None,
        ),
        *stock,
    ]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
