"""A sample log of lm-eval (`--log_samples`): its prompts, samples and verdicts.

Logs of our tasks have condition, segments and grades in them. In logs of other tasks, a metric says
what is right, and the segments are found only if `mless tasks --wrap` wrote the task. A filter of
lm-eval extracts the answers from completions. A task may have several filters, and then its log has
a line for each problem and filter.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict
from pydantic import ValidationError

from harness.constants import JsonObject
from harness.errors import TABLE_HINT, RunError
from harness.experiment.gold_answers import read_golds
from harness.experiment.model_settings import select_fixed_arguments
from harness.experiment.problems import add_facts, read_level
from harness.experiment.prompts.prompt import Layout, hash_problem, is_ours, read_document_prompt
from harness.grading import Grade
from harness.reasoning_markers import add_reasoning, find_open_reasoning
from harness.runs.logs.lm_eval_files import LogLine, ResultsFile, find_log, read_lines, read_results
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.records import GradedSample, Sample, Score

METRIC_NAMES = ("exact_match", "math_verify", "acc")
"""Metrics of other tasks that can give a verdict; the first that a log has is read."""

_ID_FIELD_PATTERN = re.compile(r"(^|_)(u?u?id|idx|index)$|Id$")
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
    """

    path: Path
    results: ResultsFile
    metric: str | None
    other_filters: list[str]
    prompts: list[AnsweredPrompt]

    @property
    def settings(self) -> JsonObject:
        """The settings of generation, without those that are unknown."""
        results = self.results
        if results.config.model is None:
            return {}
        task_config = results.task_config
        settings = {
            "backend": results.config.model,
            "model": results.model,
            "model_args": {
                name: str(value)
                for name, value in select_fixed_arguments(results.model_arguments).items()
            },
            "system_instruction": results.system_instruction or "",
            "num_fewshot": task_config.num_fewshot,
            "generation_kwargs": task_config.generation_kwargs,
        }
        if task_config.num_fewshot:
            settings["fewshot_seed"] = results.config.fewshot_seed
        return {name: value for name, value in settings.items() if value is not None}


def read_log(path: Path, *, metric: str | None) -> SampleLog:
    """Read a sample log.

    Args:
        path: A `samples_*.jsonl` file, or a folder with one such file.
        metric: The metric that gives the verdicts: `NAME`, or `NAME,FILTER` where the task has
            several filters. Without it the verdicts of our own tasks are read, and of other tasks
            the first of `METRIC_NAMES` under the file's first filter.

    Raises:
        RunError: the file is missing, damaged or not a sample log, or lacks samples or a metric.
    """
    path = find_log(path)
    results = read_results(path)
    metric_name, _, filter_name = (metric or "").partition(",")
    # the keys of a dict, because a set would lose the order
    filter_names: dict[str, None] = {}
    prompts = []
    for location, line_fields, line in read_lines(path):
        filter_names[line.filter] = None
        # if the user named no filter and no metric, those of the first line count for all lines
        filter_name = filter_name or line.filter
        if line.filter == filter_name:
            metric_name, grades = _read_grades(location, line_fields, line, metric_name)
            prompts.append(_read_prompt(location, line, results, grades))
    _refuse_unequal_copies(prompts)
    # lm-eval counts the documents itself, so a log with fewer prompts was cut off
    expected_count = max(1, results.n_samples.get(results.task, {}).get("effective", 1))
    if len(prompts) < expected_count:
        counts_text = f"expected {expected_count}, got {len(prompts)}"
        if filter_names:
            counts_text += (
                f" under the filter {filter_name!r}; the log has {', '.join(filter_names)}"
            )
        raise RunError(f"{path}: samples are missing: {counts_text}.")
    return SampleLog(
        path=path,
        results=results,
        metric=f"{metric_name},{filter_name}" if metric_name else None,
        other_filters=[name for name in filter_names if name != filter_name],
        prompts=prompts,
    )


def _refuse_unequal_copies(prompts: Sequence[AnsweredPrompt]) -> None:
    """Refuse two prompts with one problem's id, or copies of a problem with other gold answers.

    Raises:
        RunError: an id occurs twice.
        DataError: copies, which have the same question, have other gold answers.
    """
    problem_ids = set()
    facts_and_location_by_question: dict[str, tuple[str, str]] = {}
    for prompt in prompts:
        problem_id = prompt.problem_id
        # a prompt of a log has the location of its line as the name of its task
        location = f"{prompt.task}: problem {problem_id}"
        if problem_id in problem_ids:
            raise RunError(f"{location} occurs twice.")
        problem_ids.add(problem_id)
        add_facts(facts_and_location_by_question, prompt.question, prompt.golds, location)


