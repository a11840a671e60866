"""Grade again, without a model: a finished run, or completions that mless did not generate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pandas

from harness.display.progress import progress_bar
from harness.errors import ConfigError, JournalError, list_near
from harness.execution.execute_plan import finish
from harness.execution.grade_samples import Scorer
from harness.grading import GradeJob, GraderPool
from harness.grading.same_answer import GRADER_VERSION
from harness.runs.find_lm_eval_files import find_logs
from harness.runs.journal import Journal, clear_messages, expand, read_header, read_records
from harness.runs.read_lm_eval_logs import read_log
from harness.runs.records import Score, as_json
from harness.runs.run_folder import (
    SCORES,
    compress_finished,
    lock,
    read_prompts,
    read_receipt,
    read_samples,
    read_scores,
    scored_now,
    set_old_scores_aside,
)

REGRADED_SHOWN = 20
"""Samples with a changed verdict that `mless regrade` names; all are counted."""


def regrade(path: Path) -> str:
    """Make every score anew and name the samples whose verdict changed. Until the last is made, the old ones hold.

    Raises:
        JournalError: there is no finished run, or another process has the folder.
    """
    read_receipt(path)
    held = lock(path)
    part = path / f"{SCORES}.part"
    try:
        with clear_messages(path):
            expand(path)
        version, before = _read_old(path / SCORES)
        part.unlink(missing_ok=True)
        samples = list(read_samples(path))
        with (
            Journal(part, as_json(scored_now())) as scores,
            Scorer(scores, read_prompts(path)) as scorer,
        ):
            for sample in samples:
                scorer.submit(sample)
            with progress_bar("regrade") as advance:
                for done, _ in enumerate(scorer.finish(), start=1):
                    advance(done, len(samples))
        after = read_scores(path, part.name)
        if len(after) != len(samples):
            raise JournalError(
                f"{path}: {len(after)} of {len(samples)} samples were graded. Run the command again."
            )
        with clear_messages(path):
            set_old_scores_aside(path)
            part.replace(path / SCORES)
        finish(path)
    finally:
        part.unlink(missing_ok=True)
        compress_finished(path)
        held.release()
    changed = [
        (
            f"{before[one.key]} -> {after[one.key].verdict}",
            f"{one.task} {one.problem_id} sample {one.sample_index}",
        )
        for one in samples
        if one.key in before and before[one.key] != after[one.key].verdict
    ]
    counts = Counter(change for change, _ in changed).most_common()
    lines = [f"  {count:6}  {change}" for change, count in counts]
    lines += [f"  {change}: {sample}" for change, sample in changed[:REGRADED_SHOWN]]
    lines += (
        [f"  and {len(changed) - REGRADED_SHOWN} more"] if len(changed) > REGRADED_SHOWN else []
    )
    told = f"{len(after)} samples, grader {version} -> {GRADER_VERSION}"
    return "\n".join([f"{told}: {len(changed)} verdicts changed", *lines])


def _read_old(scores: Path) -> tuple[object, dict[str, str]]:
    """The grader's version and the verdicts by key; missing or damaged scores go without them."""
    try:
        return read_header(scores).get("grader_version"), {
            one.key: one.verdict for one in read_records(scores, Score)
        }
    except JournalError:
        return None, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A completion with its gold answer; what a filter read from it, and whether that was right, where it is known."""

    name: str
    completion: str
    gold: str
    read: str | None = None
    right: bool | None = None

    def job(self) -> GradeJob:
        """Its last box is graded; where there is none, what the filter read, else the last line."""
        gold = self.gold.rpartition("####")[2].strip()  # as GSM8K ends its solutions
        if "\\boxed" in self.completion or "\\fbox" in self.completion:
            return GradeJob(completion=self.completion, target=gold)
        lines = self.completion.strip().splitlines() or [""]
        return GradeJob(completion=self.read or lines[-1], target=gold, line=True)


def regrade_logs(path: Path, *, metric: str | None, completion: str, gold: str) -> pandas.DataFrame:
    """Grade completions that mless did not generate.

    Args:
        path: A sample log, a folder of logs, or a CSV or JSONL file.
        metric: Of a log: see `read_lm_eval_logs.read_log`.
        completion: The column of completions in a CSV or JSONL file.
        gold: That of gold answers.

    Returns:
        A row for each completion: `name`, `gold`, `answer`, `verdict`; `ours`: whether it is right, and `theirs`:
        whether it is by the log's metric, missing where there is none.

    Raises:
        RunError: a log is missing or damaged.
        ConfigError: the file cannot be read, lacks a column, or holds no completion.
    """
    logs = find_logs(path) if path.is_dir() else [path] if path.name.startswith("samples_") else []
    samples = list(chain.from_iterable(_of_log(log, metric) for log in logs))
    if not logs:
        samples = list(_of_table(path, completion, gold))
    if not samples:
        raise ConfigError(f"{path} holds no completion.")
    with GraderPool() as pool:
        for number, sample in enumerate(samples):
            pool.submit(number, sample.job())
        grades: dict[int, Any] = dict(pool.drain())
    return pandas.DataFrame(
        {
            "name": sample.name,
            "gold": sample.gold,
            "answer": grades[number].answer,
            "verdict": grades[number].verdict,
            "ours": grades[number].correct,
            "theirs": sample.right,
        }
        for number, sample in enumerate(samples)
    )


def _of_log(path: Path, metric: str | None) -> Iterator[Completed]:
    for prompt in read_log(path, metric=metric).prompts:
        for sample, score in prompt.graded_samples:
            right = score.verdict == "correct" if score.verdict else None
            name, gold = prompt.problem_id, prompt.doc["answer"]
            yield Completed(
                name=name,
                completion=sample.completion or "",
                gold=gold,
                read=score.answer,
                right=right,
            )


def _of_table(path: Path, completion: str, gold: str) -> Iterator[Completed]:
    try:
        is_csv = path.suffix == ".csv"
        table = (
            pandas.read_csv(path, dtype=str)
            if is_csv
            else pandas.read_json(path, lines=True, dtype=False)
        )
        table = table.fillna("")  # a model may have written nothing
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no CSV or JSONL of completions: {error}.") from None
    if absent := [name for name in (completion, gold) if name not in table]:
        raise ConfigError(
            f"{path} has no column {absent[0]!r}: expected one of {list_near(absent[0], table)}."
        )
    for number, row in enumerate(table.to_dict("records"), start=1):
        yield Completed(
            name=str(row.get("id", number)), completion=str(row[completion]), gold=str(row[gold])
        )
