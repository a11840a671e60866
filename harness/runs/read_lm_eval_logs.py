"""Logs of lm-eval (`--log_samples`) as one run: each log is one condition, and all must have been asked alike.

Logs of our tasks carry condition and segments in their documents. Those of other tasks do not: there the user names
the condition of each file, unless `mless tasks --wrap` wrote the task. Then lm-eval's results file names it.
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
    TaskConfig,
    one_log,
    prompt_of,
    read_lines,
    read_results,
)
from harness.runs.journal import differing
from harness.runs.records import Graded, Sample, Score
from harness.runs.samples_frame import read_frame

if TYPE_CHECKING:
    import pandas

METRICS = ("exact_match", "math_verify", "acc")
"""What says right or wrong in logs of other tasks; the first that a log has is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLog:
    """One sample log.

    Attributes:
        path: The file.
        task: lm-eval's name of the task; None where the file has another name than lm-eval gives.
        results: The results file beside it.
        metric: What its verdicts were read from, with the filter's name: `exact_match,strict-match`.
        other_filters: Those in the file that were not read.
        prompts: One per problem, with its samples.
        problems: The hash of each problem, by its id.
    """

    path: Path
    task: str | None
    results: ResultsFile
    metric: str | None
    other_filters: tuple[str, ...]
    prompts: tuple[AnsweredPrompt, ...]
    problems: Mapping[str, str]

    @property
    def settings(self) -> dict[str, Any]:
        """How completions were asked for; what is not known is left out."""
        asked = self.results.configs.get(self.task or "", TaskConfig())
        known = {
            "backend": self.results.config.model,
            "model": self.results.model,
            "model_args": {
                name: str(value) for name, value in fixed_arguments(self.results.arguments).items()
            },
            "system_instruction": self.results.system_instruction or "",
            "num_fewshot": asked.num_fewshot,
            "generation_kwargs": asked.generation_kwargs,
        }
        there = self.results.config.model is not None
        return {name: value for name, value in known.items() if there and value is not None}


def read_logs(
    name: str, files: Sequence[tuple[str | None, Path]], *, metric: str | None = None
) -> dict[str, Any]:
    """Several sample logs as the fields of one `read_runs.Run`.

    Args:
        name: What the run is called.
        files: Condition and file; without a condition the documents name it.
        metric: See `read_log`.

    Raises:
        RunError: a log is missing, damaged or no sample log, or its condition is not known.
        ComparisonError: the logs are of several task versions or settings, or ask other problems under one id.
    """
    logs = [(condition, read_log(file, metric=metric)) for condition, file in files]
    every = [log for _, log in logs]
    _refuse_other_settings(every)
    problems = _shared_problems(every)
    arms = _arms(name, logs)
    there = {condition for condition, _ in arms}
    order = [
        one
        for one in dict.fromkeys([BASELINE, *named_conditions(), *(c for c, _ in arms)])
        if one in there
    ]
    settings = dict(next((log.settings for log in every if log.settings), {}))
    sampling = settings.pop("generation_kwargs", None)
    versions = {log.results.versions.get(log.task or "") for log in every} - {None}
    first = every[0].results
    about = {
        "source": "lm-eval",
        "run": name,
        "model": first.label,
        "model_sha256": None,
        "dataset": None,
        "dataset_name": None,
        "problems": len(problems),
        "task_version": versions.pop() if len(versions) == 1 else None,
        "grader_version": None,
        "metric": ", ".join(dict.fromkeys(log.metric for log in every if log.metric)),
        "other_filters": ", ".join(
            dict.fromkeys(one for log in every for one in log.other_filters)
        ),
        "prompts_sha256": hash_json(
            [prompt.prompt_sha256 for log in every for prompt in log.prompts]
        ),
        "sampling": sampling,
        "settings": settings,
        "greedy": None if sampling is None else not sampling.get("do_sample", False),
        "backend": first.config.model,
        "contrasts": None,  # nobody named any beforehand
        "primary": None,
        "reference_conditions": {
            prompt.condition: {key: prompt.doc[key] for key in REFERENCE_FIELDS}
            for _, prompts in arms.values()
            for prompt in prompts[:1]
            if is_ours(prompt.doc)
            and prompt.doc.get("kind")
            and prompt.condition == prompt.doc["condition"]
        },
        "seed": first.config.random_seed,
        "created": first.date
        and datetime.fromtimestamp(first.date, UTC).isoformat(timespec="seconds"),
        "versions": {"lm-eval": first.lm_eval_version},
        "git_revision": first.git_hash,
        "logs": {
            f"{condition}, {layout}": str(log.path)
            for (condition, layout), (log, _) in arms.items()
        },
    }
    shown = sorted(arms, key=lambda arm: (arm[1], order.index(arm[0])))
    prompts = [prompt for arm in shown for prompt in arms[arm][1]]
    return {
        "name": name,
        "about": about,
        "problems": problems,
        "model": next((log.results.model for log in every if log.results.model), None),
        "metric": about["metric"] or None,
        "read": partial(_frame, first.label, prompts),
        "read_prompts": lambda: prompts,
    }


