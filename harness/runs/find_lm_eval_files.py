"""The files that lm-eval writes, as they stand on the disk: sample logs (`--log_samples`) and results files.

What they mean for a run is in `read_lm_eval_logs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from harness.errors import RunError
from harness.runs.journal import PACKED, find_stored, is_stored, open_stored
from harness.runs.records import fit
from harness.smollm2_model import label_model

_LOG = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
"""What lm-eval calls a sample log; the results file of that date lies beside it."""


class Generation(Struct):
    """What our sample logs add to a completion."""

    completion_tokens: int | None = None
    prompt_token_sha256: str | None = None


class LogLine(Struct):
    """A line of a sample log, but for its metrics."""

    doc_id: int
    doc: dict[str, Any]
    arguments: dict[str, dict[str, Any]]
    resps: list[Any]
    filtered_resps: list[Any]
    filter: str
    prompt_hash: str
    target: Any = None
    generations: list[Generation] = []


class Loaded(Struct):
    """What lm-eval was started with."""

    model: str | None = None
    model_args: dict[str, Any] | str | None = None
    random_seed: int | None = None


class TaskConfig(Struct):
    """How lm-eval asked one task."""

    generation_kwargs: dict[str, Any] | None = None
    num_fewshot: int | None = None
    metadata: dict[str, Any] | None = None


class ResultsFile(Struct, kw_only=True):
    """lm-eval's results file; empty where there is none."""

    model_name: str | None = None
    config: Loaded = msgspec.field(default_factory=Loaded)
    configs: dict[str, TaskConfig] = {}
    versions: dict[str, float | str | None] = {}
    n_samples: dict[str, dict[str, int]] = msgspec.field(default_factory=dict, name="n-samples")
    chat_template: Any = None
    system_instruction: str | None = None
    date: float | None = None
    lm_eval_version: str | None = None
    git_hash: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the model was loaded with."""
        given = self.config.model_args or {}
        if isinstance(given, str):
            return dict(part.split("=", 1) for part in given.split(",") if "=" in part)
        return given

    @property
    def model(self) -> str | None:
        """Name or folder of the model that was loaded."""
        name = self.arguments.get("pretrained") or self.arguments.get("model")
        return None if name is None else str(name)

    @property
    def label(self) -> str:
        """The model's name as tables show it."""
        return label_model(str(self.model_name or self.model or "model"))


def find_logs(folder: Path) -> list[Path]:
    """The sample logs in a folder, however deep; a compressed one by the name that it has uncompressed."""
    return find_stored(folder, "**/samples_*.jsonl")


def one_log(path: Path) -> Path:
    """The log itself, or the one that a folder holds."""
    found = find_logs(path) if path.is_dir() else [path.with_name(path.name.removesuffix(PACKED))]
    if len(found) != 1:
        raise RunError(
            f"{path} is a folder with {len(found)} sample logs: expected one. Name the file itself."
        )
    if not is_stored(found[0]):
        raise RunError(
            f"{path} does not exist. Expected a run folder, or a sample log of lm_eval --log_samples."
        )
    return found[0]


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any], LogLine]]:
    """Each line with its place, as JSON has it and in its form."""
    with open_stored(path) as stream:
        for number, text in enumerate(stream, start=1):
            where = f"{path}, line {number}"
            try:
                raw = json.loads(text)  # which reads NaN, as lm-eval writes it
            except (ValueError, RecursionError) as error:
                raise RunError(f"{where}: not a line of lm_eval --log_samples: {error}.") from None
            yield where, raw, fit(LogLine, raw, where)


def read_results(log: Path) -> tuple[str | None, ResultsFile]:
    """The log's task, and the results file beside it."""
    called = _LOG.fullmatch(log.name)
    path = log.with_name(f"results_{called['date']}.json") if called else None
    if called is None or path is None or not path.is_file():
        return called and called["task"], ResultsFile()
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is no results file of lm-eval: {error}.") from None
    return called["task"], fit(ResultsFile, read, path)


def prompt_of(where: str, line: LogLine) -> tuple[str, bool]:
    """The prompt's text, and whether the model was asked to generate (rather than to score a continuation).

    The text is empty where chat messages were sent, which only the server made a text of.
    """
    request = line.arguments.get("gen_args_0", {})
    text, generated = request.get("arg_0"), isinstance(request.get("arg_1"), dict)
    if isinstance(text, list):
        return "", generated
    if not isinstance(text, str):
        raise RunError(f"{where}: no prompt text in its `arguments`.")
    return text, generated
