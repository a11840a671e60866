"""Grade a finished run again, without a model: after a better grader, or to ask the other graders too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.constants import GRADER_VERSION, REGRADED_SHOWN
from harness.display.progress import progress_bar
from harness.errors import JournalError
from harness.execution.run import finish
from harness.execution.scoring import Scorer
from harness.runs.folder import (
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
from harness.runs.journal import Journal, clear_messages, expand, read_header, read_records
from harness.runs.records import Score, as_json


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
        with Journal(part, as_json(scored_now())) as scores, Scorer(scores, read_prompts(path)) as scorer:
            for sample in samples:
                scorer.submit(sample)
            with progress_bar("regrade") as advance:
                for done, _ in enumerate(scorer.finish(), start=1):
                    advance(done, len(samples))
        after = read_scores(path, part.name)
        if len(after) != len(samples):
            raise JournalError(f"{path}: {len(after)} of {len(samples)} samples were graded. Run the command again.")
        with clear_messages(path):
            set_old_scores_aside(path)
            part.replace(path / SCORES)
        finish(path)
    finally:
        part.unlink(missing_ok=True)
        compress_finished(path)
        held.release()
    changed = [
        (f"{before[one.key]} -> {after[one.key].verdict}", f"{one.task} {one.problem_id} sample {one.sample_index}")
        for one in samples
        if one.key in before and before[one.key] != after[one.key].verdict
    ]
    counts = Counter(change for change, _ in changed).most_common()
    lines = [f"  {count:6}  {change}" for change, count in counts]
    lines += [f"  {change}: {sample}" for change, sample in changed[:REGRADED_SHOWN]]
    lines += [f"  and {len(changed) - REGRADED_SHOWN} more"] if len(changed) > REGRADED_SHOWN else []
    told = f"{len(after)} samples, grader {version} -> {GRADER_VERSION}"
    return "\n".join([f"{told}: {len(changed)} verdicts changed", *lines])


def _read_old(scores: Path) -> tuple[object, dict[str, str]]:
    """The grader's version and the verdicts by key; missing or damaged scores go without them."""
    try:
        return read_header(scores).get("grader_version"), {one.key: one.verdict for one in read_records(scores, Score)}
    except JournalError:
        return None, {}