def read_log(path: Path, *, metric: str | None = None) -> SampleLog:
    """Read one sample log.

    Args:
        path: A `samples_*.jsonl` file, or a folder that holds one.
        metric: What says right or wrong: `NAME`, or `NAME,FILTER` where the task has several filters. Without it our
            own tasks' verdicts are taken, else the first of `METRICS` under the file's first filter.

    Raises:
        RunError: the file is missing, damaged or no sample log, or lacks samples or the metric.
    """
    path = one_log(path)
    task, results = read_results(path)
    name, _, wanted = (metric or "").partition(",")
    prompts: dict[str, AnsweredPrompt] = {}
    problems: dict[str, str] = {}
    filters: dict[str, None] = {}
    for where, raw, line in read_lines(path):
        filters[line.filter] = None
        wanted = wanted or line.filter
        if line.filter != wanted:
            continue
        prompt, name = _read_prompt(where, raw, line, name, task, results)
        if prompt.problem_id in prompts:
            raise RunError(f"{where}: problem {prompt.problem_id} again.")
        prompts[prompt.problem_id] = prompt
        problems[prompt.problem_id] = hash_problem(line.doc, prompt.doc["answer"])
    least = max(1, results.n_samples.get(task or "", {}).get("effective", 1))
    if len(prompts) < least:
        found = f" under the filter {wanted!r}; the log has {', '.join(filters)}" if filters else ""
        raise RunError(f"{path}: samples are missing: expected {least}, got {len(prompts)}{found}.")
    return SampleLog(
        path=path,
        task=task,
        results=results,
        metric=f"{name},{wanted}" if name else None,
        other_filters=tuple(one for one in filters if one != wanted),
        prompts=tuple(prompts.values()),
        problems=problems,
    )


def _read_prompt(
    where: str,
    raw: Mapping[str, Any],
    line: LogLine,
    metric: str,
    task: str | None,
    results: ResultsFile,
) -> tuple[AnsweredPrompt, str]:
    """A problem's prompt, and the metric that its verdicts were read from. `results` is the file beside the log."""
    doc = line.doc
    text, generated = prompt_of(where, line)
    stated = results.configs.get(task or "", TaskConfig()).metadata or {}
    target = "" if line.target is None else str(line.target)
    level = re.search(r"\d+", str(doc.get("level", "")))
    shown = {
        **doc,
        "id": str(doc.get("id") or doc.get("unique_id") or line.doc_id),
        "subject": str(doc.get("subject") or doc.get("type") or ""),
        "level": int(level[0]) if level else 0,
        "answer": target,
    }
    layout, condition = (
        Layout.CHAT if results.chat_template else Layout.RAW,
        stated.get("filler_condition") or "",
    )
    if is_ours(doc):
        condition = doc["condition"]
        plain = Layout.AS_PUBLISHED if doc["layout"] == Layout.AS_PUBLISHED else Layout.RAW
        layout = plain if text == document_prompt(doc).text else Layout.CHAT
    else:
        shown.pop("cluster", None)  # another task's word, which may mean anything
        known = text and stated.get("filler") is not None
        shown |= {
            "segments": _split_text(text, doc, stated["filler"]) if known else [],
            "system": "",
        }
    filtered = _flat(line.filtered_resps)
    # what another task's filter lets through is the model's own words, whatever they say
    graded = is_ours(doc) and metric in ("", "verdict")
    try:
        grades = [msgspec.json.decode(grade, type=Graded) for grade in filtered] if graded else []
    except msgspec.DecodeError as error:
        raise RunError(f"{where}: its grade: {error}.") from None
    judged: list[dict[str, Any]] = [asdict(grade) for grade in grades]
    if grades:
        metric = "verdict"
    elif metric := metric or next((name for name in METRICS if name in raw), ""):
        judged = [{"verdict": _verdict(where, raw, metric)}]
    ungraded: dict[str, Any] = {"verdict": None, "boxes_after_first": None}
    said = (_flat(line.resps), filtered) if generated else ((), ())
    parts: Iterator[Any] = zip_longest(judged, *said, line.generations)
    answered = []
    for index, (grade, completion, answer, generation) in enumerate(parts):
        told, key = generation or Generation(), f"{where}, {index}"
        sample = Sample(
            key=key,
            task=where,
            problem_id=shown["id"],
            sample_index=index,
            prompt_token_sha256=told.prompt_token_sha256,
            completion=completion,
            completion_tokens=told.completion_tokens,
        )
        answered.append(
            (sample, Score(**{"key": key, **ungraded, "answer": answer, **(grade or {})}))
        )
    prompt = AnsweredPrompt(
        task=where,
        condition=condition,
        layout=str(layout),
        prompt=text,
        prompt_sha256=line.prompt_hash,
        prompt_token_sha256=line.generations[0].prompt_token_sha256 if line.generations else None,
        doc=shown,
        graded_samples=tuple(answered),
    )
    return prompt, metric


