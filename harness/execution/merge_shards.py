"""Shards of one run become one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import JournalError
from harness.execution.run import finish
from harness.execution.scoring import Scorer
from harness.experiment.plan import Shard
from harness.experiment.prompt import hash_prompts
from harness.runs.folder import (
    RunFolder,
    count_expected,
    read_identity,
    read_prompts,
    read_samples,
    read_scored_by,
    read_sessions,
    refuse_file,
    scored_now,
    stream_scores,
)
from harness.runs.journal import differences
from harness.runs.records import Identity, Sample, as_json

_PER_SHARD = ("shard", "prompts_sha256")
"""What of a run's identity each shard has of its own."""


def merge(shards: Sequence[Path], output: Path) -> None:
    """Merge finished shards into a new run folder, problems in their first order.

    Raises:
        JournalError: a shard is missing, given twice, unfinished, or of another run; or `output` is or holds a file.
    """
    refuse_file(output)
    identities = [read_identity(path) for path in shards]
    parts = [_shard(path, identity) for path, identity in zip(shards, identities, strict=True)]
    count = parts[0].count
    missing = set(range(1, count + 1)) - {part.index for part in parts}
    if missing or len(parts) != count:
        names = ", ".join(f"{index}/{count}" for index in sorted(missing)) or "none, but one is given twice"
        raise JournalError(f"merge needs all {count} shards of the run. Missing: {names}.")
    common = [
        {name: value for name, value in as_json(identity).items() if name not in _PER_SHARD} for identity in identities
    ]
    for path, other in zip(shards[1:], common[1:], strict=True):
        if changed := differences(common[0], other):
            raise JournalError(
                f"{path} is a shard of another run than {shards[0]}: {'; '.join(changed[:4])}. Merge what "
                "belongs together."
            )
    if output.exists() and any(output.iterdir()):
        raise JournalError(f"{output} already holds files. Choose another --output; nothing there was touched.")
    in_order = [path for _, path in sorted(zip([part.index for part in parts], shards, strict=True))]
    recorded = [_finished_samples(path) for path in in_order]
    prompts = _interleave([read_prompts(path) for path in in_order])
    identity = msgspec.structs.replace(identities[0], shard=None, prompts_sha256=hash_prompts(prompts))
    with RunFolder(output, identity, prompts) as folder:
        with Scorer(folder.scores, prompts) as scorer:  # where a shard has the scores of another grader
            for path, samples in zip(in_order, recorded, strict=True):
                if read_scored_by(path) == scored_now():
                    for score in stream_scores(path):
                        folder.scores.append({"key": score.key, **score.graded()})
                for session in read_sessions(path):
                    folder.begin_session({name: value for name, value in session.items() if name != "key"})
                for sample in samples:
                    folder.journal.append(sample)
                    scorer.submit(sample)
            for _ in scorer.finish():
                pass
        finish(output)


def _finished_samples(path: Path) -> list[Sample]:
    """All samples of a shard.

    Raises:
        JournalError: the shard has not been finished.
    """
    wanted = sum(count_expected(read_prompts(path), read_identity(path)))
    found = list(read_samples(path))
    if len(found) != wanted:
        raise JournalError(
            f"{path} holds {len(found)} of {wanted} samples: continue it with the command that began it, then merge."
        )
    return found


def _shard(path: Path, identity: Identity) -> Shard:
    if identity.shard is None:
        raise JournalError(f"{path} is no shard. Expected folders that `mless run --shard I/N` made.")
    return Shard.parse(identity.shard)


def _interleave(prompts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of all shards in the order of the whole dataset: each shard has every n-th problem, all arms of it."""
    problems: list[list[list[dict[str, Any]]]] = []
    for rows in prompts:
        grouped: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            grouped.setdefault(row["doc"]["id"], []).append(row)
        problems.append(list(grouped.values()))
    longest = max(map(len, problems))
    return [row for place in range(longest) for shard in problems if place < len(shard) for row in shard[place]]
