"""What tables compare: a run of ours or logs of lm-eval's, as one frame of samples and the facts that go with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ComparisonError, RunError, list_first
from harness.experiment.conditions import BASELINE, named_conditions
from harness.experiment.config import fixed_arguments
from harness.experiment.documents import hash_problem
from harness.experiment.problems import Dataset, Problem
from harness.experiment.rewordings import is_edit
from harness.grading import COLUMNS as GRADERS
from harness.runs.folder import JOURNAL, RECEIPT, SCORES, read_identity, read_prompts
from harness.runs.journal import is_stored, other_settings
from harness.runs.lm_eval_logs import LoggedSample, SampleLog, find_logs, read_log
from harness.runs.receipts import hash_stored
from harness.runs.records import Identity, fit
from harness.runs.sample_frame import loops, read_frame, read_receipt

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """One run, as tables see it.

    Attributes:
        name: The path that it was read from.
        frame: One row a sample, with the columns of `sample_frame.read_frame`.
        facts: Its part of a table's receipt: model, dataset, task_version, grader_version, sampling and so on. What is
            not known is None, and then agrees with anything.
        problems: Of each problem's id the hash of what is asked and its answer (`documents.hash_problem`).
    """

    name: str
    frame: pandas.DataFrame
    facts: Mapping[str, Any]
    problems: Mapping[str, str] = field(default_factory=dict)


def read_evaluation(path: Path | Mapping[str, Path], *, metric: str | None = None) -> Evaluation:
    """Read a run.

    Args:
        path: A run folder of ours; what `lm_eval --log_samples` wrote for our tasks, a folder or one file; or for any
            task a mapping of condition to sample log.
        metric: What in logs of other tasks says right or wrong; see `lm_eval_logs.read_log`.

    Raises:
        RunError: there is no finished run there, or a file of it is missing, damaged or no sample log.
        ComparisonError: the logs are of several task versions or settings, or ask other problems under one id.
    """
    if isinstance(path, Mapping):
        logs = {name: read_log(file, metric=metric, prompts=False) for name, file in path.items()}
        return _from_logs(" ".join(f"{name}={file}" for name, file in path.items()), list(logs.items()))
    files = find_logs(path) if path.is_dir() else [path]
    if any(is_stored(path / name) for name in (RECEIPT, JOURNAL)) or not files or not path.exists():
        return _from_run(path)  # whose refusal says what was expected
    read = [read_log(file, metric=metric, prompts=False) for file in files]
    return _from_logs(str(path), [(None, log) for log in read])


def _from_run(path: Path) -> Evaluation:
    receipt, prompts = read_receipt(path), read_prompts(path)
    frame = read_frame(path, receipt, prompts)
    names = [str(name) for name in frame["condition"].cat.categories]
    facts = {
        "source": "run",
        "run": receipt["run"],
        "model": str(frame["model"].iloc[0]),
        "model_sha256": _hash(receipt["model"]),
        "dataset": receipt["dataset"]["sha256"],
        "dataset_name": receipt["dataset"]["name"],
        "shard": receipt.get("shard"),
        "problems": receipt["problems"],
        "task_version": receipt["task_version"],
        "grader_version": receipt["grader_version"],
        "prompts_sha256": receipt["prompts_sha256"],
        "journal_sha256": hash_stored(path / JOURNAL),
        "scores_sha256": hash_stored(path / SCORES),
        "sampling": receipt["generation"],
        "settings": _run_settings(receipt),
        "greedy": not receipt["generation"]["do_sample"],
        "backend": receipt["engine"]["name"],
        "engine": "{name} {version} on {device}".format(**receipt["engine"]),
        **_registered(path),
        "edits": [name for name in names if is_edit(name)],
        "seed": receipt["seed"],
        "created": receipt["created"],
        "versions": receipt["versions"],
        "git_revision": receipt["git_revision"],
    }
    docs = {row["doc"]["id"]: row["doc"] for row in prompts}
    problems = {name: hash_problem(doc, doc["answer"]) for name, doc in docs.items()}
    return Evaluation(name=str(path), frame=frame, facts=facts, problems=problems)


def _run_settings(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run, beside the facts that are told by themselves, could change a sample."""
    model = receipt["config"]["model"]
    return {
        "backend": model["backend"],
        "model_args": {k: str(v) for k, v in fixed_arguments(model["arguments"]).items()},
        "instruction": receipt["config"].get("instruction"),
        "seed": receipt["seed"],
        "limit": receipt.get("limit"),
    }


def _registered(path: Path) -> dict[str, Any]:
    """Primary contrast and family of a run as its journal's first line, written before any sample, has them.

    None where it has no family: a run of before named no tests that tables could hold it to.
    """
    contrast = fit(Identity, read_identity(path), path / JOURNAL, "Restore it from a copy.").config
    return {"primary": None if contrast.family is None else contrast.primary, "family": contrast.family}