def _read_grades(
    location: str, line_fields: JsonObject, line: LogLine, metric_name: str
) -> tuple[str, list[JsonObject]]:
    """The metric that a line's verdicts are read from, and its grades as fields of a `Score`.

    An empty `metric_name` leaves the choice to the line; an empty result says that it has no
    metric.

    Raises:
        RunError: a grade of our task is damaged, or the metric is neither 0 nor 1.
    """
    # a model may write a text that looks like a grade, so only our tasks' logs are believed
    if is_ours(line.doc) and metric_name in ("", "verdict"):
        grade_texts = read_completions(line.filtered_resps, location)
        try:
            grades = [asdict(msgspec.json.decode(text, type=Grade)) for text in grade_texts]
        except msgspec.DecodeError as error:
            raise RunError(f"{location}: its grade: {error}.") from None
        if grades:
            return "verdict", grades
    metric_name = metric_name or next((name for name in METRIC_NAMES if name in line_fields), "")
    if not metric_name:
        return "", []
    metric_value = line_fields.get(metric_name, "missing")
    if metric_value not in (0, 1):
        metric_names_text = ", ".join(line_fields.get("metrics") or ()) or "none"
        raise RunError(
            f"{location}: the metric {metric_name!r} is {metric_value}: expected 0 or 1. The log "
            f"has {metric_names_text}. {TABLE_HINT}"
        )
    return metric_name, [{"verdict": "correct" if metric_value else "incorrect"}]


def _read_prompt(
    location: str, line: LogLine, results: ResultsFile, grades: Sequence[JsonObject]
) -> AnsweredPrompt:
    """The prompt of a line with its graded samples; `results` is the file beside the log."""
    prompt_text = _read_prompt_text(location, line)
    completions = []
    if prompt_text.is_answered:
        completions = [
            prompt_text.reasoning_start + text for text in read_completions(line.resps, location)
        ]
    # `mless tasks --wrap` writes condition and filler of another task into its metadata
    metadata = results.task_config.metadata or {}
    condition = metadata.get("filler_condition") or ""
    filler = metadata.get("filler")
    if is_ours(line.doc):
        condition = line.doc["condition"]
    doc = _read_document(line, results, prompt_text.recorded_text, filler)
    return AnsweredPrompt(
        task=location,
        condition=condition,
        layout=str(_find_layout(line.doc, prompt_text.recorded_text, results)),
        prompt=prompt_text.recorded_text,
        prompt_sha256=line.prompt_hash,
        prompt_token_sha256=None,
        doc=doc,
        problem_sha256=hash_problem(line.doc, doc["answer"]),
        graded_samples=_pair_samples_and_scores(location, line, doc["id"], grades, completions),
        surroundings=_remove_document_texts(
            f"{location}: problem {doc['id']}",
            prompt_text.sent_text,
            _list_document_texts(line.doc, results, filler),
        ),
    )


def _list_document_texts(doc: JsonObject, results: ResultsFile, filler: object) -> list[str]:
    """The texts that the prompt of a document must contain, in their order.

    Empty: they are not known, so the prompt is not checked. `filler` is that of another task.
    """
    if not is_ours(doc):
        return [] if filler is None else [str(filler)]
    # Examples are documents of the same condition. Their fillers would count as surroundings,
    # which would then differ between conditions.
    if results.task_config.num_fewshot:
        return []
    return [segment.text for segment in read_document_prompt(doc).segments]


def _read_document(
    line: LogLine, results: ResultsFile, prompt_text: str, filler: object
) -> JsonObject:
    """The document of a line, with the fields of a `records.Document` that every problem needs.

    A document of another task also gets the segments of its prompt. They are known only if the
    prompt's text was recorded and the task has a filler, which is empty in the baseline.
    """
    try:
        answer, *alternatives = read_golds(line.target)
    except ValidationError:  # `mless table` needs no gold answer
        answer = ""
        alternatives = []
    logged_doc = line.doc
    doc = logged_doc | {
        "id": str(logged_doc.get("id") or logged_doc.get("unique_id") or line.doc_id),
        "subject": str(logged_doc.get("subject") or logged_doc.get("type") or ""),
        "level": read_level(logged_doc.get("level")),
        "answer": answer,
    }
    if is_ours(doc):
        return doc
    roles_and_texts = []
    if filler is not None and prompt_text:
        roles_and_texts = _split_text(prompt_text, logged_doc, str(filler))
    # another task may use the names of these fields for something else
    return doc | {
        "alternatives": alternatives,
        "question_of_log": _read_question(line, results),
        "segments": [{"role": role, "text": text} for role, text in roles_and_texts if text],
        "system": "",
        "cluster": "",
    }


