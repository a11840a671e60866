"""Grade a finished run again, without a model: after a better grader, or to ask the other graders too."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

from harness.display.progress import progress_bar
from harness.errors import JournalError
from harness.execution.run import finish
from harness.execution.scoring import Scorer
from harness.grading import GRADER_VERSION
from harness.runs.folder import SCORES, lock, read_prompts, read_samples, read_scores, scored_now, set_old_scores_aside
from harness.runs.journal import Journal, read_journal
from harness.runs.records import as_json
from harness.runs.stored_files import clear_messages, is_stored, unpack_files


def regrade(path: Path) -> str:
    """Make every score anew and say which verdicts changed. Until the last is made, the old ones stay in force.

    Raises:
        JournalError: there is no finished run, or another process has the folder.
    """
    from harness.runs.sample_frame import read_receipt

    read_receipt(path)
    held = lock(path)
    part = path / f"{SCORES}.part"
    try:
        with clear_messages(path):
            unpack_files(path)
        old = islice(read_journal(path / SCORES), 1, None) if is_stored(path / SCORES) else ()
        before = {score["key"]: score.get("verdict") for score in old}  # whatever it says: it goes
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
            raise JournalError(f"{path}: {len(after)} of {len(samples)} samples were graded. Run the command again.")
        with clear_messages(path):
            set_old_scores_aside(path)
            part.replace(path / SCORES)
        finish(path)
    finally:
        part.unlink(missing_ok=True)
        held.release()
    changed = Counter(
        f"{before[key]} -> {score.verdict}"
        for key, score in after.items()
        if key in before and before[key] != score.verdict
    )
    told = "".join(f"\n  {count:6}  {change}" for change, count in changed.most_common())
    return f"{len(after)} samples graded by version {GRADER_VERSION}, {sum(changed.values())} verdicts changed{told}"
