"""What tables compare: the samples of one run or several in one frame, and the facts in which they must agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.conditions import BASELINE, named_conditions
from harness.datasets import Dataset, Problem
from harness.errors import ComparisonError, RunError
from harness.grading import COLUMNS as GRADERS
from harness.outcomes import loops, read_outcomes
from harness.prompt_edits import is_edit
from harness.records import read_receipt
from harness.run_folder import JOURNAL, RECEIPT, read_identity
from harness.sample_log import LoggedSample, SampleLog, read_log

if TYPE_CHECKING:
    import pandas

MUST_AGREE = {
    "dataset": ("another dataset", "Compare runs on one dataset"),
    "task_version": ("another task version", "Run the older one again"),
    "grader_version": ("another grader version", "Grade both alike with `mless regrade`"),
}
"""Facts in which all evaluations of a table agree: what a difference means, and what to do about it."""
_ONE_MODEL = {
    name: (f"the same model's label, but other {words},", "Give one of them another label (model.label)")
    for name, words in (("model_sha256", "weights"), ("sampling", "sampling"), ("engine", "engine"))
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """One run, as tables see it.

    Attributes:
        name: The path that it was read from.
        frame: One row a sample, with the columns of `outcomes.read_outcomes`.
        facts: Its part of a table's receipt: model, dataset, task_version, grader_version, sampling and so on. What is
            not known is None, and then agrees with anything.
    """

    name: str
    frame: pandas.DataFrame
    facts: Mapping[str, Any]


def read_evaluation(path: Path | Mapping[str, Path], *, metric: str | None = None) -> Evaluation:
    """Read a run.

    Args:
        path: A run folder of ours; what `lm_eval --log_samples` wrote for our tasks, a folder or one file; or for any
            task a mapping of condition to sample log.
        metric: What in logs of other tasks says right or wrong; see `sample_log.read_log`.

    Raises:
        RunError: there is no finished run there, or a file of it is missing, damaged or no sample log.
        ComparisonError: the logs are of several task versions.
    """
    if isinstance(path, Mapping):
        logs = {name: read_log(file, metric=metric, prompts=False) for name, file in path.items()}
        return _from_logs(" ".join(f"{name}={file}" for name, file in path.items()), list(logs.items()))
    files = sorted(path.rglob("samples_*.jsonl")) if path.is_dir() else [path]
    if any((path / name).exists() for name in (RECEIPT, JOURNAL)) or not files or not path.exists():
        return _from_run(path)  # whose refusal says what was expected
    read = [read_log(file, metric=metric, prompts=False) for file in files]
    return _from_logs(str(path), [(None, log) for log in read])


def _from_run(path: Path) -> Evaluation:
    receipt = read_receipt(path)
    config = receipt["config"]
    frame = read_outcomes(path, receipt)
    names = [str(name) for name in frame["condition"].cat.categories]
    facts = {
        "source": "run",
        "run": receipt["run"],
        "model": str(frame["model"].iloc[0]),
        "model_sha256": _hash(receipt["model"]),
        "dataset": receipt["dataset"]["sha256"],
        "dataset_name": receipt["dataset"]["name"],
        "problems": receipt["problems"],
        "task_version": receipt["task_version"],
        "grader_version": receipt["grader_version"],
        "prompts_sha256": receipt["prompts_sha256"],
        "sampling": receipt["generation"],
        "greedy": not receipt["generation"]["do_sample"],
        "backend": receipt["engine"]["name"],
        "engine": "{name} {version}".format(**receipt["engine"]),
        **_registered(read_identity(path)),
        "edits": [name for name in names if is_edit(name)],
        "seed": receipt["seed"],
        "created": receipt["created"],
        "versions": receipt["versions"],
        "git_revision": receipt["git_revision"],
    }
    return Evaluation(name=str(path), frame=frame, facts=facts)


def _registered(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Primary contrast and family of a run as its journal's first line, written before any sample, has them.

    None where it has no family: older runs and other programs' logs name no tests beforehand.
    """
    config = identity.get("config") or {}
    family = config.get("family")
    return {"primary": None if family is None else config.get("primary"), "family": family}


