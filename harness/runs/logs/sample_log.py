"""A sample log of lm-eval (`--log_samples`): its prompts, samples and verdicts.

Logs of our tasks have condition, segments and grades in them. In logs of other tasks, a metric says
what is right, and the segments are found only if `mless tasks --wrap` wrote the task.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict
from pydantic import ValidationError

from harness.constants import JsonObject
from harness.errors import TABLE_HINT, RunError
from harness.experiment.gold_answers import read_golds
from harness.experiment.model_settings import select_fixed_arguments
from harness.experiment.problems import read_level, refuse_other_golds
from harness.experiment.prompts.prompt import Layout, document_prompt, hash_problem, is_ours
from harness.grading import Grade
from harness.reasoning_markers import add_reasoning, find_open_reasoning
from harness.runs.logs.lm_eval_files import (
    LogLine,
    ResultsFile,
    find_log,
    read_lines,
    read_results,
)
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.records import Sample, Score

METRICS = ("exact_match", "math_verify", "acc")
"""Metrics of other tasks that can give a verdict; the first that a log has is read."""

_IDS = re.compile(r"(^|_)(u?u?id|idx|index)$|Id$")
"""Names of fields in which copies of a document may differ."""


@dataclass(frozen=True, kw_only=True)
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
    def settings(self) -> JsonObject:
        """The settings of generation, without those that are unknown."""
        results = self.results
        if results.config.model is None:
            return {}
        arguments = select_fixed_arguments(results.arguments)
        settings = {
            "backend": results.config.model,
            "model": results.model,
            "model_args": {name: str(value) for name, value in arguments.items()},
            "system_instruction": results.system_instruction or "",
            "num_fewshot": results.task_config.num_fewshot,
            "generation_kwargs": results.task_config.generation_kwargs,
        }
        if results.task_config.num_fewshot:
            settings["fewshot_seed"] = results.config.fewshot_seed
        return {name: value for name, value in settings.items() if value is not None}


def read_log(path: Path, *, metric: str | None) -> SampleLog:
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
    golds: dict[str, tuple[str, str]] = {}
    filters: dict[str, None] = {}
    for origin, values, line in read_lines(path):
        # a set would lose the order
        filters[line.filter] = None
        filter_name = filter_name or line.filter
        if line.filter != filter_name:
            continue
        metric_name, grades = _read_grades(origin, values, line, metric_name)
        prompt = _read_prompt(origin, line, results, grades)
        if prompt.problem_id in prompts:
            raise RunError(f"{origin}: problem {prompt.problem_id} occurs twice.")
        prompts[prompt.problem_id] = prompt
        location = f"{origin}: problem {prompt.problem_id}"
        refuse_other_golds(golds, prompt.question, prompt.golds, location)
        problems[prompt.problem_id] = hash_problem(line.doc, prompt.doc["answer"])
    # lm-eval's own count of documents: a log that is shorter was cut off
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
    origin: str, values: JsonObject, line: LogLine, metric: str
) -> tuple[str, list[JsonObject]]:
    """The metric that a line's verdicts are read from, and its grades as fields of a `Score`.

    Raises:
        RunError: a grade of our task is damaged, or the metric is neither 0 nor 1.
    """
    # in another task's log a text that looks like a grade was written by the model
    if is_ours(line.doc) and metric in ("", "verdict"):
        texts = read_completions(line.filtered_resps, origin)
        try:
            grades = [asdict(msgspec.json.decode(text, type=Grade)) for text in texts]
        except msgspec.DecodeError as error:
            raise RunError(f"{origin}: its grade: {error}.") from None
        if grades:
            return "verdict", grades
    metric = metric or next((name for name in METRICS if name in values), "")
    if not metric:
        return "", []
    value = values.get(metric, "missing")
    if value not in (0, 1):
        metrics = ", ".join(values.get("metrics") or ()) or "none"
        raise RunError(
            f"{origin}: the metric {metric!r} is {value}: expected 0 or 1. The log has {metrics}. "
            f"{TABLE_HINT}"
        )
    return metric, [{"verdict": "correct" if value else "incorrect"}]


def _read_prompt(
    origin: str, line: LogLine, results: ResultsFile, grades: Sequence[JsonObject]
) -> AnsweredPrompt:
    """The prompt of a line with its graded samples; `results` is the file beside the log."""
    text, start, is_generated, sent_text = _read_prompt_text(origin, line)
    completions = read_completions(line.resps, origin) if is_generated else []
    try:
        answer, *alternatives = read_golds(line.target)
    except ValidationError:  # `mless table` needs no gold answer
        answer, alternatives = "", []
    doc = {
        **line.doc,
        "id": str(line.doc.get("id") or line.doc.get("unique_id") or line.doc_id),
        "subject": str(line.doc.get("subject") or line.doc.get("type") or ""),
        "level": read_level(line.doc.get("level")),
        "answer": answer,
    }
    layout = Layout.CHAT if results.chat_template else Layout.RAW
    chunks: list[str] = []
    if is_ours(doc):
        condition = doc["condition"]
        prompt = document_prompt(doc)
        if not results.task_config.num_fewshot:
            chunks = [segment.text for segment in prompt.segments]
        is_known = results.config.model is not None
        # without a results file only the text shows whether a template was applied
        is_raw = (text and not results.chat_template) if is_known else text == prompt.text
        layout = Layout.CHAT
        if is_raw:
            is_published = doc["layout"] == Layout.AS_PUBLISHED
            layout = Layout.AS_PUBLISHED if is_published else Layout.RAW
    else:
        metadata = results.task_config.metadata or {}
        condition = metadata.get("filler_condition") or ""
        filler = metadata.get("filler")
        if filler is not None:
            chunks = [str(filler)]
        has_segments = text and filler is not None
        doc["segments"] = _split_text(text, line.doc, str(filler)) if has_segments else []
        doc["system"] = ""
        # in another task these fields may mean anything
        doc["alternatives"] = alternatives
        doc["question_of_log"] = _read_question(line, results)
        doc.pop("cluster", None)
    return AnsweredPrompt(
        task=origin,
        condition=condition,
        layout=str(layout),
        prompt=text,
        prompt_sha256=line.prompt_hash,
        prompt_token_sha256=None,
        doc=doc,
        graded_samples=_graded_samples(
            origin, line, doc["id"], grades, [start + completion for completion in completions]
        ),
        surroundings=_remove_chunks(f"{origin}: problem {doc['id']}", sent_text, chunks),
    )


def _remove_chunks(location: str, sent_text: str, chunks: Sequence[str]) -> str | None:
    """The text of a prompt without its document's chunks and without blanks; None without chunks.

    Raises:
        RunError: the prompt lacks a chunk, because lm-eval sent a prompt of another command.
    """
    if not chunks:
        return None
    head, surroundings = sent_text, ""
    # templates may trim a turn
    for chunk in filter(None, map(str.strip, reversed(chunks))):
        before, match, after = head.rpartition(chunk)
        if not match:
            raise RunError(
                f"{location}: the prompt lacks its document's text {chunk[:40]!r}. "
                "lm_eval --cache_requests sends prompts of earlier commands; run it without."
            )
        head, surroundings = before, after + surroundings
    return "".join((head + surroundings).split())


def _read_question(line: LogLine, results: ResultsFile) -> str:
    """The text that is the same in all copies of a problem of another task."""
    if results.task_config.num_fewshot:
        # each prompt has examples of its own, so the document is the question
        values = [
            value
            for name, value in line.doc.items()
            if not _IDS.search(name) and str(value) != str(line.target)
        ]
    else:
        # all requests, because choices are scored as continuations of the same prompt
        requests = line.arguments.values()
        values = [*chain.from_iterable(request.values() for request in requests)]
    return " ".join(map(str, values))


def _read_prompt_text(origin: str, line: LogLine) -> tuple[str, str, bool, str]:
    """Four facts of a line's prompt.

    They are the prompt's text, which is empty where chat messages were sent, because only the
    server knows it; the start of reasoning that ends the messages; whether the prompt was answered,
    and not only scored with a continuation; and the text that was sent: the prompt's, or that of
    all messages.

    Raises:
        RunError: the line has no prompt.
    """
    request = line.arguments.get("gen_args_0", {})
    # `arg_0` is the context; `arg_1` has generation's settings, or the continuation that is scored
    prompt, is_generated = request.get("arg_0"), isinstance(request.get("arg_1"), dict)
    if isinstance(prompt, str):
        return prompt, "", is_generated, prompt
    if not isinstance(prompt, list):
        raise RunError(f"{origin}: no prompt text in its `arguments`.")
    # lm-eval writes the messages for a chat API as a list of one JSON text
    if prompt and isinstance(prompt[0], str):
        prompt = _decode_messages(prompt[0])
    *_, ending = read_completions(prompt[-1:], origin)
    contents = "\n".join(_read_content({"content": "", **message}) for message in prompt)
    return "", find_open_reasoning(ending)[0], is_generated, contents


def _graded_samples(
    origin: str,
    line: LogLine,
    problem_id: str,
    grades: Sequence[JsonObject],
    completions: Sequence[str],
) -> tuple[tuple[Sample, Score], ...]:
    """The samples of a line; a task that scores continuations has no completions and answers."""
    answers = read_completions(line.filtered_resps, origin) if completions else []
    rows: Iterator[Any] = zip_longest(grades, completions, answers)
    graded_samples = []
    for index, (grade, completion, answer) in enumerate(rows):
        sample = Sample(
            key=f"{origin}, {index}",
            task=origin,
            problem_id=problem_id,
            sample_index=index,
            prompt_token_sha256=None,
            completion=completion,
            completion_tokens=None,
        )
        fields = {"verdict": None, "answer": answer, **(grade or {})}
        graded_samples.append((sample, Score(key=sample.key, **fields)))
    return tuple(graded_samples)


def _split_text(text: str, doc: JsonObject, filler: str) -> list[dict[str, str]]:
    """The segments of another task's prompt.

    The problem is the longest text of the document that occurs in the prompt. All text before it,
    such as a chat template's opening and worked examples, counts as instruction, and all text after
    it as separator.
    """
    # the last occurrence, because examples may contain the filler too
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


def read_completions(value: Any, origin: str) -> list[str]:
    """The completions in nested lists: lm-eval nests by request, then by repeat.

    A list of chat messages, perhaps as JSON text, is one completion: what the assistant wrote. An
    empty list is an empty completion, because a sample that failed must not disappear.

    Args:
        value: The lists.
        origin: Their file and line, for messages.

    Raises:
        RunError: an object is not a message.
    """
    value = _decode_messages(value)
    if value in (None, []):
        return [""]
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return [str(value)]
    if not isinstance(value[0], dict):
        return [completion for element in value for completion in read_completions(element, origin)]
    try:
        contents = [
            _read_content(message)
            for message in value
            # Gemini's name of the assistant is `model`
            if message.get("role", "model") in ("assistant", "model")
        ]
        return ["\n\n".join(contents)]
    except (AttributeError, KeyError, TypeError):
        raise RunError(
            f"{origin}: expected a text, or messages with `role` and `content`, got {value!r:.80}."
        ) from None


def _decode_messages(value: Any) -> Any:
    """Chat messages that are stored as JSON text; any other value unchanged."""
    if isinstance(value, str) and value.startswith('[{"role"'):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _read_content(message: JsonObject) -> str:
    """The text of a chat message, whose content may be a list of blocks, after its reasoning."""
    content = message["content"]
    if isinstance(content, list):
        # blocks of other types hold reasoning, or calls of tools
        content = "".join(
            block["text"] for block in content if block["type"] in ("text", "output_text")
        )
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return add_reasoning(content or "", str(reasoning), ())
