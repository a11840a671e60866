"""lm-eval's sample logs (`--log_samples`): the prompt that was sent, what came back, and whether it was right.

Logs of our tasks carry condition and segments in their documents. Those of other tasks do not: there the user names
the condition of each file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from harness.errors import ComparisonError, RunError, list_first
from harness.experiment.conditions import BASELINE, named_conditions
from harness.experiment.documents import document_prompt, is_ours
from harness.experiment.problems import Dataset, Problem
from harness.experiment.prompt import Layout, hash_text
from harness.experiment.rewordings import is_edit
from harness.grading import COLUMNS as GRADERS
from harness.grading import AuditColumns
from harness.runs.journal import PACKED, find_stored, hash_json, is_stored, open_stored, other_settings, parse
from harness.runs.read_lm_eval_results import TaskResults, read_results
from harness.runs.records import COLUMNS, Document, Graded, Word, encodable, fit
from harness.runs.repetition import loops
from harness.runs.run import Run
from harness.runs.run_prompts import AskedPrompt

if TYPE_CHECKING:
    import pandas

METRICS = ("exact_match", "math_verify", "acc")
"""What says right or wrong in logs of other tasks; the first that a log has is taken."""

_RESTORE = "Restore the file from a copy, or run lm_eval again."


class Generation(Struct):
    """What our sample logs say of a completion."""

    completion_tokens: int | None = None
    prompt_token_sha256: str | None = None


class LogLine(Struct):
    """A line of lm-eval's sample log."""

    doc_id: int | str
    doc: dict[str, Any]
    arguments: Any
    filter: str = "none"
    prompt_hash: str | None = None
    metrics: list[Word] | None = None
    generations: list[Generation] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLog:
    """One sample log.

    Attributes:
        path: The file.
        metric: What its verdicts were read from, with the filter's name: `exact_match,strict-match`.
        results: What the results file beside it says.
        samples: One a problem.
    """

    path: Path
    metric: str | None
    results: TaskResults
    samples: tuple[AskedPrompt, ...]

    @property
    def model(self) -> str | None:
        """What the results file says was loaded."""
        return self.results.model

    @property
    def arms(self) -> dict[tuple[str | None, str], list[AskedPrompt]]:
        """The samples by condition and layout."""
        arms: dict[tuple[str | None, str], list[AskedPrompt]] = {}
        for sample in self.samples:
            arms.setdefault((sample.condition, sample.layout), []).append(sample)
        return arms


def read_log(path: Path, *, metric: str | None = None) -> SampleLog:
    """Read one sample log.

    Args:
        path: A `samples_*.jsonl` file, or a folder that holds one.
        metric: What says right or wrong: `NAME`, or `NAME,FILTER` where the task has several filters. Without it our
            own tasks' verdicts are taken, else the first of `METRICS` under the file's first filter.

    Raises:
        RunError: the file is missing, damaged or no sample log, or lacks samples or the metric.
    """
    path = _one_file(path)
    name, _, wanted = (metric or "").partition(",")
    results = read_results(path)
    chat = bool(results.file.chat_template)
    samples: dict[str, AskedPrompt] = {}
    chosen: str | None = None
    for where, line in _read_lines(path):
        chosen = chosen or wanted or line.get("filter", "none")
        if line.get("filter", "none") != chosen:
            continue
        try:
            sample, found = _read_sample(where, line, name, chat=chat)
        except RecursionError:
            raise RunError(f"{where}: nested too deeply for a sample. {_RESTORE}") from None
        name = name or found
        if sample.problem_id in samples:
            raise RunError(f"{where}: problem {sample.problem_id} again. Expected one line a problem and filter.")
        samples[sample.problem_id] = sample
    if not samples:
        raise RunError(f"{path} has no sample{f' under the filter {wanted!r}' if wanted else ''}. Check the path.")
    if results.counts is not None and len(samples) < results.counts.effective:
        raise RunError(
            f"{path}: samples are missing: expected {results.counts.effective}, as its results file says, got "
            f"{len(samples)}. {_RESTORE}"
        )
    return SampleLog(
        path=path,
        metric=f"{name},{chosen}" if name else None,
        results=results,
        samples=tuple(samples.values()),
    )


