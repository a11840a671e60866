"""Logs of lm-eval (`--log_samples`) as one run, in which each log is a condition.

All logs must have the same settings. Logs of our tasks carry condition and segments in their
documents. Logs of other tasks do not: there the user names the condition of each file, unless
`mless tasks --wrap` wrote the task. In that case lm-eval's results file names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from harness.constants import BASELINE
from harness.errors import ComparisonError, RunError, list_first
from harness.experiment.conditions import REFERENCE_FIELDS, named_conditions
from harness.experiment.plan import hash_json
from harness.experiment.prompt import Layout, document_prompt, hash_problem, is_ours
from harness.experiment.run_config import fixed_arguments
from harness.runs.answered_prompts import AnsweredPrompt
from harness.runs.find_lm_eval_files import (
    Generation,
    LogLine,
    ResultsFile,
    find_log,
    read_lines,
    read_prompt_text,
    read_results,
)
from harness.runs.journal import describe_differences
from harness.runs.records import Graded, Sample, Score
from harness.runs.samples_frame import read_frame

if TYPE_CHECKING:
    import pandas

METRICS = ("exact_match", "math_verify", "acc")
"""Metrics of other tasks that can give a verdict; the first that a log has is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLog:
    """A sample log.

    Attributes:
        path: The file.
        results: The results file beside it.
        metric: Metric and filter that its verdicts were read from: `exact_match,strict-match`.
        other_filters: Filters in the file that were not read.
        prompts: One prompt for each problem, with its samples.
        problems: The hash of each problem, by its id.
    """

    path: Path
    results: ResultsFile
    metric: str | None
    other_filters: tuple[str, ...]
    prompts: tuple[AnsweredPrompt, ...]
    problems: Mapping[str, str]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of generation, without those that are unknown."""
        results = self.results
        if results.config.model is None:
            return {}
        arguments = fixed_arguments(results.arguments)
        settings = {
            "backend": results.config.model,
            "model": results.model,
            "model_args": {name: str(value) for name, value in arguments.items()},
            "system_instruction": results.system_instruction or "",
            "num_fewshot": results.task_config.num_fewshot,
            "generation_kwargs": results.task_config.generation_kwargs,
        }
        return {name: value for name, value in settings.items() if value is not None}


Arms = dict[tuple[str, str], tuple[SampleLog, list[AnsweredPrompt]]]
"""By condition and layout, the log and its prompts."""


def read_logs(
    name: str, files: Sequence[tuple[str | None, Path]], *, metric: str | None = None
) -> dict[str, Any]:
    """Several sample logs as the fields of a `read_runs.Run`.

    Args:
        name: The run's name.
        files: Condition and file; without a condition the documents name it.
        metric: See `read_log`.

    Raises:
        RunError: a log is missing, damaged or no sample log, or its condition is not known.
        ComparisonError: the logs are of several task versions or settings, or have different
            problems under one id.
    """
    named_logs = [(condition, read_log(file, metric=metric)) for condition, file in files]
    logs = [log for _, log in named_logs]
    _refuse_other_settings(logs)
    problems = _merge_problems(logs)
    arms = _collect_arms(name, named_logs)
    about = _describe_logs(name, logs, arms, len(problems))
    names = dict.fromkeys([BASELINE, *named_conditions(), *(condition for condition, _ in arms)])
    order = list(names)
    prompts: list[AnsweredPrompt] = []
    for arm in sorted(arms, key=lambda arm: (arm[1], order.index(arm[0]))):
        prompts += arms[arm][1]
    return {
        "name": name,
        "about": about,
        "problems": problems,
        "model": next((log.results.model for log in logs if log.results.model), None),
        "metric": about["metric"] or None,
        "read": partial(_read_samples, about["model"], prompts),
        "read_prompts": lambda: prompts,
    }


def _describe_logs(
    name: str, logs: Sequence[SampleLog], arms: Arms, problem_count: int
) -> dict[str, Any]:
    """The facts of the logs for a table's receipt: see `read_runs.Run.about`."""
    settings = dict(next((log.settings for log in logs if log.settings), {}))
    sampling = settings.pop("generation_kwargs", None)
    versions = {log.results.task_version for log in logs} - {None}
    metrics = dict.fromkeys(log.metric for log in logs if log.metric)
    filters = dict.fromkeys(name for log in logs for name in log.other_filters)
    hashes = [prompt.prompt_sha256 for log in logs for prompt in log.prompts]
    first = logs[0].results
    created = first.date and datetime.fromtimestamp(first.date, UTC).isoformat(timespec="seconds")
    return {
        "source": "lm-eval",
        "run": name,
        "model": first.label,
        "model_sha256": None,
        "dataset": None,
        "dataset_name": None,
        "problems": problem_count,
        "task_version": versions.pop() if len(versions) == 1 else None,
        "grader_version": None,
        "metric": ", ".join(metrics),
        "other_filters": ", ".join(filters),
        "prompts_sha256": hash_json(hashes),
        "sampling": sampling,
        "settings": settings,
        "greedy": None if sampling is None else not sampling.get("do_sample", False),
        "backend": first.config.model,
        "contrasts": None,  # logs name no contrasts before the run
        "primary": None,
        "reference_conditions": _reference_conditions(arms),
        "seed": first.config.random_seed,
        "created": created,
        "versions": {"lm-eval": first.lm_eval_version},
        "git_revision": first.git_hash,
        "logs": {f"{arm[0]}, {arm[1]}": str(log.path) for arm, (log, _) in arms.items()},
    }