def _find_layout(doc: JsonObject, prompt_text: str, results: ResultsFile) -> Layout:
    """The layout of a prompt. For other tasks the results file alone says it."""
    if not is_ours(doc):
        return Layout.CHAT if results.chat_template else Layout.RAW
    if results.config.model is None:
        # without a results file only the text shows whether a template was applied
        has_template = prompt_text != read_document_prompt(doc).text
    else:
        # an empty text means that messages were sent, to which the server applied its template
        has_template = not prompt_text or bool(results.chat_template)
    if has_template:
        return Layout.CHAT
    return Layout.AS_PUBLISHED if doc["layout"] == Layout.AS_PUBLISHED else Layout.RAW


def _remove_document_texts(
    location: str, sent_text: str, document_texts: Sequence[str]
) -> str | None:
    """The text of a prompt around its document's texts, without blanks.

    It is `AnsweredPrompt.surroundings`: what remains of a problem's prompt must be equal under all
    conditions, and `lm_eval_logs` compares it. If the document's texts are not known, the result is
    None, and nothing is compared.

    The texts are found from the last to the first, each before the one that follows it, because
    examples, which come first in a prompt, may contain the same texts.

    Raises:
        RunError: the prompt lacks a text, because lm-eval sent a prompt of another command.
    """
    if not document_texts:
        return None
    remaining_text = sent_text
    # what was found after and between the texts so far; in the end `remaining_text` comes before it
    surroundings = ""
    # stripped, because chat templates may remove blanks around a turn
    for document_text in filter(None, map(str.strip, reversed(document_texts))):
        remaining_text, matched_text, text_after = remaining_text.rpartition(document_text)
        if not matched_text:
            raise RunError(
                f"{location}: the prompt lacks its document's text {document_text[:40]!r}. "
                "lm_eval --cache_requests sends prompts of earlier commands; run it without."
            )
        surroundings = text_after + surroundings
    return "".join((remaining_text + surroundings).split())


def _read_question(line: LogLine, results: ResultsFile) -> str:
    """The text of a problem of another task, which is the same in all copies of the problem.

    It is the text of all requests. With examples, which may differ between copies, it is all fields
    of the document but ids and the target.
    """
    if results.task_config.num_fewshot:
        # prompts of a problem may differ in their examples, so the document's fields are compared
        question_texts = [
            value
            for name, value in line.doc.items()
            if not _ID_FIELD_PATTERN.search(name) and str(value) != str(line.target)
        ]
    else:
        # of all requests, because each choice of a problem is scored in a request of its own
        question_texts = [
            *chain.from_iterable(request.values() for request in line.arguments.values())
        ]
    return " ".join(map(str, question_texts))


class _PromptText(NamedTuple):
    """The text of a line's prompt.

    Attributes:
        recorded_text: The prompt's text; empty where chat messages were sent, because only the
            server knows what its template made of them.
        sent_text: The same text, or that of all messages.
        is_answered: Whether the model answered the prompt. Otherwise given continuations of it
            were scored.
        reasoning_start: The start of reasoning that ends the messages, to which the completion is
            added; empty where they end otherwise.
    """

    recorded_text: str
    sent_text: str
    is_answered: bool
    reasoning_start: str = ""


def _read_prompt_text(location: str, line: LogLine) -> _PromptText:
    """The text of a line's prompt.

    Raises:
        RunError: the line has no prompt.
    """
    request = line.arguments.get("gen_args_0", {})
    # `arg_0` is the context; `arg_1` has generation's settings, or the continuation that is scored
    context = request.get("arg_0")
    is_answered = isinstance(request.get("arg_1"), dict)
    if isinstance(context, str):
        return _PromptText(context, context, is_answered)
    if not isinstance(context, list):
        raise RunError(f"{location}: no prompt text in its `arguments`.")
    # for a chat API, lm-eval writes all messages as one JSON text in a list
    if context and isinstance(context[0], str):
        context = _decode_messages(context[0])
    # If the last message is the assistant's, its text begins the completion. If it is another's,
    # `read_completions` returns an empty text, since it reads only what the assistant wrote.
    *_, completion_start = read_completions(context[-1:], location)
    sent_text = "\n".join(_read_content({"content": ""} | message) for message in context)
    reasoning_start, _ = find_open_reasoning(completion_start)
    return _PromptText("", sent_text, is_answered, reasoning_start)


