"""What a report is about: the runs that tables compare, and the texts of every prompt and completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.leaderboard import records
from harness.errors import RunError
from harness.runs.read_run import read_run
from harness.runs.run import Run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """Everything that a report is made from.

    Attributes:
        runs: What is compared.
        names: Of the runs, for people.
        models: The names that the runs' models were loaded by.
        samples: One mapping per sample, with the names of `load_run`'s columns. `prompt` is its `RunPrompt`.
    """

    runs: tuple[Run, ...]
    names: tuple[str, ...]
    models: tuple[str, ...]
    samples: tuple[Mapping[str, Any], ...]


def read_content(runs: Sequence[Path | Mapping[str, Path]], *, metric: str | None = None) -> Content:
    """Read runs, each as `read_run` does, with their texts.

    Args:
        runs: Run folders, lm-eval output folders or sample logs; mappings of condition to sample log.
        metric: What in the logs of other tasks says right or wrong.

    Raises:
        RunError: there is none, or one cannot be read.
    """
    if not runs:
        raise RunError("A report needs at least one run: expected run folders, got none. Name one, as results/example.")
    read = [read_run(run, metric=metric) for run in runs]
    models = tuple(str(one.facts["model"] if one.is_logs else one.receipt["model"]["name"]) for one in read)
    samples: list[Mapping[str, Any]] = []
    for run in read:
        texts = records(run.read_texts())  # first, since it says more of what is missing
        prompts = {(one.layout, str(one.condition), one.problem_id): one for one in run.read_prompts()}
        for row in texts:
            prompt = prompts[row["layout"], row["condition"], row["problem_id"]]
            samples.append({**row, "prompt": prompt})
    return Content(
        runs=tuple(read),
        names=tuple(Path(one.name).resolve().name if Path(one.name).exists() else one.name for one in read),
        models=models,
        samples=tuple(samples),
    )
