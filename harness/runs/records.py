"""The records of a run, each declared once: prompts, samples, scores, sessions, identity, receipt.

A declaration validates and serialises. Fields that it does not name may hold anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any, Self, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from harness.constants import JsonObject
from harness.errors import EngineError, RunError
from harness.experiment.fewshot_examples import ExampleIds
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Plan, Request, hash_json
from harness.experiment.problems import Problem, fold_text
from harness.experiment.prompts.built_prompts import BuiltPrompt
from harness.experiment.prompts.checked_prompts import ConditionPrompts
from harness.experiment.prompts.prompt import Prompt, Segment, make_document, read_document_prompt
from harness.grading import Grade
from harness.grading.answer_grading import GRADER_VERSION
from harness.reasoning_markers import Markers, family_markers, find_open_reasoning

RUN_FORMAT = 1
"""Goes up when the format of a run folder changes. Readers accept this format only."""

Record = TypeVar("Record")

SESSION_PREFIX, TIMING_PREFIX = "session ", "timing "
NOTE_KEY_PREFIXES = (SESSION_PREFIX, TIMING_PREFIX)
"""Prefixes of the keys of notes: the journal's records of who wrote it and how long that took."""
NOTE_LINE_PREFIXES = tuple(f'{{"key":"{prefix}'.encode() for prefix in NOTE_KEY_PREFIXES)
"""Prefixes of the lines of notes."""


class KeyedRecord(Struct):
    """A record of a journal: all have a key, which is unique in their journal."""

    key: str


class Document(Struct):
    """A problem under a condition, as `prompt.make_document` makes it: the fields that are read."""

    id: str
    problem: str
    answer: str
    subject: str
    level: int
    condition: str
    system: str
    segments: list[Segment]
    cluster: str = ""


_LETTER_AND_SIGN_PATTERN = re.compile(r"(?=.*[^\W\d_]).*[^\w ]", re.DOTALL)
"""Matches a text with a letter and a sign or line break, such as `Q: `."""


