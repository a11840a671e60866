"""Scores of other harnesses: Inspect's logs, lighteval's details, and tables; lm-eval's are apart.

What a file is follows from its content.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas

from harness.data_records import read_data
from harness.errors import ConfigError, RunError, list_first, quote
from harness.runs.logs.score_tables import ScoreTable, read_table

HEAD_BYTES = 1 << 16
"""Bytes of a file that show its kind."""
LM_EVAL, INSPECT, LIGHTEVAL, TABLE = "lm-eval", "Inspect", "lighteval", "table"
# a zip of Inspect begins with its journal or header
_HEADS = {
    INSPECT: re.compile(
        rb'PK\x03\x04.{26}(_journal|header)|\{\s*"version": *\d+,\s*"status"', re.S
    ),
    LM_EVAL: re.compile(rb'\{.*"doc_id":.*"doc":|\{.*"doc":.*"doc_id":', re.S),
    # the description of the columns may stand at the end
    LIGHTEVAL: re.compile(rb"PAR1"),
}


def find_kind(path: Path) -> str:
    """`LM_EVAL`, `INSPECT`, `LIGHTEVAL` or `TABLE`; a missing file counts as lm-eval's."""
    if not path.is_file():
        return LM_EVAL
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if not head and path.suffix == ".eval":
        return INSPECT
    kind = next((kind for kind, pattern in _HEADS.items() if pattern.match(head)), TABLE)
    if kind == LIGHTEVAL:
        from pyarrow.lib import ArrowException
        from pyarrow.parquet import read_schema

        with suppress(ArrowException):  # the reader of tables names the fault
            if {"doc", "metric", "model_response"} <= {*read_schema(path).names}:
                return kind
        return TABLE
    return kind


def read_scores(
    source: Path | pandas.DataFrame,
    metric: str | None,
    columns: str | None,
    needed: tuple[str, ...] = ("item", "score"),
) -> ScoreTable:
    """The scores of a file or frame.

    Args:
        source: The file or frame.
        metric: The scorer of Inspect, or the metric of lighteval.
        columns: See `score_tables.read_table`.
        needed: The roles that a table must have.

    Raises:
        HarnessError: the file is damaged, not finished or unclear.
    """
    if isinstance(source, Path) and (kind := find_kind(source)) != TABLE:
        return {INSPECT: _read_inspect, LIGHTEVAL: _read_lighteval}[kind](source, metric)
    if metric:
        raise ConfigError(f"{source} is a table: type --columns score={metric}.")
    return read_table(source, columns, needed)


def _read_inspect(path: Path, metric: str | None) -> ScoreTable:
    """A log of Inspect. Its epochs are samples."""
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(str(path))
    except Exception as error:
        raise RunError(f"{path} is cut off or damaged: {quote(error)}.") from None
    scored = [sample for sample in log.samples or () if sample.scores and not sample.error]
    expected = max(1, log.results.total_samples if log.results else 0)
    if log.status != "success" or len(scored) < expected:
        raise RunError(
            f"{path}: {len(scored)} of {expected} samples have scores, and the log's status is "
            f"{log.status}: expected all, and success. `inspect eval-retry` finishes it."
        )
    rows = []
    for sample in scored:
        location = f"{path}, sample {sample.id}, epoch {sample.epoch}"
        values = {name: score.value for name, score in sample.scores.items()}
        texts = [sample.input]
        if isinstance(sample.input, list):
            texts = [message.text for message in sample.input if message.role == "user"]
        # without a name, the first sample chooses the metric of all
        metric, value = _choose_score(location, values, metric)
        row = {
            "item": sample.id,
            "sample": sample.epoch,
            "score": value,
            "completion": sample.output.completion,
            "gold": sample.target,
            "question": " ".join([*texts, *(sample.choices or ())]),
        }
        rows.append((location, row))
    facts = log.eval.model_dump(mode="json")
    settings = {name: facts[name] for name in ("model_args", "task_args", "solver_args", "config")}
    settings["generation"] = log.plan.config.model_dump(mode="json")
    about = {name: facts[name] for name in ("model", "created", "task_version")}
    about |= {
        "metric": metric,
        "versions": facts["packages"],
        "settings": settings,
        "greedy": _is_greedy(log.plan.config.temperature),
        "evaluation": log.eval.eval_id,
    }
    return ScoreTable(source=INSPECT, rows=rows, about=about)


def _read_lighteval(path: Path, metric: str | None) -> ScoreTable:
    """Lighteval's details of a task, with the settings of the results file of the same date."""
    rows = []
    lines = list(read_data(path))
    if not lines:
        raise RunError(f"{path} has no row.")
    for location, line in lines:
        doc = line["doc"]
        index = doc["gold_index"]
        indices = index if isinstance(index, list) else [index]
        metric, value = _choose_score(location, line["metric"], metric)
        row = {
            "item": doc["id"],
            "score": value,
            "completion": line["model_response"]["text"],
            "gold": [doc["choices"][index] for index in indices],
            "question": doc["query"],
        }
        rows.append((location, row))
    settings = {"max_gen_toks": doc["generation_size"], "num_fewshot": len(doc["fewshot_samples"])}
    # OUTPUT/details/MODEL/DATE/details_TASK_DATE.parquet
    folder, _, model = str(path.parent.parent).rpartition("/details/")
    with suppress(OSError):
        file = Path(folder, "results", model, f"results_{path.parent.name}.json")
        settings |= json.loads(file.read_bytes())["config_general"]["model_config"]
    about = {
        "model": settings.get("model_name"),
        "metric": metric,
        "settings": settings,
        "greedy": _is_greedy(settings.get("generation_parameters", {}).get("temperature")),
    }
    return ScoreTable(source=LIGHTEVAL, rows=rows, about=about)


def _is_greedy(temperature: float | None) -> bool | None:
    return None if temperature is None else temperature == 0


def _choose_score(location: str, values: Mapping[str, Any], metric: str | None) -> tuple[str, Any]:
    """A metric, `NAME` or `NAME,KEY`, and its value; without a name the only one."""
    by_name: dict[str, Any] = {}
    for name, value in values.items():
        keys = value if isinstance(value, Mapping) else {}
        by_name |= {f"{name},{key}": keys[key] for key in keys} or {name: value}
    if metric is None and len(by_name) == 1:
        (metric,) = by_name
    if metric is None or metric not in by_name:
        raise ConfigError(
            f"{location} has the scores {list_first(list(by_name), 12)}: name one as --metric."
        )
    return metric, by_name[metric]