def _from_logs(name: str, logs: Sequence[tuple[str | None, SampleLog]]) -> Evaluation:
    """One evaluation of several sample logs: each is one condition, named by the user or by its documents."""
    import pandas

    paths = [log.path.resolve() for _, log in logs]
    if twice := next((log.path for place, (_, log) in enumerate(logs) if paths[place] in paths[:place]), None):
        raise ComparisonError(f"{twice} is given twice: expected one log a condition. Leave one out.")
    _refuse_other_settings([log for _, log in logs])
    problems = _shared_problems([log for _, log in logs])
    rows: list[dict[str, Any]] = []
    files: dict[tuple[str, str], Path] = {}
    for given, log in logs:
        model = str(log.results.file.model_name or log.model or "model").rstrip("/").rpartition("/")[2]
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
    version = _task_version(name, [log for _, log in logs])
    settings = next((log.results.settings for _, log in logs if log.results.settings), {})
    sampling = settings.pop("generation_kwargs", None)
    first = logs[0][1].results.file
    facts = {
        "source": "lm-eval",
        "run": name,
        "model": str(frame["model"].iloc[0]),
        "model_sha256": None,
        "dataset": _dataset_hash([log for _, log in logs]),
        "dataset_name": None,
        "problems": len(problems),
        "task_version": version,
        "grader_version": None,
        "metric": ", ".join(dict.fromkeys(log.metric for _, log in logs if log.metric)),
        "prompts_sha256": _hash([sample.sha256 for _, log in logs for sample in log.samples]),
        "sampling": sampling,
        "settings": settings,
        "greedy": None if sampling is None else not sampling.get("do_sample", False),
        "backend": first.config.model,
        "primary": None,  # nobody named it, or its family, beforehand
        "family": None,
        "edits": [condition for condition in order if is_edit(condition)],
        "seed": first.config.random_seed,
        "created": None
        if first.date is None
        else datetime.fromtimestamp(first.date, UTC).isoformat(timespec="seconds"),
        "versions": {"lm-eval": first.lm_eval_version},
        "git_revision": first.git_hash,
        "logs": {f"{condition}, {layout}": str(path) for (condition, layout), path in files.items()},
    }
    return Evaluation(name=name, frame=frame, facts=facts, problems=problems)


def _task_version(name: str, logs: Sequence[SampleLog]) -> float | str | None:
    """The version of the task; None if it is not known, or there are several tasks with a version each.

    Our tasks are one, with a name for each condition.

    Raises:
        ComparisonError: logs of one task are of several versions.
    """
    versions: dict[str | None, dict[str, float | str]] = {}
    for log in logs:
        if (version := log.results.version) is not None:
            ours = all(condition is not None for condition, _ in log.arms)
            versions.setdefault(None if ours else log.results.task, {})[str(version)] = version
    if different := next((sorted(found) for found in versions.values() if len(found) > 1), None):
        raise ComparisonError(
            f"{name} holds logs of several task versions: expected one, got {', '.join(different)}. Run the "
            "older ones again, or name the logs that belong together."
        )
    every = {key: version for found in versions.values() for key, version in found.items()}
    return next(iter(every.values())) if len(every) == 1 else None


def _refuse_other_settings(logs: Sequence[SampleLog]) -> None:
    """Nothing, if all conditions were asked alike, as far as their results files say."""
    known = [log for log in logs if log.results.settings]
    for log in known[1:]:
        if how := other_settings(known[0].results.settings, log.results.settings):
            raise ComparisonError(
                f"{log.path} was made with other settings than {known[0].path}: {how}. Run one of them again with the "
                "other's, or name logs that belong together."
            )


def _shared_problems(logs: Sequence[SampleLog]) -> dict[str, str]:
    """The hash of each problem.

    Raises:
        ComparisonError: two logs have other problems under one id. A document without an id has its place as its id.
    """
    found: dict[str, tuple[str, SampleLog]] = {}
    for log in logs:
        hashes = {sample.problem_id: sample.problem_sha256 for sample in log.samples}
        others = [name for name, sha256 in hashes.items() if found.setdefault(name, (sha256, log))[0] != sha256]
        if others:
            raise ComparisonError(
                f"{log.path} asks other problems than {found[others[0]][1].path}: expected the same document and "
                f"target under the same id, got others for {list_first(others)}. Compare logs of the same problems."
            )
    return {name: sha256 for name, (sha256, _) in found.items()}


def _sample_rows(sample: LoggedSample, model: str, condition: str) -> Iterable[dict[str, Any]]:
    if not sample.verdicts:
        raise RunError(
            f"Problem {sample.problem_id}, condition {condition!r}: its log says neither right nor wrong. Name what "
            "does with --metric."
        )
    for index, verdict in enumerate(sample.verdicts):
        completion = sample.completions[index] if index < len(sample.completions) else ""
        tokens = sample.completion_tokens[index] if index < len(sample.completion_tokens) else None
        grade = sample.grades[index] if sample.grades else None
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
            **{name: getattr(grade, name, None) for name in GRADERS},
            "boxes_after_first": getattr(grade, "boxes_after_first", None),
        }


def _dataset_hash(logs: Sequence[SampleLog]) -> str | None:
    """`Dataset.sha256` of the documents, where they are ours and all that there are."""
    counts = [log.results.counts for log in logs]
    names = [one.name for one in fields(Problem)]
    docs = {sample.problem_id: sample.doc for log in logs for sample in log.samples}
    whole = all(count is not None and count.original == count.effective for count in counts)
    if not whole or not all(set(names) <= doc.keys() for doc in docs.values()):
        return None
    problems = tuple(Problem(**{name: doc[name] for name in names}) for doc in docs.values())
    return Dataset(name="", source="", problems=problems).sha256


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