class StoredPrompt(Struct, omit_defaults=True):
    """A stored prompt: a line of `prompts.jsonl`, or the content of a line of lm-eval's logs.

    Attributes:
        task: lm-eval's name of the task; for a log its file and line.
        condition, layout: Their names.
        prompt: The text; empty where only a server knew it.
        prompt_sha256: Hash of the text.
        prompt_token_sha256: Hash of its token ids; None where only a server knew them.
        doc: The document that lm-eval gets: a `Document`, or that of another task.
        answer_prefix: The beginning of the answer at the prompt's end, which the model continues.
        thinking: The model's markers of reasoning; see `Plan`.
        read: Where the answer is read: `box` or `line`.
        draw: The number of its draw of examples, from 1; 0 if there is a single draw.
        other_answers: The answers whose log-probability is measured besides the gold answer's.
        sample: The number of the only sample with this prompt; see `PromptSettings`.
        intervention: The changes of the model while it answers; None for nothing.
    """

    task: str
    condition: str
    layout: str
    prompt: str
    prompt_sha256: str
    prompt_token_sha256: str | None
    doc: JsonObject
    answer_prefix: str = ""
    thinking: Markers = ()
    read: str = "box"
    draw: int = 0
    other_answers: tuple[str, ...] = ()
    sample: int = 0
    intervention: list[JsonObject] | None = None

    @classmethod
    def of(
        cls,
        task: str,
        condition_prompts: ConditionPrompts,
        problem: Problem,
        built_prompt: BuiltPrompt,
        *,
        answer_form: str = "box",
        markers: Markers = (),
    ) -> Self:
        """The stored form of a built prompt of a condition."""
        return cls(
            task=task,
            condition=condition_prompts.condition.name,
            layout=str(condition_prompts.layout),
            prompt=built_prompt.text,
            prompt_sha256=built_prompt.prompt_sha256,
            prompt_token_sha256=built_prompt.prompt_token_sha256,
            doc=make_document(
                problem,
                built_prompt.requested_prompt,
                condition_prompts.condition,
                condition_prompts.layout,
            ),
            answer_prefix=built_prompt.answer_prefix,
            thinking=markers,
            read=answer_form,
            draw=condition_prompts.draw,
            other_answers=built_prompt.other_answers,
            sample=condition_prompts.sample_number,
            intervention=built_prompt.intervention,
        )

    @property
    def problem_id(self) -> str:
        """The problem's id, with its sample or draw of examples (`ID#2`) if these have prompts."""
        number_in_id = self.sample or self.draw
        return f"{self.doc['id']}#{number_in_id}" if number_in_id else str(self.doc["id"])

    def cut_next_question(self, completion: str) -> str:
        """The completion up to the first question that the model itself adds in the run's format.

        The question begins with the first line that begins with the format's label of a question,
        such as `Q: `, and is outside reasoning, where the label is a quotation. Nothing is cut if
        the label has only words or only signs, because any line of a solution may begin with it.
        """
        question_label = self._find_question_label()
        if not _LETTER_AND_SIGN_PATTERN.match(question_label) or question_label not in completion:
            return completion
        reasoning_pattern = "|".join(
            rf"{re.escape(start_marker)}.*?(?:{re.escape(end_marker)}|\Z)"
            for start_marker, end_marker in self.thinking or family_markers()
            # a marker that is a plain word, such as `analysis`, occurs in ordinary text too
            if not start_marker.isalpha()
        )
        # Whether the completion begins a line, and whether it begins in reasoning, follows from the
        # prompt. So the prompt's start of reasoning and its last character are put before the
        # completion, and are cut off again at the end.
        reasoning_start, _ = find_open_reasoning(self.prompt, self.thinking)
        prompt_end = reasoning_start + (self.prompt or "\n")[-1:]
        question_pattern = rf"\n[ \t]*{re.escape(question_label)}.*"
        # The first alternative matches reasoning, which is put back as `\1`. The second one matches
        # a question outside reasoning and all text after it; then `\1` is empty, so it is removed.
        remaining_text = re.sub(
            rf"(?s)({reasoning_pattern})|{question_pattern}", r"\1", prompt_end + completion
        )
        return remaining_text[len(prompt_end) :]

    def _find_question_label(self) -> str:
        """The format's text directly before the problem; empty if it is another role's text.

        A filler and blank texts are passed over, so the label is the same with and without filler.
        """
        segments = self.doc.get("segments") or ()
        segments_before_problem = [
            *takewhile(lambda segment: segment["role"] != "problem", segments)
        ]
        for segment in reversed(segments_before_problem):
            text = str(segment["text"]).lstrip()
            if text and segment["role"] != "filler":
                return text if segment["role"] == "format" else ""
        return ""

    @property
    def question(self) -> str:
        """The text by which copies of a problem are found.

        It is the problem as the baseline shows it. In the log of another task it is the text that
        `sample_log` reads as `question_of_log`, because such a document need not have a `problem`.
        """
        # the document has `shown` only where prompts show more or less than the dataset's problem
        texts = (self.doc.get(field) for field in ("question_of_log", "shown", "problem"))
        return fold_text(next(filter(None, texts)))

    @property
    def golds(self) -> list[str]:
        """The accepted answers."""
        return [self.doc["answer"], *(self.doc.get("alternatives") or ())]

    @property
    def cluster(self) -> str:
        """See `Problem.cluster_key`."""
        return self.doc.get("cluster") or self.question

    @property
    def requested_prompt(self) -> Prompt:
        """Its segments and turns without the answer prefix; no segment if the document has none."""
        return read_document_prompt(self.doc)


def stored_prompts(plan: Plan) -> list[StoredPrompt]:
    """The stored form of every prompt of a plan, by problem and then by task."""
    # a `PlanRow` has the arguments of `of`: task name, condition's prompts, problem, built prompt
    return [
        StoredPrompt.of(*plan_row, answer_form=plan.config.answer, markers=plan.reasoning_markers)
        for plan_row in plan.rows
    ]


TokenScores = list[tuple[float, int]]
"""The log-probability of each token of an answer, in nats, and its rank."""


def _sum_logprobs(token_scores: TokenScores) -> float:
    """The log-probability of an answer."""
    return sum(logprob for logprob, _ in token_scores)