def _from_logs(name: str, logs: Sequence[tuple[str | None, SampleLog]]) -> Evaluation:
    """One evaluation of several sample logs: each is one condition, named by the user or by its documents."""
    import pandas

    rows: list[dict[str, Any]] = []
    files: dict[tuple[str, str], Path] = {}
    for given, log in logs:
        model = str(log.results.get("model_name") or log.model or "model").rstrip("/").rpartition("/")[2]
        for (own, layout), samples in log.arms.items():
            condition = given or own
            if condition is None:
                raise RunError(
                    f"{log.path} is a log of another task: its documents name no condition. Say which log is which "
                    "condition, as wo=FILE mless=FILE."
                )
            if other := files.get((condition, layout)):
                raise RunError(
                    f"{name} holds two logs of condition {condition!r}, {layout}: {other} and {log.path}. Name one log "
                    f"a condition, as {condition}={log.path}."
                )
            files[condition, layout] = log.path
            rows += [row for sample in samples for row in _sample_rows(sample, model, condition)]
    frame = pandas.DataFrame(rows)
    known = list(dict.fromkeys([BASELINE, *named_conditions(), *frame["condition"]]))
    order = [condition for condition in known if condition in set(frame["condition"])]
    frame["condition"] = pandas.Categorical(frame["condition"], categories=order, ordered=True)
    for column in (*GRADERS, "looping"):
        frame[column] = frame[column].astype("boolean" if column != "looping" else bool)
    for column in ("completion_tokens", "boxes_after_first"):
        frame[column] = frame[column].astype(float)
    frame = frame.sort_values(["layout", "condition"], kind="stable", ignore_index=True)
    results = [log.results for _, log in logs]
    versions = _known(version for result in results for version in (result.get("versions") or {}).values())
    if len(versions) > 1:
        raise ComparisonError(
            f"{name} holds logs of several task versions: expected one, got {', '.join(map(str, versions))}. Run the "
            "older ones again, or name the logs that belong together."
        )
    settings = _known(c.get("generation_kwargs") for r in results for c in (r.get("configs") or {}).values())
    sampling = settings[0] if len(settings) == 1 else None
    first: Mapping[str, Any] = next((result for result in results if result), {})
    facts = {
        "source": "lm-eval",
        "run": name,
        "model": str(frame["model"].iloc[0]),
        "model_sha256": None,
        "dataset": _dataset_hash(logs),
        "dataset_name": None,
        "problems": int(frame["problem_id"].nunique()),
        "task_version": versions[0] if versions else None,
        "grader_version": None,
        "metric": ", ".join(dict.fromkeys(log.metric for _, log in logs if log.metric)),
        "prompts_sha256": _hash([sample.sha256 for _, log in logs for sample in log.samples]),
        "sampling": sampling,
        "greedy": None if sampling is None else not sampling.get("do_sample", False),
        "backend": (first.get("config") or {}).get("model"),
        **_registered({}),
        "edits": [condition for condition in order if is_edit(condition)],
        "seed": (first.get("config") or {}).get("random_seed"),
        "created": _date(first.get("date")),
        "versions": {"lm-eval": first.get("lm_eval_version")},
        "git_revision": first.get("git_hash"),
        "logs": {f"{condition}, {layout}": str(path) for (condition, layout), path in files.items()},
    }
    return Evaluation(name=name, frame=frame, facts=facts)