def _split_text(text: str, doc: Mapping[str, Any], filler: str) -> list[dict[str, str]]:
    """The segments of another task's prompt. The problem is the longest text of the document that stands in it.

    What stands before the problem counts as instruction, a chat template's opening and worked examples included, and
    what follows it as separator.
    """
    head, _, asked = text.rpartition(filler) if filler else ("", "", text)
    known = sorted((value.strip() for value in doc.values() if isinstance(value, str)), key=len)
    problem = next((one for one in reversed(known) if one and one in asked), asked)
    before, _, after = asked.rpartition(problem)
    inserted = filler.strip() or filler
    left, _, right = filler.partition(inserted) if filler else ("", "", "")
    parts = [
        ("instruction", head),
        ("separator", left),
        ("filler", inserted),
        ("separator", right),
        ("instruction", before),
        ("problem", problem),
        ("separator", after),
    ]
    return [{"role": role, "text": part} for role, part in parts if part]


def _verdict(where: str, raw: Mapping[str, Any], metric: str) -> str:
    value = raw.get(metric)
    if value not in (0, 1):
        known = ", ".join(raw.get("metrics") or ()) or "none"
        raise RunError(
            f"{where}: the metric {metric!r} is {value}, neither 0 nor 1, so that it says neither right nor wrong. The "
            f"log has {known}."
        )
    return "correct" if value else "incorrect"


def _flat(values: Any) -> list[str]:
    """The texts of lists in lists: lm-eval nests by request, then by repeat."""
    if isinstance(values, list):
        return [text for value in values for text in _flat(value)]
    return [values] if isinstance(values, str) else []


Arms = dict[tuple[str, str], tuple[SampleLog, list[AnsweredPrompt]]]
"""Of each condition and layout its log and its prompts."""


def _arms(name: str, logs: Sequence[tuple[str | None, SampleLog]]) -> Arms:
    """The prompts of all logs.

    Raises:
        RunError: a condition is not known, or has two logs.
    """
    arms: Arms = {}
    for given, log in logs:
        for prompt in log.prompts:
            prompt.condition = condition = given or prompt.condition
            if not condition:
                raise RunError(
                    f"{log.path} names no condition: say which log is which, as wo=FILE mless=FILE."
                )
            other, prompts = arms.setdefault((condition, prompt.layout), (log, []))
            if other is not log:
                raise RunError(
                    f"{name} holds two logs of condition {condition!r}: {other.path} and {log.path}."
                )
            prompts.append(prompt)
    return arms


def _refuse_other_settings(logs: Sequence[SampleLog]) -> None:
    """Raise ComparisonError if the results files say that two conditions were asked with other settings."""
    known = [log for log in logs if log.settings]
    for log in known[1:]:
        first = known[0]
        alike = log.task == first.task or all(is_ours(one.prompts[0].doc) for one in (log, first))
        ours, theirs = (
            {
                **one.settings,
                **({"task_version": one.results.versions.get(one.task or "")} if alike else {}),
            }
            for one in (first, log)
        )
        if how := differing(ours, theirs):
            raise ComparisonError(
                f"{log.path} was made with other settings than {first.path}: {how}."
            )


def _shared_problems(logs: Sequence[SampleLog]) -> dict[str, str]:
    """The hash of each problem.

    Raises:
        ComparisonError: two logs have other problems under one id. A document without an id has its place as its id.
    """
    found: dict[str, str] = {}
    for log in logs:
        if others := [
            name
            for name, sha256 in log.problems.items()
            if found.setdefault(name, sha256) != sha256
        ]:
            raise ComparisonError(
                f"{log.path} asks others under the same ids: {list_first(others)}."
            )
    return found


def _frame(
    label: str, prompts: Sequence[AnsweredPrompt], *, texts: bool = False
) -> pandas.DataFrame:
    """One row per graded sample, with the columns of `samples_frame.read_frame`.

    Raises:
        RunError: the log says of a sample neither right nor wrong.
    """
    for prompt in prompts:
        if not prompt.verdicts:
            raise RunError(
                f"{prompt.task}: the log says neither right nor wrong. Name what does with --metric."
            )
    graded = [pair for prompt in prompts for pair in prompt.graded_samples if pair[1].verdict]
    receipt = {"config": {"model": {"label": label}, "conditions": ()}}
    return read_frame(None, receipt, prompts, texts=texts, read=zip(*graded, strict=True))