def _read_sample(where: str, line: Mapping[str, Any], metric: str, *, chat: bool) -> tuple[AskedPrompt, str]:
    """The sample, and the metric that its verdicts were read from."""
    doc = line["doc"]
    text, generated = _arguments(where, line["arguments"])
    sha256 = line.get("prompt_hash") or hash_text(text)  # lm-eval before 0.4.3 wrote none
    segments, system_size = None, 0
    layout = str(Layout.CHAT if chat else Layout.RAW)
    if is_ours(doc):
        fit(Document, doc, f"{where}: its document", _RESTORE)
        prompt = document_prompt(doc)
        segments, system_size = prompt.segments, prompt.system_size
        plain = Layout.AS_PUBLISHED if doc.get("layout") == Layout.AS_PUBLISHED else Layout.RAW
        layout = str(plain if text == prompt.text else Layout.CHAT)
    responses, filtered = (_flat(line.get(key)) for key in ("resps", "filtered_resps"))
    answers: tuple[str | None, ...] = tuple(filtered) if generated else ()
    verdicts: tuple[str, ...] = ()
    # what another task's filter lets through is the model's own words, whatever they say
    graded = segments is not None and metric in ("", "verdict")
    grades = [grade for grade in (_grade(where, text) for text in filtered) if grade] if graded else []
    if grades:
        metric, answers = "verdict", tuple(grade.answer for grade in grades)
        verdicts = tuple(grade.verdict for grade in grades)
    elif metric := metric or next((name for name in METRICS if name in line), ""):
        verdicts = (_verdict(where, line, metric),)
    generations = line.get("generations") or [{}]
    level = re.search(r"\d{1,9}", str(doc.get("level", "")))
    return (
        AskedPrompt(
            where=where,
            problem_id=encodable(str(doc.get("id") or doc.get("unique_id") or line["doc_id"])),
            subject=encodable(str(doc.get("subject") or doc.get("type") or "")),
            level=int(level[0]) if level else 0,
            condition=doc["condition"] if segments is not None else None,
            layout=layout,
            text=text,
            sha256=sha256,
            token_sha256=generations[0].get("prompt_token_sha256"),
            segments=segments,
            system_size=system_size,
            doc=doc,
            completions=tuple(responses) if generated else (),
            verdicts=verdicts,
            answers=tuple(answer and encodable(answer) for answer in answers),
            grades=tuple(grades),
            completion_tokens=tuple(generation.get("completion_tokens") for generation in generations),
            target=None if line.get("target") is None else encodable(str(line["target"])),
        ),
        metric,
    )


def _arguments(where: str, arguments: Any) -> tuple[str, bool]:
    """The prompt's text, and whether the model was asked to generate (rather than to score a continuation).

    The text is empty where chat messages were sent, which only the server made a text of.
    """
    try:
        request = arguments["gen_args_0"] if isinstance(arguments, dict) else arguments[0]
        text, rest = (request["arg_0"], request.get("arg_1")) if isinstance(request, dict) else (request[0], request[1])
    except (KeyError, IndexError, TypeError):
        text, rest = None, None
    if isinstance(text, list):
        return "", isinstance(rest, dict)
    if not isinstance(text, str):
        raise RunError(f"{where}: no prompt text in its `arguments`. Expected a log of lm_eval --log_samples.")
    return text, isinstance(rest, dict)


def _verdict(where: str, line: Mapping[str, Any], metric: str) -> str:
    value = line.get(metric)
    if not isinstance(value, (int, float)):
        known = ", ".join(line.get("metrics") or [n for n in METRICS if n in line]) or "none"
        raise RunError(f"{where}: no metric {metric!r} that says right or wrong; it has {known}. Name one of these.")
    if value not in (0, 1):
        raise RunError(
            f"{where}: {metric} is {value}, neither 0 nor 1 (a mean over repeats, or a graded score), so the problem "
            "is neither right nor wrong. Name another metric."
        )
    return "correct" if value else "incorrect"


def _grade(where: str, text: str) -> Graded | None:
    """One of our own tasks' grades; None if the text is none."""
    try:
        grade = json.loads(text)
    except ValueError:
        return None
    if not isinstance(grade, dict) or "verdict" not in grade:
        return None
    return fit(Graded, grade, f"{where}: its grade", _RESTORE)


def _flat(values: Any) -> list[str]:
    """The texts of lists in lists: lm-eval nests by request, then by repeat."""
    if isinstance(values, list):
        return [text for value in values for text in _flat(value)]
    return [values] if isinstance(values, str) else []


def _read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line with its place, for messages."""
    with open_stored(path) as stream:
        for number, raw in enumerate(stream, start=1):
            where = f"{path}, line {number}"
            try:
                line = parse(raw)
            except (ValueError, RecursionError):
                raise RunError(f"{where}: damaged, expected one JSON object. {_RESTORE}") from None
            if not isinstance(line, dict) or not {"doc_id", "doc", "arguments"} <= line.keys():
                raise RunError(
                    f"{where}: not a line of a sample log: expected the keys doc_id, doc and arguments, as lm_eval "
                    "--log_samples writes them."
                )
            fit(LogLine, line, where, _RESTORE)
            yield where, line


def find_logs(folder: Path) -> list[Path]:
    """The sample logs in a folder, however deep; a packed one by the name that it has unpacked."""
    return find_stored(folder, "**/samples_*.jsonl")


def _one_file(path: Path) -> Path:
    """The log itself, or the one that a folder holds."""
    found = find_logs(path) if path.is_dir() else [path.with_name(path.name.removesuffix(PACKED))]
    if len(found) != 1:
        named = f", such as {found[0]}" if found else ""
        raise RunError(f"{path} is a folder with {len(found)} sample logs{named}: expected one. Name the file itself.")
    if not is_stored(found[0]):
        raise RunError(
            f"{path} does not exist. Expected a run folder, or a sample log of lm_eval --log_samples; check the path."
        )
    return found[0]


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
    settings = next((log.results.settings for log in every if log.results.settings), {})
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
        "prompts_sha256": hash_json([sample.sha256 for log in every for sample in log.samples]),
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


Arms = dict[tuple[str, str], tuple[SampleLog, list[AskedPrompt]]]
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
            if condition is None:
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


def _sample_rows(prompt: AskedPrompt, model: str, condition: str) -> Iterator[dict[str, Any]]:
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
