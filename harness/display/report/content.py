"""What a report is about: what tables compare, and beside it the texts of every prompt and completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.leaderboard import records
from harness.errors import RunError
from harness.runs.read_run import read_run
from harness.runs.run import Run

PromptKey = tuple[int, str, str, str]
"""The run's number, layout, condition, problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """One prompt in parts.

    Attributes:
        problem: The problem's text alone; the whole prompt where no document says.
        parts: Role and text of every part; joined they are what the model got. What no segment covers is `template`;
            empty where the text is not known.
        sha256: Hash of the whole.
    """

    problem: str
    parts: tuple[tuple[str, str], ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """Everything that a report is made from.

    Attributes:
        runs: What is compared.
        names: Of the runs, for people.
        models: The names that the runs' models were loaded by.
        samples: One mapping a sample, with the names of `load_run`'s columns and the number of its run in `run`.
        prompts: Every prompt.
    """

    runs: tuple[Run, ...]
    names: tuple[str, ...]
    models: tuple[str, ...]
    samples: tuple[Mapping[str, Any], ...]
    prompts: Mapping[PromptKey, PromptText]


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
    samples: list[Mapping[str, Any]] = []
    prompts: dict[PromptKey, PromptText] = {}
    for number, run in enumerate(read):
        samples += records(run.read_texts().assign(run=number))
        for one in run.read_prompts():
            problem = next((one.doc[name] for name in ("problem", "question") if name in one.doc), one.text)
            key = (number, one.layout, str(one.condition), one.problem_id)
            prompts[key] = PromptText(problem=str(problem), parts=one.parts, sha256=one.sha256)
    return Content(
        runs=tuple(read),
        names=tuple(Path(one.name).resolve().name if Path(one.name).exists() else one.name for one in read),
        models=tuple(str(one.facts["model"] if one.is_logs else one.receipt["model"]["name"]) for one in read),
        samples=tuple(samples),
        prompts=prompts,
    )