def _sample_rows(sample: LoggedSample, model: str, condition: str) -> Iterable[dict[str, Any]]:
    if not sample.verdicts:
        raise RunError(
            f"Problem {sample.problem_id}, condition {condition!r}: its log says neither right nor wrong. Name what "
            "does with --metric."
        )
    for index, verdict in enumerate(sample.verdicts):
        completion = sample.completions[index] if index < len(sample.completions) else ""
        tokens = sample.completion_tokens[index] if index < len(sample.completion_tokens) else None
        grade: Mapping[str, Any] = sample.grades[index] if sample.grades else {}
        yield {
            "model": model,
            "condition": condition,
            "layout": sample.layout,
            "problem_id": sample.problem_id,
            "sample_index": index,
            "replicate": 0,
            "subject": sample.subject,
            "level": sample.level,
            "verdict": verdict,
            "correct": verdict == "correct",
            "answer": sample.answers[index] if index < len(sample.answers) else None,
            "target": sample.target,
            "completion_tokens": tokens,
            "characters": len(completion),
            "looping": loops(completion),
            **{name: grade.get(name) for name in GRADERS},
            "boxes_after_first": grade.get("boxes_after_first"),
        }


def _date(seconds: Any) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if isinstance(seconds, float) else None


def _dataset_hash(logs: Sequence[tuple[str | None, SampleLog]]) -> str | None:
    """`Dataset.sha256` of the documents, where they are ours and all that there are."""
    log = logs[0][1]
    counts = _known((log.results.get("n-samples") or {}).values())
    whole = bool(counts) and all(count.get("original") == count.get("effective") for count in counts)
    names = [field.name for field in fields(Problem)]
    if not whole or not all(set(names) <= sample.doc.keys() for sample in log.samples):
        return None
    problems = tuple(Problem(**{name: sample.doc[name] for name in names}) for sample in log.samples)
    return Dataset(name="", source="", problems=problems).sha256


def join(evaluations: Sequence[Evaluation]) -> pandas.DataFrame:
    """The samples of all in one frame.

    Raises:
        ComparisonError: one is given twice, two do not agree in what `MUST_AGREE` names, or two share a model's label
            and differ in more than the condition.
    """
    import pandas
    from pandas.api.types import union_categoricals

    names = [str(Path(one.name).resolve()) for one in evaluations]
    if twice := next((one.name for place, one in enumerate(evaluations) if names[place] in names[:place]), None):
        raise ComparisonError(f"{twice} is given twice: expected every run once. Leave one out.")
    for one in evaluations[1:]:
        _refuse_disagreement(evaluations[0], one, MUST_AGREE)
    for place, one in enumerate(evaluations):
        for other in evaluations[:place]:
            if one.facts["model"] == other.facts["model"]:
                _refuse_disagreement(other, one, _ONE_MODEL)
    if len(evaluations) == 1:
        return evaluations[0].frame
    columns: dict[str, Any] = {}
    for name in evaluations[0].frame.columns:
        parts = [one.frame[name] for one in evaluations]
        if all(isinstance(part.dtype, pandas.CategoricalDtype) for part in parts):
            columns[name] = pandas.Series(union_categoricals(parts, ignore_order=True))
        else:
            columns[name] = pandas.concat([part.astype(_plain(part)) for part in parts], ignore_index=True)
    return pandas.DataFrame(columns)


def _refuse_disagreement(one: Evaluation, other: Evaluation, facts: Mapping[str, tuple[str, str]]) -> None:
    for name, (what, remedy) in facts.items():
        ours, theirs = one.facts.get(name), other.facts.get(name)
        if None not in (ours, theirs) and ours != theirs:
            raise ComparisonError(
                f"{other.name} has {what} than {one.name}: expected {_short(ours)}, got {_short(theirs)}. {remedy}, "
                "or make two tables."
            )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] + "..." if len(text) == 64 else text


def _plain(column: pandas.Series[Any]) -> Any:
    """The type of what a column holds, categorical or not."""
    import pandas

    return column.cat.categories.dtype if isinstance(column.dtype, pandas.CategoricalDtype) else column.dtype


def _known(values: Iterable[Any]) -> list[Any]:
    """Different values, None left out."""
    found: list[Any] = []
    for value in values:
        if value is not None and value not in found:
            found.append(value)
    return found


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