class AnswerScore(Struct, gc=False):
    """The scores of a gold answer and of the other answers after a prompt.

    Attributes:
        tokens: Those of the gold answer with its end, or of the likeliest accepted answer.
        others: The log-probability of each other answer, in nats.

    Raises:
        EngineError: a log-probability is infinite or NaN, which JSON cannot hold.
    """

    tokens: TokenScores
    others: list[float]

    def __post_init__(self) -> None:
        for logprob in (self.logprob, *self.others):
            if not math.isfinite(logprob):
                raise EngineError(
                    f"The log-probability of an answer is {logprob}, expected a finite number. "
                    "Try dtype=float32."
                )

    @staticmethod
    def of(scores_of_answers: Sequence[TokenScores], other_answer_count: int) -> AnswerScore:
        """The score of a problem of several accepted answers, of which the likeliest counts.

        `scores_of_answers` has the accepted answers first, and then `other_answer_count` others.
        """
        return AnswerScore(
            tokens=max(scores_of_answers[:-other_answer_count], key=_sum_logprobs),
            others=[*map(_sum_logprobs, scores_of_answers[-other_answer_count:])],
        )

    @property
    def logprob(self) -> float:
        """The log-probability of the gold answer."""
        return _sum_logprobs(self.tokens)

    @property
    def gold_is_likeliest(self) -> bool:
        """Whether the gold answer is strictly likelier than every other answer."""
        return self.logprob > max(self.others)

    @property
    def log_share(self) -> float:
        """The logarithm of the gold answer's share of the probability of all, in nats."""
        return self.logprob - float(np.logaddexp.reduce([self.logprob, *self.others]))


# A run has up to a million samples. They never form cycles, so the garbage collector skips them.
class Sample(KeyedRecord, kw_only=True, gc=False):
    """A finished completion: a line of `journal.jsonl`.

    Attributes:
        key: See `plan.sample_key`.
        task, problem_id, sample_index, replicate, seed, prompt_token_sha256: The request's.
        prompt_tokens: Length of the prompt; None where the model's tokenizer is not known.
        completion: What the model wrote.
        completion_tokens: Tokens generated; None where the backend does not report it.
        finish_reason: As the backend reports it; see `finish_reasons.read_reason`.
        server_tokens: Tokens of the prompt by the server's count.
        answer_score: If the endpoint is `answer_logprob`.
    """

    task: str
    problem_id: str
    sample_index: int
    replicate: int = 0
    seed: int | None = None
    prompt_token_sha256: str | None
    prompt_tokens: int | None = None
    completion: str
    completion_tokens: int | None
    finish_reason: str | None = None
    server_tokens: int | None = None
    answer_score: AnswerScore | None = None

    @property
    def added_tokens(self) -> int | None:
        """A server's count of prompt tokens less those that were sent; None if one is unknown."""
        if self.prompt_tokens is None or self.server_tokens is None:
            return None
        return self.server_tokens - self.prompt_tokens

    @staticmethod
    def of(
        request: Request,
        key: str,
        completion: str,
        *,
        completion_tokens: int | None = None,
        finish_reason: str | None = None,
        server_tokens: int | None = None,
    ) -> Sample:
        """The sample that a completion makes of a request."""
        prompt_token_ids = request.prompt_token_ids
        return Sample(
            key=key,
            task=request.task,
            problem_id=request.problem_id,
            sample_index=request.sample_index,
            replicate=request.replicate,
            seed=request.seed,
            prompt_token_sha256=request.prompt_token_sha256,
            prompt_tokens=None if prompt_token_ids is None else len(prompt_token_ids),
            # JSON in UTF-8 cannot hold half a surrogate pair, so it is spelt out (`\ud800`)
            completion=completion.encode("utf-8", "backslashreplace").decode(),
            completion_tokens=completion_tokens,
            finish_reason=finish_reason,
            server_tokens=server_tokens,
        )


class Score(Grade, frozen=True, kw_only=True, gc=False):
    """A line of `scores.jsonl`: a grade under the sample's key."""

    key: str


GradedSample = tuple[Sample, Score]
"""A sample with its score."""


class Task(Struct):
    """A condition in a layout and draw of examples, as one task.

    Attributes:
        condition, layout: Their names.
        samples: Number of samples of each problem.
        replicates: How often each sample is generated: more than once in repeat runs (A/A).
        sampling: The parameters in force, and which of them are from the model's generation_config.
        intervention: What is done to the model while it generates; None for nothing.
    """

    condition: str
    layout: str
    samples: Annotated[int, Meta(ge=1)]
    replicates: Annotated[int, Meta(ge=1)]
    sampling: Sampling
    intervention: list[JsonObject] | None = None


