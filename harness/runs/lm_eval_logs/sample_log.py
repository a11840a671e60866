"""lm-eval's sample logs (`--log_samples`): the prompt that was sent, what came back, and whether it was right.

Logs of our tasks carry condition and segments in their documents. Those of other tasks do not: there the user names
the condition of each file, unless `mless tasks --wrap` wrote the task. Then lm-eval's results file names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from harness.errors import RunError
from harness.experiment.prompt import Layout, Role, Segment, document_prompt, hash_text, is_ours
from harness.runs.journal import parse
from harness.runs.lm_eval_logs.results import TaskResults, read_results
from harness.runs.records import Document, Graded, Word, encodable, fit
from harness.runs.run_prompts import RunPrompt
from harness.runs.stored_files import PACKED, find_stored, is_stored, open_stored

METRICS = ("exact_match", "math_verify", "acc")
"""What says right or wrong in logs of other tasks; the first that a log has is taken."""

_RESTORE = "Restore the file from a copy, or run lm_eval again."


class Generation(Struct):
    """What our sample logs add to a completion."""

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
        other_filters: Those in the file that were not read.
        results: The results file beside it.
        samples: One per problem.
    """

    path: Path
    metric: str | None
    other_filters: tuple[str, ...]
    results: TaskResults
    samples: tuple[RunPrompt, ...]

    @property
    def model(self) -> str | None:
        """The model that was loaded, by the results file."""
        return self.results.model

    @property
    def arms(self) -> dict[tuple[str, str], list[RunPrompt]]:
        """The samples by condition and layout."""
        arms: dict[tuple[str, str], list[RunPrompt]] = {}
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
    samples: dict[str, RunPrompt] = {}
    filters: dict[str, None] = {}
    for where, line in _read_lines(path):
        filter_name = line.get("filter", "none")
        filters[filter_name] = None
        chosen = wanted or next(iter(filters))
        if filter_name != chosen:
            continue
        try:
            sample, found = _read_sample(where, line, name, results, chat=chat)
        except RecursionError:
            raise RunError(f"{where}: nested too deeply for a sample. {_RESTORE}") from None
        name = name or found
        if sample.problem_id in samples:
            raise RunError(f"{where}: problem {sample.problem_id} again. Expected one line a problem and filter.")
        samples[sample.problem_id] = sample
    if not filters:
        raise RunError(f"{path} has no sample. Check the path.")
    if not samples:
        raise RunError(f"{path} has no sample under the filter {wanted!r}: expected one of {', '.join(filters)}.")
    if results.counts is not None and len(samples) < results.counts.effective:
        raise RunError(
            f"{path}: samples are missing: expected {results.counts.effective}, as its results file says, got "
            f"{len(samples)}. {_RESTORE}"
        )
    return SampleLog(
        path=path,
        metric=f"{name},{chosen}" if name else None,
        other_filters=tuple(one for one in filters if one != chosen),
        results=results,
        samples=tuple(samples.values()),
    )


def _read_sample(
    where: str, line: Mapping[str, Any], metric: str, results: TaskResults, *, chat: bool
) -> tuple[RunPrompt, str]:
    """The sample, and the metric that its verdicts were read from. `results` is the file beside it."""
    doc = line["doc"]
    text, generated = _arguments(where, line["arguments"])
    sha256 = line.get("prompt_hash") or hash_text(text)  # lm-eval before 0.4.3 wrote none
    segments: tuple[Segment, ...] = ()
    system_size = 0
    layout = str(Layout.CHAT if chat else Layout.RAW)
    if is_ours(doc):
        fit(Document, doc, f"{where}: its document", _RESTORE)
        prompt = document_prompt(doc)
        segments, system_size = prompt.segments, prompt.system_size
        plain = Layout.AS_PUBLISHED if doc.get("layout") == Layout.AS_PUBLISHED else Layout.RAW
        layout = str(plain if text == prompt.text else Layout.CHAT)
    elif text and results.filler is not None:
        segments = _split_text(text, doc, results.filler)
    responses, filtered = (_flat(line.get(key)) for key in ("resps", "filtered_resps"))
    answers: tuple[str | None, ...] = tuple(filtered) if generated else ()
    verdicts: tuple[str, ...] = ()
    # what another task's filter lets through is the model's own words, whatever they say
    graded = is_ours(doc) and metric in ("", "verdict")
    grades = [grade for grade in (_grade(where, text) for text in filtered) if grade] if graded else []
    if grades:
        metric, answers = "verdict", tuple(grade.answer for grade in grades)
        verdicts = tuple(grade.verdict for grade in grades)
    elif metric := metric or next((name for name in METRICS if name in line), ""):
        verdicts = (_verdict(where, line, metric),)
    generations = line.get("generations") or [{}]
    level = re.search(r"\d{1,9}", str(doc.get("level", "")))
    return (
        RunPrompt(
            where=where,
            problem_id=encodable(str(doc.get("id") or doc.get("unique_id") or line["doc_id"])),
            subject=encodable(str(doc.get("subject") or doc.get("type") or "")),
            level=int(level[0]) if level else 0,
            condition=doc["condition"] if is_ours(doc) else results.condition,
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


def _split_text(text: str, doc: Mapping[str, Any], filler: str) -> tuple[Segment, ...]:
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
    parts: list[tuple[Role, str]] = [
        ("instruction", head),
        ("separator", left),
        ("filler", inserted),
        ("separator", right),
        ("instruction", before),
        ("problem", problem),
        ("separator", after),
    ]
    return tuple(Segment(role=role, text=part) for role, part in parts if part)


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
                if path.suffix != ".jsonl":
                    raise RunError(
                        f"{path} is no run: expected a run folder or lm-eval's sample logs (.jsonl), got "
                        f"{f'a {path.suffix}' if path.suffix else 'another'} file. Name the run."
                    ) from None
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
