"""What files that are read back must hold, at least; whatever does not fit is refused by name, never guessed at."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import RunError
from harness.grading import Verdict

LAST_SECOND = 253_402_300_799
"""Of the year 9999: later dates have no name."""


def _printable(value: Value) -> Value:
    """The value, if JSON and UTF-8 can hold it: neither NaN nor half a surrogate pair is in it."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


Value = TypeVar("Value")
Form = TypeVar("Form", bound=BaseModel)
Word = Annotated[str, AfterValidator(_printable)]
Words = Annotated[dict[str, Any], AfterValidator(_printable)]


class _Form(BaseModel):
    """Values are taken as they are, and what a form does not name may be anything."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class ModelForm(_Form):
    """A config's `model`."""

    label: str | None
    backend: str
    arguments: dict[str, Any]


class ConfigForm(_Form):
    """A run config, all defaults spelled out."""

    name: str
    model: ModelForm
    samples_per_problem: int = Field(ge=1)
    replicates: int = Field(default=1, ge=1)
    primary: str | None = None


class NameForm(_Form):
    """A model's fingerprint."""

    name: str


class EngineForm(NameForm):
    """What generated."""

    version: str | None
    device: str | None


class DatasetForm(NameForm):
    """Where the problems are from."""

    sha256: str


class GenerationForm(_Form):
    """Sampling, as lm-eval's arguments."""

    do_sample: bool


class TaskForm(_Form):
    """lm-eval's files of one task."""

    samples: str


class ContrastForm(_Form):
    """What a run registered before it began; runs made before there was a family have none."""

    primary: Word | None = None
    family: list[Word] | None = None


class IdentityForm(_Form):
    """A journal's first line, as far as tables read it."""

    config: ContrastForm = ContrastForm()


class ReceiptForm(_Form):
    """`run.json`."""

    run: str
    created: str
    config: ConfigForm
    limit: int | None = None
    model: NameForm
    engine: EngineForm
    dataset: DatasetForm
    generation: GenerationForm
    problems: int
    prompts_sha256: str
    files: dict[str, str]
    task_version: float
    grader_version: int
    seed: int
    tasks: list[TaskForm] = Field(min_length=1)
    versions: dict[str, str | None]
    git_revision: str | None

    @model_validator(mode="before")
    @classmethod
    def _printed(cls, value: object) -> object:
        """Tables print it whole."""
        return _printable(value)


class SegmentForm(_Form):
    """A part of a prompt."""

    role: str
    text: str


class DocumentForm(_Form):
    """What our tasks add to a problem."""

    condition: Word
    system: str
    segments: list[SegmentForm]

    @model_validator(mode="after")
    def _begins_with_the_system_turn(self) -> Self:
        if not "".join(segment.text for segment in self.segments).startswith(self.system):
            raise ValueError("system is not what the first segments say")
        return self


class ProblemDocumentForm(DocumentForm):
    """A document of our tasks."""

    id: Word
    problem: str
    answer: Word
    subject: Word
    level: int


class PromptForm(_Form):
    """A line of `prompts.jsonl`."""

    task: Word
    condition: Word
    layout: Word
    prompt: str
    prompt_sha256: str
    prompt_token_sha256: str | None
    doc: ProblemDocumentForm


class SampleForm(_Form):
    """A sample's line of `journal.jsonl`."""

    task: Word
    problem_id: Word
    sample_index: int
    replicate: int
    seed: int | None
    prompt_token_sha256: str | None
    prompt_tokens: int | None
    completion: str
    completion_tokens: int | None
    finish_reason: str | None


class GradeForm(_Form):
    """A grade with its audit: a line of `scores.jsonl`, or what our tasks write into sample logs."""

    verdict: Verdict
    answer: str | None
    math_verify: bool | None = None
    exact_match: bool | None = None
    exact_match_boxed: bool | None = None
    authors_rule: bool | None = None
    authors_rule_strict: bool | None = None
    first_box: bool | None = None
    boxes_after_first: int | None = None


class GenerationRecordForm(_Form):
    """What our sample logs say of a completion."""

    completion_tokens: int | None = None
    prompt_token_sha256: str | None = None


class LogLineForm(_Form):
    """A line of lm-eval's sample log."""

    doc_id: int | str
    doc: dict[str, Any]
    arguments: Any
    filter: str = "none"
    prompt_hash: str | None = None
    metrics: list[Word] | None = None
    generations: list[GenerationRecordForm] | None = None


class LoadedForm(_Form):
    """What lm-eval was started with."""

    model: Word | None = None
    model_args: Words | Word | None = None
    random_seed: int | None = None


class TaskConfigForm(_Form):
    """How lm-eval asked one task."""

    generation_kwargs: Words | None = None
    num_fewshot: int | None = None


class CountForm(_Form):
    """Documents that a task has, and how many were asked."""

    original: int
    effective: int


class ResultsForm(_Form):
    """lm-eval's results file."""

    model_name: Word | None = None
    config: LoadedForm = LoadedForm()
    configs: dict[str, TaskConfigForm] = {}
    versions: dict[str, float | Word | None] = {}
    n_samples: dict[str, CountForm] = Field(default={}, alias="n-samples")
    chat_template: Any = None
    system_instruction: Word | None = None
    date: float | None = Field(default=None, ge=0, le=LAST_SECOND)
    lm_eval_version: Word | None = None
    git_hash: Word | None = None


def encodable(text: str) -> str:
    """Text with half a surrogate pair, which is no text, spelt out (`\\ud800`)."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def fit(form: type[Form], value: object, where: object, remedy: str) -> Form:
    """The value in its form.

    Args:
        form: Which.
        value: As JSON has it.
        where: The file, or its line, for the message.
        remedy: What to do if it does not fit; a sentence.

    Raises:
        RunError: it does not fit; naming the first place.
    """
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        wrong = (
            "it should be an object" if first["type"] == "model_type" else first["msg"].removeprefix("Value error, ")
        )
        got = "" if first["type"] == "missing" else f", got {_short(first['input'])}"
        raise RunError(f"{where}: {place}: {wrong[0].lower()}{wrong[1:]}{got}. {remedy}") from None


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