class Fingerprint(Struct, omit_defaults=True):
    """A model: the hash of every file of its folder, or the commit of its name on the hub."""

    name: str
    sha256: dict[str, str] | None = None
    revision: str | None = None


class Engine(Struct):
    """The backend that generated; see `run_execution.engine_identity`."""

    name: str
    version: str | None
    device: str | None


class DatasetFacts(Struct):
    """The dataset of the problems."""

    name: str
    problems: int
    sha256: str


Contrast = tuple[str, str]
"""A condition and the condition that it is compared with."""
RunFormat = Annotated[int, Meta(ge=RUN_FORMAT, le=RUN_FORMAT)]
"""The only format that this mless reads."""


class Identity(Struct, kw_only=True):
    """A journal's first line: all that must be the same for a run to be continued.

    Attributes:
        format: `RUN_FORMAT`.
        config: The keys of the run config that can change a sample; see `RunConfig.identity`.
        limit: The number of problems, from the dataset's first; None for all.
        dataset: The full dataset.
        prompt_version: `PROMPT_VERSION` of the prompts.
        prompts_sha256: Hash of all prompts.
        contrasts: The comparisons that were named before the run.
        primary: The primary contrast.
        tasks: By name. In the file, this field is called `arms`.
        examples: The ids of the examples; None if there are none.
        looks: The number of times that each contrast is tested: once, and again whenever a finished
            run gets more problems or samples.
        model, engine: The model and the backend that generate.
    """

    format: RunFormat
    config: JsonObject
    limit: int | None
    dataset: DatasetFacts
    prompt_version: int
    prompts_sha256: str
    contrasts: list[Contrast]
    primary: Contrast | None
    tasks: Annotated[dict[str, Task], Meta(min_length=1)] = msgspec.field(name="arms")
    examples: ExampleIds | None = None
    looks: int = 1
    model: Fingerprint
    engine: Engine

    def hash_setting(self) -> str:
        """Hash of everything that the keys of all samples share."""
        return hash_json(
            {
                "prompts": self.prompt_version,
                # a model's folder is known by the hashes of its files, so it may be renamed
                "model": self.model.sha256 or msgspec.to_builtins(self.model),
                "arguments": self.config["model"]["model_args"],
                "engine": msgspec.to_builtins(self.engine),
            }
        )


class StoredModelConfig(Struct):
    """The keys of a run config's model that are read."""

    backend: str
    model_args: JsonObject
    label: str | None


class StoredConfig(Struct):
    """The keys of a run config that are read."""

    name: str
    seed: int
    model: StoredModelConfig
    conditions: list[Any]


class SessionNote(KeyedRecord):
    """The keys of a session's note in the journal that are read."""

    config: StoredConfig


class Receipt(Struct):
    """The keys of `run.json` that are read."""

    format: RunFormat
    created: str
    config: StoredConfig
    model: Fingerprint
    engine: Engine
    dataset: DatasetFacts
    problems: int
    prompt_version: int
    task_version: float
    grader_version: int
    prompts_sha256: str
    versions: JsonObject
    git_revision: str | None


class ScoreVersions(Struct, kw_only=True):
    """The first line of `scores.jsonl`: what made the scores.

    Attributes:
        format: `RUN_FORMAT`.
        grader_version: The grader's version.
        task_version: The version of the lm-eval tasks, which goes up with their prompts and with
            the grader.
    """

    format: RunFormat = RUN_FORMAT
    grader_version: int = GRADER_VERSION
    task_version: float


def as_json(record: Struct) -> JsonObject:
    """A record as it is read back from its file."""
    return msgspec.json.decode(msgspec.json.encode(record), type=JsonObject)


def as_record(record_type: type[Record], json_value: object, location: object) -> Record:
    """A JSON value as a record.

    Raises:
        RunError: it does not fit; the message names its location (file or line) and the first wrong
            field.
    """
    try:
        return msgspec.convert(json_value, record_type)
    except msgspec.ValidationError as error:
        raise RunError(f"{location}: {error}.") from None
