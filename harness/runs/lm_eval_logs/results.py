"""lm-eval's results file, for one task: which model was asked, with which settings, and how many documents."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from harness.errors import RunError
from harness.experiment.config import fixed_arguments
from harness.runs.records import Word, encodable, fit, printable

LAST_SECOND = 253_402_300_799
"""Of the year 9999: later dates have no name."""

_LOG = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
"""What lm-eval calls a sample log; the results file of that date lies beside it."""


class Loaded(Struct):
    """What lm-eval was started with."""

    model: Word | None = None
    model_args: dict[str, Any] | str | None = None
    random_seed: int | None = None

    def __post_init__(self) -> None:
        printable(self.model_args)


class TaskConfig(Struct):
    """How lm-eval asked one task."""

    generation_kwargs: dict[str, Any] | None = None
    num_fewshot: int | None = None
    metadata: Any = None

    def __post_init__(self) -> None:
        printable(self.generation_kwargs)


class Counts(Struct):
    """Documents that a task has, and how many were asked."""

    original: int
    effective: int


class ResultsFile(Struct, kw_only=True):
    """lm-eval's results file."""

    model_name: Word | None = None
    config: Loaded = msgspec.field(default_factory=Loaded)
    configs: dict[str, TaskConfig] = {}
    versions: dict[str, float | Word | None] = {}
    n_samples: dict[str, Counts] = msgspec.field(default_factory=dict, name="n-samples")
    chat_template: Any = None
    system_instruction: Word | None = None
    date: Annotated[float, Meta(ge=0, le=LAST_SECOND)] | None = None
    lm_eval_version: Word | None = None
    git_hash: Word | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResults:
    """A results file, seen from one of its tasks.

    Attributes:
        task: lm-eval's name of the task; None where the log has another name than lm-eval gives.
        file: The results file; empty where there is none.
    """

    task: str | None
    file: ResultsFile

    @property
    def model(self) -> str | None:
        """Name or folder of the model that was loaded."""
        name = self._arguments.get("pretrained") or self._arguments.get("model")
        return None if name is None else str(name)

    @property
    def counts(self) -> Counts | None:
        """How many documents there are, and how many were asked."""
        return self.file.n_samples.get(self.task or "")

    @property
    def condition(self) -> str:
        """The condition of a task that `mless tasks --wrap` wrote; empty for any other."""
        return encodable(self._stated("filler_condition") or "")

    @property
    def filler(self) -> str | None:
        """What such a task puts before the question; None for any other."""
        return self._stated("filler")

    def _stated(self, key: str) -> str | None:
        asked = self.file.configs.get(self.task or "")
        said = asked.metadata.get(key) if asked and isinstance(asked.metadata, dict) else None
        return said if isinstance(said, str) else None

    @property
    def version(self) -> float | str | None:
        """The task's version."""
        return self.file.versions.get(self.task or "")

    @property
    def settings(self) -> dict[str, Any]:
        """How completions were asked for; what is not known is left out."""
        asked = self.file.configs.get(self.task or "")
        known = {
            "backend": self.file.config.model,
            "model": self.model,
            "model_args": {k: str(v) for k, v in fixed_arguments(self._arguments).items()},
            "system_instruction": self.file.system_instruction or "",
            "num_fewshot": None if asked is None else asked.num_fewshot,
            "generation_kwargs": None if asked is None else asked.generation_kwargs,
        }
        there = self.file.config.model is not None
        return {name: value for name, value in known.items() if there and value is not None}

    @property
    def _arguments(self) -> dict[str, Any]:
        given = self.file.config.model_args or {}
        if isinstance(given, str):
            return dict(part.split("=", 1) for part in given.split(",") if "=" in part)
        return given


def read_results(log: Path) -> TaskResults:
    """Read the results file beside a sample log, for the log's task.

    Raises:
        RunError: the file is damaged or no results file.
    """
    called = _LOG.fullmatch(log.name)
    path = log.with_name(f"results_{called['date']}.json") if called else None
    remedy = "Restore the file from a copy, or run lm_eval again."
    file = ResultsFile()
    if path is not None and path.is_file():
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is torn or damaged ({error}). {remedy}") from None
        file = fit(ResultsFile, read, path, remedy)
    return TaskResults(task=called["task"] if called else None, file=file)