def _reference_conditions(arms: Arms) -> dict[str, dict[str, Any]]:
    """The reference conditions among the arms, by name, each with its `Condition.reference`."""
    references = {}
    for _, (prompt, *_) in arms.values():
        doc = prompt.doc
        # under another name that the user gave it is an ordinary condition
        if is_ours(doc) and doc.get("kind") and prompt.condition == doc["condition"]:
            references[prompt.condition] = {key: doc[key] for key in REFERENCE_FIELDS}
    return references


def read_log(path: Path, *, metric: str | None = None) -> SampleLog:
    """Read a sample log.

    Args:
        path: A `samples_*.jsonl` file, or a folder with one such file.
        metric: The metric that gives the verdicts: `NAME`, or `NAME,FILTER` where the task has
            several filters. Without it the verdicts of our own tasks are read, and of other tasks
            the first of `METRICS` under the file's first filter.

    Raises:
        RunError: the file is missing, damaged or no sample log, or lacks samples or the metric.
    """
    path = find_log(path)
    results = read_results(path)
    metric_name, _, filter_name = (metric or "").partition(",")
    prompts: dict[str, AnsweredPrompt] = {}
    problems: dict[str, str] = {}
    filters: dict[str, None] = {}
    for origin, values, line in read_lines(path):
        filters[line.filter] = None
        filter_name = filter_name or line.filter
        if line.filter != filter_name:
            continue
        metric_name, grades = _read_grades(origin, values, line, metric_name)
        prompt = _read_prompt(origin, line, results, grades)
        if prompt.problem_id in prompts:
            raise RunError(f"{origin}: problem {prompt.problem_id} occurs twice.")
        prompts[prompt.problem_id] = prompt
        problems[prompt.problem_id] = hash_problem(line.doc, prompt.doc["answer"])
    expected = max(1, results.n_samples.get(results.task or "", {}).get("effective", 1))
    if len(prompts) < expected:
        problem = f"expected {expected}, got {len(prompts)}"
        if filters:
            problem += f" under the filter {filter_name!r}; the log has {', '.join(filters)}"
        raise RunError(f"{path}: samples are missing: {problem}.")
    return SampleLog(
        path=path,
        results=results,
        metric=f"{metric_name},{filter_name}" if metric_name else None,
        other_filters=tuple(name for name in filters if name != filter_name),
        prompts=tuple(prompts.values()),
        problems=problems,
    )


