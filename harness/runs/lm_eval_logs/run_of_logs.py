"""Several sample logs as one run: each is one condition, and all must have been asked alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.constants import BASELINE
from harness.errors import ComparisonError, RunError, list_first
from harness.experiment.conditions import find_yardsticks, named_conditions
from harness.experiment.plan import hash_json
from harness.experiment.problems import Dataset, Problem
from harness.grading import COLUMNS as GRADERS
from harness.grading import AuditColumns
from harness.runs.journal import other_settings
from harness.runs.lm_eval_logs.sample_log import SampleLog, read_log
from harness.runs.records import COLUMNS, encodable
from harness.runs.repetition import loops
from harness.runs.run import Run
from harness.runs.run_prompts import RunPrompt

if TYPE_CHECKING:
    import pandas


def read_logs(name: str, files: Sequence[tuple[str | None, Path]], *, metric: str | None = None) -> Run:
    """One run of several sample logs: each is one condition, named by the user or by its documents.

    Args:
        name: What the run is called.
        files: Condition and file; without a condition the documents name it.
        metric: See `read_log`.

    Raises:
        RunError: a log is missing, damaged or no sample log, or its condition is not known.
        ComparisonError: the logs are of several task versions or settings, or ask other problems under one id.
    """

    def read() -> list[tuple[str | None, SampleLog]]:
        return [(condition, read_log(file, metric=metric)) for condition, file in files]

    logs = read()
    paths = [log.path.resolve() for _, log in logs]
    if twice := next((log.path for place, (_, log) in enumerate(logs) if paths[place] in paths[:place]), None):
        raise ComparisonError(f"{twice} is given twice: expected one log a condition. Leave one out.")
    every = [log for _, log in logs]
    _refuse_other_settings(every)
    problems = _shared_problems(every)
    arms = _arms(name, logs)
    order = _in_order([condition for condition, _ in arms])
    frame = _frame(arms, order)
    silent = next((one for log, asked in arms.values() for one in asked if not one.verdicts), None)

    def read_frame() -> pandas.DataFrame:
        if silent is not None:
            raise RunError(
                f"{silent.where}: problem {silent.problem_id}: the log says neither right nor wrong. Name what does "
                "with --metric."
            )
        return frame.drop(columns=[column for column in COLUMNS if column not in (*_OUTCOMES, *GRADERS)])

    version = _task_version(name, every)
    settings = dict(next((log.results.settings for log in every if log.results.settings), {}))
    sampling = settings.pop("generation_kwargs", None)
    first = every[0].results.file
    facts = {
        "source": "lm-eval",
        "run": name,
        "model": str(frame["model"].iloc[0]),
        "model_sha256": None,
        "dataset": _dataset_hash(every),
        "dataset_name": None,
        "problems": len(problems),
        "task_version": version,
        "grader_version": None,
        "metric": ", ".join(dict.fromkeys(log.metric for log in every if log.metric)),
        "other_filters": ", ".join(dict.fromkeys(one for log in every for one in log.other_filters)),
        "prompts_sha256": hash_json([sample.sha256 for log in every for sample in log.samples]),
        "sampling": sampling,
        "settings": settings,
        "greedy": None if sampling is None else not sampling.get("do_sample", False),
        "backend": first.config.model,
        "contrasts": None,  # nobody named any beforehand
        "primary": None,
        "study": None,
        # a name that the user gave says nothing of what a condition is
        "yardsticks": {} if any(given for given, _ in files) else find_yardsticks(order),
        "seed": first.config.random_seed,
        "created": None
        if first.date is None
        else datetime.fromtimestamp(first.date, UTC).isoformat(timespec="seconds"),
        "versions": {"lm-eval": first.lm_eval_version},
        "git_revision": first.git_hash,
        "logs": {f"{condition}, {layout}": str(log.path) for (condition, layout), (log, _) in arms.items()},
    }
    return Run(
        name=name,
        facts=facts,
        problems=problems,
        model=next((log.model for log in every if log.model), None),
        receipt=facts,
        metric=facts["metric"] or None,
        read_frame=read_frame,
        read_texts=lambda: _frame(_arms(name, read()), order)[list(COLUMNS)],
        read_prompts=lambda: [
            replace(one, condition=condition)
            for (condition, _), (_, asked) in _arms(name, read()).items()
            for one in asked
        ],
    )


Arms = dict[tuple[str, str], tuple[SampleLog, list[RunPrompt]]]
"""Of each condition and layout its log and its prompts."""


def _arms(name: str, logs: Sequence[tuple[str | None, SampleLog]]) -> Arms:
    """The prompts of all logs.

    Raises:
        RunError: a condition is not known, or has two logs.
    """
    arms: Arms = {}
    for given, log in logs:
        for (own, layout), asked in log.arms.items():
            condition = given or own
            if not condition:
                raise RunError(
                    f"{log.path} is a log of another task: its documents name no condition. Say which log is which "
                    "condition, as wo=FILE mless=FILE."
                )
            if other := arms.get((condition, layout)):
                raise RunError(
                    f"{name} holds two logs of condition {condition!r}, {layout}: {other[0].path} and {log.path}. Name "
                    f"one log a condition, as {condition}={log.path}."
                )
            arms[condition, layout] = log, asked
    return arms


def _in_order(conditions: Sequence[str]) -> list[str]:
    """The conditions in the order of tables."""
    there = set(conditions)
    return [name for name in dict.fromkeys([BASELINE, *named_conditions(), *conditions]) if name in there]


def _frame(arms: Arms, order: list[str]) -> pandas.DataFrame:
    """One row per graded sample, with texts."""
    import pandas

    rows = [
        row
        for (condition, _), (log, asked) in arms.items()
        for one in asked
        for row in _sample_rows(one, _label(log), condition)
    ]
    names = [*COLUMNS, "characters", "looping"]
    frame = pandas.DataFrame(rows or [dict.fromkeys(names)], columns=names)
    frame["condition"] = pandas.Categorical(frame["condition"], categories=pandas.Index(order), ordered=True)
    kinds: dict[str, Any] = {"looping": bool, **dict.fromkeys(GRADERS, "boolean")}
    frame = frame.astype(kinds | dict.fromkeys(("completion_tokens", "boxes_after_first"), float))
    return frame.sort_values(["layout", "condition"], kind="stable", ignore_index=True)


def _label(log: SampleLog) -> str:
    """The model's name as tables show it."""
    return str(log.results.file.model_name or log.model or "model").rstrip("/").rpartition("/")[2]