def _pair_samples_and_scores(
    location: str,
    line: LogLine,
    problem_id: str,
    grades: Sequence[JsonObject],
    completions: Sequence[str],
) -> tuple[GradedSample, ...]:
    """The samples of a line with their scores, of which a grade has the fields.

    A task that scores continuations has no completions and answers. The shorter lists are filled up
    with None.
    """
    answers = read_completions(line.filtered_resps, location) if completions else []
    graded_completions: Iterator[Any] = zip_longest(grades, completions, answers)
    graded_samples = []
    for index, (grade, completion, answer) in enumerate(graded_completions):
        sample = Sample(
            key=f"{location}, {index}",
            task=location,
            problem_id=problem_id,
            sample_index=index,
            prompt_token_sha256=None,
            completion=completion,
            completion_tokens=None,
        )
        grade_fields = {"verdict": None, "answer": answer} | (grade or {})
        graded_samples.append((sample, Score(key=sample.key, **grade_fields)))
    return tuple(graded_samples)


def _split_text(prompt_text: str, doc: JsonObject, filler: str) -> list[tuple[str, str]]:
    """The texts that a prompt of another task consists of, each with its role.

    The problem is searched after the filler. If the filler ends the prompt, it is searched before.
    """
    if not filler:
        return _split_around_problem(prompt_text, doc)
    # at its last occurrence, because examples may contain the filler too
    before_filler, _, after_filler = prompt_text.rpartition(filler)
    # the blanks around a filler count as separators, unless the filler is blank itself
    filler_core = filler.strip() or filler
    filler_roles_and_texts = zip(
        ("separator", "filler", "separator"), filler.partition(filler_core), strict=True
    )
    if after_filler.strip():
        return [
            ("instruction", before_filler),
            *filler_roles_and_texts,
            *_split_around_problem(after_filler, doc),
        ]
    return [
        *_split_around_problem(before_filler, doc),
        *filler_roles_and_texts,
        ("separator", after_filler),
    ]


def _split_around_problem(text: str, doc: JsonObject) -> list[tuple[str, str]]:
    """The text before a problem, the problem, and the text after it, each with its role.

    The problem is the longest text of the document that occurs in `text`; without any it is the
    full `text`. All text before it, such as a chat template's opening and worked examples, counts
    as instruction, and all text after it as separator.
    """
    if not text:
        return []  # of a prompt that is nothing but a filler
    field_texts = [value.strip() for value in doc.values() if isinstance(value, str)]
    matching_texts = [field_text for field_text in field_texts if field_text and field_text in text]
    # of equally long fields the last one, as a question usually follows its context
    problem_text = max(reversed(matching_texts), key=len, default=text)
    return [
        *zip(("instruction", "problem", "separator"), text.rpartition(problem_text), strict=True)
    ]


def read_completions(nested_texts: Any, location: str) -> list[str]:
    """The completions in nested lists: lm-eval nests by request, then by repeat.

    A list of chat messages, perhaps as JSON text, is one completion: what the assistant wrote. An
    empty list is an empty completion, because a sample that failed must not disappear.

    Args:
        nested_texts: The lists, or a single text or message.
        location: Their file and line, for messages.

    Raises:
        RunError: an object is not a message.
    """
    nested_texts = _decode_messages(nested_texts)
    if nested_texts in (None, []):
        return [""]
    if isinstance(nested_texts, dict):
        nested_texts = [nested_texts]
    if not isinstance(nested_texts, list):
        return [str(nested_texts)]
    if not isinstance(nested_texts[0], dict):
        return [
            completion
            for element in nested_texts
            for completion in read_completions(element, location)
        ]
    try:
        contents = [
            _read_content(message)
            for message in nested_texts
            # Gemini's name of the assistant is `model`
            if message.get("role", "model") in ("assistant", "model")
        ]
        return ["\n\n".join(contents)]
    except (AttributeError, KeyError, TypeError):
        raise RunError(
            f"{location}: expected a text, or messages with `role` and `content`, got "
            f"{nested_texts!r:.80}."
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