def _read_grades(
    origin: str, values: Mapping[str, Any], line: LogLine, metric: str
) -> tuple[str, list[dict[str, Any]]]:
    """The metric that a line's verdicts are read from, and its grades as fields of a `Score`.

    Raises:
        RunError: a grade of our task is damaged, or the metric is neither 0 nor 1.
    """
    # in another task's log a text that looks like a grade was written by the model
    if is_ours(line.doc) and metric in ("", "verdict"):
        texts = _flatten(line.filtered_resps)
        try:
            grades = [asdict(msgspec.json.decode(text, type=Graded)) for text in texts]
        except msgspec.DecodeError as error:
            raise RunError(f"{origin}: its grade: {error}.") from None
        if grades:
            return "verdict", grades
    metric = metric or next((name for name in METRICS if name in values), "")
    if not metric:
        return "", []
    value = values.get(metric)
    if value not in (0, 1):
        metrics = ", ".join(values.get("metrics") or ()) or "none"
        raise RunError(
            f"{origin}: the metric {metric!r} is {value}: expected 0 or 1. The log has {metrics}."
        )
    return metric, [{"verdict": "correct" if value else "incorrect"}]


def _read_prompt(
    origin: str, line: LogLine, results: ResultsFile, grades: Sequence[Mapping[str, Any]]
) -> AnsweredPrompt:
    """The prompt of a line with its graded samples; `results` is the file beside the log."""
    text, is_generated = read_prompt_text(origin, line)
    level = re.search(r"\d+", str(line.doc.get("level", "")))
    doc = {
        **line.doc,
        "id": str(line.doc.get("id") or line.doc.get("unique_id") or line.doc_id),
        "subject": str(line.doc.get("subject") or line.doc.get("type") or ""),
        "level": int(level[0]) if level else 0,
        "answer": "" if line.target is None else str(line.target),
    }
    layout = Layout.CHAT if results.chat_template else Layout.RAW
    if is_ours(doc):
        condition = doc["condition"]
        layout = Layout.CHAT
        if text == document_prompt(doc).text:
            is_published = doc["layout"] == Layout.AS_PUBLISHED
            layout = Layout.AS_PUBLISHED if is_published else Layout.RAW
    else:
        metadata = results.task_config.metadata or {}
        condition = metadata.get("filler_condition") or ""
        filler = metadata.get("filler")
        has_segments = text and filler is not None
        doc["segments"] = _split_text(text, line.doc, str(filler)) if has_segments else []
        doc["system"] = ""
        doc.pop("cluster", None)  # in another task this field may mean anything
    return AnsweredPrompt(
        task=origin,
        condition=condition,
        layout=str(layout),
        prompt=text,
        prompt_sha256=line.prompt_hash,
        prompt_token_sha256=line.generations[0].prompt_token_sha256 if line.generations else None,
        doc=doc,
        graded_samples=_graded_samples(origin, line, doc["id"], grades, is_generated),
    )


def _graded_samples(
    origin: str,
    line: LogLine,
    problem_id: str,
    grades: Sequence[Mapping[str, Any]],
    is_generated: bool,
) -> tuple[tuple[Sample, Score], ...]:
    """The samples of a line; a task that scores continuations has no completions and answers."""
    completions = _flatten(line.resps) if is_generated else []
    answers = _flatten(line.filtered_resps) if is_generated else []
    rows: Iterator[Any] = zip_longest(grades, completions, answers, line.generations)
    graded_samples = []
    for index, (grade, completion, answer, generation) in enumerate(rows):
        facts = generation or Generation()
        sample = Sample(
            key=f"{origin}, {index}",
            task=origin,
            problem_id=problem_id,
            sample_index=index,
            prompt_token_sha256=facts.prompt_token_sha256,
            completion=completion,
            completion_tokens=facts.completion_tokens,
        )
        fields = {"verdict": None, "boxes_after_first": None, "answer": answer, **(grade or {})}
        graded_samples.append((sample, Score(key=sample.key, **fields)))
    return tuple(graded_samples)