_OUTCOMES = (
    "model condition layout problem_id sample_index replicate subject level verdict correct answer target "
    "completion_tokens boxes_after_first"
).split()


def _task_version(name: str, logs: Sequence[SampleLog]) -> float | str | None:
    """The version of the task; None if it is not known, or there are several tasks with a version each.

    Our tasks are one, with a name for each condition.

    Raises:
        ComparisonError: logs of one task are of several versions.
    """
    versions: dict[str | None, dict[str, float | str]] = {}
    for log in logs:
        if (version := log.results.version) is not None:
            ours = all(condition for condition, _ in log.arms)
            versions.setdefault(None if ours else log.results.task, {})[str(version)] = version
    if different := next((sorted(found) for found in versions.values() if len(found) > 1), None):
        raise ComparisonError(
            f"{name} holds logs of several task versions: expected one, got {', '.join(different)}. Run the "
            "older ones again, or name the logs that belong together."
        )
    every = {key: version for found in versions.values() for key, version in found.items()}
    return next(iter(every.values())) if len(every) == 1 else None


def _refuse_other_settings(logs: Sequence[SampleLog]) -> None:
    """Raise ComparisonError if the results files say that two conditions were asked with other settings."""
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


def _sample_rows(prompt: RunPrompt, model: str, condition: str) -> Iterator[dict[str, Any]]:
    def at(values: Sequence[Any], index: int, default: Any = None) -> Any:
        return values[index] if index < len(values) else default

    for index, verdict in enumerate(prompt.verdicts):
        completion, grade = at(prompt.completions, index, ""), at(prompt.grades, index)
        yield {
            "model": model,
            "condition": condition,
            "layout": prompt.layout,
            "problem_id": prompt.problem_id,
            "sample_index": index,
            "replicate": 0,
            "subject": prompt.subject,
            "level": prompt.level,
            "verdict": verdict,
            "correct": verdict == "correct",
            "answer": at(prompt.answers, index),
            "target": prompt.target,
            "completion": encodable(completion),
            "prompt_sha256": prompt.sha256,
            "prompt_token_sha256": prompt.token_sha256,
            "completion_tokens": at(prompt.completion_tokens, index),
            **{
                name: getattr(grade, name, None) for name in (*AuditColumns.__struct_fields__, "reason", "audit_reason")
            },
            "characters": len(completion),
            "looping": loops(completion),
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
