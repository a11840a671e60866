"""Scores of other harnesses: Inspect's logs, lighteval's details, and tables; lm-eval's are apart.

What a file is follows from its content. Each reader makes rows whose keys are the roles of
`score_tables`, such as `item` and `score`.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas

from harness.constants import JsonObject
from harness.data_records import read_data
from harness.errors import ConfigError, RunError, list_first, quote
from harness.runs.logs.score_tables import ScoreTable, read_table

HEAD_BYTES = 1 << 16
"""Bytes of a file that show its kind."""
LM_EVAL, INSPECT, LIGHTEVAL, TABLE = "lm-eval", "Inspect", "lighteval", "table"
_PATTERN_BY_KIND = {
    # Inspect's log is JSON, or a zip whose first file is a journal or header
    INSPECT: re.compile(
        rb'PK\x03\x04.{26}(_journal|header)|\{\s*"version": *\d+,\s*"status"', re.S
    ),
    LM_EVAL: re.compile(rb'\{.*"doc_id":.*"doc":|\{.*"doc":.*"doc_id":', re.S),
    # any parquet file, because its columns may be described only at its end
    LIGHTEVAL: re.compile(rb"PAR1"),
}


def find_kind(path: Path) -> str:
    """`LM_EVAL`, `INSPECT`, `LIGHTEVAL` or `TABLE`, which is any other file.

    A missing file counts as lm-eval's, whose reader says what is missing. An empty file with
    Inspect's suffix counts as Inspect's.
    """
    if not path.is_file():
        return LM_EVAL
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if not head and path.suffix == ".eval":
        return INSPECT
    kind = next((kind for kind, pattern in _PATTERN_BY_KIND.items() if pattern.match(head)), TABLE)
    if kind != LIGHTEVAL:
        return kind
    # a parquet file is lighteval's only if it has the columns of lighteval's details
    from pyarrow.lib import ArrowException
    from pyarrow.parquet import read_schema

    with suppress(ArrowException):  # a damaged file counts as a table, whose reader refuses it
        if {"doc", "metric", "model_response"} <= {*read_schema(path).names}:
            return LIGHTEVAL
    return TABLE


def read_scores(
    file_or_frame: Path | pandas.DataFrame,
    metric: str | None,
    columns: str | None,
    needed_roles: tuple[str, ...] = ("item", "score"),
) -> ScoreTable:
    """The scores of a file or frame.

    Args:
        file_or_frame: The file or frame.
        metric: The scorer of Inspect, or the metric of lighteval.
        columns: See `score_tables.read_table`.
        needed_roles: The roles that a table must have.

    Raises:
        HarnessError: the file is damaged, not finished or unclear.
    """
    if isinstance(file_or_frame, Path) and (kind := find_kind(file_or_frame)) != TABLE:
        reader = _read_inspect if kind == INSPECT else _read_lighteval
        return reader(file_or_frame, metric)
    if metric:
        raise ConfigError(f"{file_or_frame} is a table: type --columns score={metric}.")
    return read_table(file_or_frame, columns, needed_roles)


def _read_inspect(path: Path, metric: str | None) -> ScoreTable:
    """A log of Inspect. Its epochs are samples."""
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(str(path))
    except Exception as error:
        raise RunError(f"{path} is cut off or damaged: {quote(error)}.") from None
    scored_samples = [sample for sample in log.samples or () if sample.scores and not sample.error]
    expected_count = max(1, log.results.total_samples if log.results else 0)
    if log.status != "success" or len(scored_samples) < expected_count:
        raise RunError(
            f"{path}: {len(scored_samples)} of {expected_count} samples have scores, and the log's "
            f"status is {log.status}: expected all, and success. `inspect eval-retry` finishes it."
        )
    located_rows = []
    for sample in scored_samples:
        location = f"{path}, sample {sample.id}, epoch {sample.epoch}"
        question_texts = [sample.input]
        if isinstance(sample.input, list):
            question_texts = [message.text for message in sample.input if message.role == "user"]
        # if the user named no metric, the only one of the first sample counts for all samples
        metric, metric_value = _choose_metric(
            location, {name: score.value for name, score in sample.scores.items()}, metric
        )
        row = {
            "item": sample.id,
            "sample": sample.epoch,
            "score": metric_value,
            "completion": sample.output.completion,
            "gold": sample.target,
            "question": " ".join([*question_texts, *(sample.choices or ())]),
        }
        located_rows.append((location, row))
    return ScoreTable(kind=INSPECT, located_rows=located_rows, about=_describe_inspect(log, metric))


def _describe_inspect(log: Any, metric: str | None) -> JsonObject:
    """The facts of a log of Inspect for `Run.about`."""
    facts = log.eval.model_dump(mode="json")
    settings = {name: facts[name] for name in ("model_args", "task_args", "solver_args", "config")}
    settings["generation"] = log.plan.config.model_dump(mode="json")
    return {
        "model": facts["model"],
        "created": facts["created"],
        "task_version": facts["task_version"],
        "metric": metric,
        "versions": facts["packages"],
        "settings": settings,
        "greedy": _is_greedy(log.plan.config.temperature),
        "evaluation": facts["eval_id"],
    }


def _read_lighteval(path: Path, metric: str | None) -> ScoreTable:
    """Lighteval's details of a task, with the settings of the results file of the same date."""
    located_rows = []
    records = list(read_data(path))
    if not records:
        raise RunError(f"{path} has no row.")
    for location, record in records:
        doc = record["doc"]
        gold_index = doc["gold_index"]
        gold_indices = gold_index if isinstance(gold_index, list) else [gold_index]
        metric, metric_value = _choose_metric(location, record["metric"], metric)
        row = {
            "item": doc["id"],
            "score": metric_value,
            "completion": record["model_response"]["text"],
            "gold": [doc["choices"][index] for index in gold_indices],
            "question": doc["query"],
        }
        located_rows.append((location, row))
    # all documents of a task have the same settings, so the last one will do
    settings = {"max_gen_toks": doc["generation_size"], "num_fewshot": len(doc["fewshot_samples"])}
    # details lie in OUTPUT/details/MODEL/DATE, their results file in OUTPUT/results/MODEL
    output_folder, _, model_folder = str(path.parent.parent).rpartition("/details/")
    with suppress(OSError):
        results_path = Path(
            output_folder, "results", model_folder, f"results_{path.parent.name}.json"
        )
        settings |= json.loads(results_path.read_bytes())["config_general"]["model_config"]
    return ScoreTable(
        kind=LIGHTEVAL,
        located_rows=located_rows,
        about={
            "model": settings.get("model_name"),
            "metric": metric,
            "settings": settings,
            "greedy": _is_greedy(settings.get("generation_parameters", {}).get("temperature")),
        },
    )


def _is_greedy(temperature: float | None) -> bool | None:
    """Whether the likeliest token was always taken; None if the temperature is not known."""
    return None if temperature is None else temperature == 0


def _choose_metric(
    location: str, value_by_metric: JsonObject, metric: str | None
) -> tuple[str, Any]:
    """The named metric of a sample and its value; the only metric if none is named.

    A metric whose value is a mapping counts as several, each named `NAME,KEY`.
    """
    value_by_full_name: JsonObject = {}
    for name, value in value_by_metric.items():
        if isinstance(value, Mapping) and value:
            value_by_full_name |= {f"{name},{key}": subvalue for key, subvalue in value.items()}
        else:
            value_by_full_name[name] = value
    if metric is None and len(value_by_full_name) == 1:
        (metric,) = value_by_full_name
    if metric is None or metric not in value_by_full_name:
        raise ConfigError(
            f"{location} has the scores {list_first([*value_by_full_name], 12)}: name one as "
            "--metric."
        )
    return metric, value_by_full_name[metric]