def _split_text(text: str, doc: Mapping[str, Any], filler: str) -> list[dict[str, str]]:
    """The segments of another task's prompt.

    The problem is the longest text of the document that occurs in the prompt. All text before it,
    such as a chat template's opening and worked examples, counts as instruction, and all text after
    it as separator.
    """
    head, _, question = text.rpartition(filler) if filler else ("", "", text)
    values = [value.strip() for value in doc.values() if isinstance(value, str)]
    matches = [value for value in values if value and value in question]
    # of equally long fields the last one, as a question usually follows its context
    problem = max(reversed(matches), key=len, default=question)
    before, _, after = question.rpartition(problem)
    inserted = filler.strip() or filler
    left_blank, _, right_blank = filler.partition(inserted) if filler else ("", "", "")
    segments = [
        ("instruction", head),
        ("separator", left_blank),
        ("filler", inserted),
        ("separator", right_blank),
        ("instruction", before),
        ("problem", problem),
        ("separator", after),
    ]
    return [{"role": role, "text": content} for role, content in segments if content]


def _flatten(values: Any) -> list[str]:
    """The texts of nested lists: lm-eval nests by request, then by repeat."""
    if isinstance(values, list):
        return [text for value in values for text in _flatten(value)]
    return [values] if isinstance(values, str) else []


def _collect_arms(name: str, logs: Sequence[tuple[str | None, SampleLog]]) -> Arms:
    """The prompts of all logs, under the conditions that the user or the documents name.

    Raises:
        RunError: a condition is not known, or has two logs.
    """
    arms: Arms = {}
    for named_condition, log in logs:
        for prompt in log.prompts:
            prompt.condition = condition = named_condition or prompt.condition
            if not condition:
                raise RunError(
                    f"{log.path} names no condition: name that of each log, as wo=FILE mless=FILE."
                )
            arm_log, prompts = arms.setdefault((condition, prompt.layout), (log, []))
            if arm_log is not log:
                raise RunError(
                    f"{name} holds two logs of condition {condition!r}: {arm_log.path} and "
                    f"{log.path}."
                )
            prompts.append(prompt)
    return arms


def _refuse_other_settings(logs: Sequence[SampleLog]) -> None:
    """Raise ComparisonError if two logs were made with different settings, as far as is known."""
    logs = [log for log in logs if log.settings]
    for log in logs[1:]:
        first = logs[0]
        old, new = dict(first.settings), dict(log.settings)
        # our tasks have one version; other tasks have versions of their own
        are_ours = is_ours(log.prompts[0].doc) and is_ours(first.prompts[0].doc)
        if are_ours or log.results.task == first.results.task:
            old["task_version"] = first.results.task_version
            new["task_version"] = log.results.task_version
        if difference := describe_differences(old, new):
            raise ComparisonError(
                f"{log.path} was made with other settings than {first.path}: {difference}."
            )


def _merge_problems(logs: Sequence[SampleLog]) -> dict[str, str]:
    """The hash of each problem. A document without an id has its line's number as its id.

    Raises:
        ComparisonError: two logs have different problems under one id.
    """
    problems: dict[str, str] = {}
    for log in logs:
        changed = [
            name
            for name, sha256 in log.problems.items()
            if problems.setdefault(name, sha256) != sha256
        ]
        if changed:
            raise ComparisonError(
                f"{log.path} has different problems with the same ids: {list_first(changed)}."
            )
    return problems


def _read_samples(
    label: str, prompts: Sequence[AnsweredPrompt], *, texts: bool = False
) -> pandas.DataFrame:
    """One row per graded sample, with the columns of `samples_frame.read_frame`.

    Raises:
        RunError: a sample has no verdict.
    """
    graded_samples = []
    for prompt in prompts:
        if not prompt.verdicts:
            raise RunError(
                f"{prompt.task}: the log has no verdict. Use --metric to name a metric that is 0 "
                "or 1."
            )
        graded_samples += [pair for pair in prompt.graded_samples if pair[1].verdict]
    receipt = {"config": {"model": {"label": label}, "conditions": ()}}
    records = zip(*graded_samples, strict=True)
    return read_frame(None, receipt, prompts, texts=texts, records=records)
