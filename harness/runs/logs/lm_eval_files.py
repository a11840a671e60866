"""The files that lm-eval writes: sample logs (`--log_samples`) and results files.

What they mean for a run is in `lm_eval_logs`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from harness.constants import JsonObject
from harness.errors import TABLE_HINT, RunError, name_similar_files
from harness.runs.records import as_record
from harness.runs.stored_files import open_stored

_LOG_NAME_PATTERN = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
"""lm-eval's name of a sample log; the results file of the same date lies beside it."""


class LogLine(Struct):
    """A line of a sample log without its metrics."""

    doc_id: int
    doc: JsonObject
    arguments: dict[str, JsonObject]
    resps: list[Any]
    filtered_resps: list[Any]
    filter: str
    prompt_hash: str
    target: Any = None


class EvaluationConfig(Struct):
    """The options that lm-eval was started with."""

    model: str | None = None
    model_args: JsonObject | str | None = None
    random_seed: int | None = None
    fewshot_seed: int | None = None


class TaskConfig(Struct):
    """lm-eval's settings of a task."""

    generation_kwargs: JsonObject | None = None
    num_fewshot: int | None = None
    metadata: JsonObject | None = None


class ResultsFile(Struct):
    """lm-eval's results file, for one of its sample logs; empty where there is no such file.

    Attributes:
        task: lm-eval's name of the log's task; empty where the log is named in another way than
            lm-eval names it.
    """

    task: str = ""
    model_name: str | None = None
    config: EvaluationConfig = msgspec.field(default_factory=EvaluationConfig)
    configs: dict[str, TaskConfig] = {}
    versions: dict[str, float | str | None] = {}
    n_samples: dict[str, dict[str, int]] = msgspec.field(default_factory=dict, name="n-samples")
    chat_template: Any = None
    system_instruction: str | None = None
    date: float | None = None
    lm_eval_version: str | None = None
    git_hash: str | None = None

    @property
    def task_config(self) -> TaskConfig:
        """The task's settings; empty where they are unknown."""
        return self.configs.get(self.task, TaskConfig())

    @property
    def task_version(self) -> float | str | None:
        """The version of the task in the log; None if the log has none."""
        return self.versions.get(self.task)

    @property
    def model_arguments(self) -> JsonObject:
        """The arguments that the model was loaded with."""
        arguments = self.config.model_args or {}
        if isinstance(arguments, str):
            return dict(pair.split("=", 1) for pair in arguments.split(",") if "=" in pair)
        return arguments

    @property
    def model(self) -> str | None:
        """Name or folder of the model that was loaded."""
        name = self.model_arguments.get("pretrained") or self.model_arguments.get("model")
        return None if name is None else str(name)


def find_logs(folder: Path) -> list[Path]:
    """The sample logs in a folder and its subfolders."""
    return sorted(folder.glob("**/samples_*.jsonl"))


def find_log(path: Path) -> Path:
    """The log itself, or the only log in a folder.

    Raises:
        RunError: the folder has another number of logs, or there is no such file.
    """
    if path.is_dir():
        log_paths = find_logs(path)
        if len(log_paths) != 1:
            raise RunError(
                f"{path} is a folder with {len(log_paths)} sample logs: expected one. "
                "Name the file itself."
            )
        return log_paths[0]
    if not path.is_file():
        raise RunError(
            f"{path} does not exist. Expected a run folder, or a sample log of "
            f"lm_eval --log_samples.{name_similar_files(path)}"
        )
    return path


def read_lines(path: Path) -> Iterator[tuple[str, JsonObject, LogLine]]:
    """Each line as its file and number (for messages), as a JSON object, and as a `LogLine`.

    Raises:
        RunError: a line is damaged, or the file is not a sample log.
    """
    with open_stored(path) as stream:
        for line_number, line_text in enumerate(stream, start=1):
            location = f"{path}, line {line_number}"
            message_start = f"{location}: not a line of lm_eval --log_samples"
            try:
                line_fields = json.loads(line_text)  # accepts NaN, which lm-eval writes
            except (ValueError, RecursionError) as error:
                raise RunError(f"{message_start}: {error}. {TABLE_HINT}") from None
            yield location, line_fields, as_record(LogLine, line_fields, message_start)


def read_results(log_path: Path) -> ResultsFile:
    """The results file beside a log.

    Raises:
        RunError: the file is damaged or not a results file.
    """
    match = _LOG_NAME_PATTERN.fullmatch(log_path.name)
    if match is None:
        return ResultsFile()
    results_path = log_path.with_name(f"results_{match['date']}.json")
    if not results_path.is_file():
        return ResultsFile(task=match["task"])
    try:
        stored_results = json.loads(results_path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{results_path} is not a results file of lm-eval: {error}.") from None
    results = as_record(ResultsFile, stored_results, results_path)
    # the file may hold several tasks, of which the log's name says its own
    results.task = match["task"]
    return results
