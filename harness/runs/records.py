"""What is kept of a run: prompts, samples, scores, sessions, identity and receipt, each declared once.

A declaration validates, serialises and names the columns of `harness.load_run`. What a declaration does not name may be
anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from harness.errors import RunError
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Plan, Request, hash_setting
from harness.experiment.problems import Problem
from harness.experiment.prompt import Prompt as RequestedPrompt
from harness.experiment.prompt import document_prompt, make_document
from harness.experiment.token_checks import BuiltPrompt, ConditionPrompts
from harness.grading import AuditColumns, Verdict, column
from harness.grading.same_answer import GRADER_VERSION

RUN_FORMAT = 1
"""Goes up when a run folder is written in another way. No reader knows a second one."""

Form = TypeVar("Form")

SESSION, TIMING = "session ", "timing "
"""How keys of notes begin: the journal's records on who wrote it and how long that took, beside the samples."""
NOTES = tuple(
    f'{{"key":{blank}"{name}'.encode() for name in (SESSION, TIMING) for blank in ("", " ")
)
"""How their lines begin."""


class Keyed(Struct):
    """A record of a journal, as far as every one of them goes."""

    key: str


class Segment(Struct):
    """A part of a prompt."""

    role: str
    text: str


class Document(Struct):
    """A problem under one condition, as `prompt.make_document` makes it."""

    id: Annotated[str, column("the problem's id in its dataset")]
    problem: str
    answer: Annotated[str, column("the gold answer")]
    subject: Annotated[str, column("the problem's subject")]
    level: Annotated[int, column("the problem's level")]
    condition: str
    system: str
    segments: list[Segment]
    cluster: Annotated[
        str, column("what the problem counts as one with; there only if problems have clusters")
    ] = ""


def prompt_id(problem_id: str, draw: int) -> str:
    """The id of a problem that is asked with several draws of examples: `ID#2` with the second."""
    return f"{problem_id}#{draw}" if draw else problem_id


class Prompt(Struct, omit_defaults=True):
    """A prompt as it is stored: a line of `prompts.jsonl`, or what is read of a line of lm-eval's logs.

    Attributes:
        task: lm-eval's name of the task; of a log its file and line.
        prompt: The text; empty where only a server knew it.
        doc: What lm-eval gets of the problem: a `Document`, or that of another task.
        answer_prefix: The answer's beginning, where the prompt ends in one that the model continues.
        thinking_opened: Whether the prompt ends in an opened think block, as some chat templates do.
        read: Where the answer is read: `box` or `line`.
    """

    task: str
    condition: Annotated[str, column("what stands between instruction and problem", "category")]
    layout: Annotated[
        str,
        column(
            "how instruction, filler and problem make a prompt: raw, chat or as_published",
            "category",
        ),
    ]
    prompt: str
    prompt_sha256: Annotated[str, column("hash of the prompt's text")]
    prompt_token_sha256: Annotated[
        str | None, column("hash of the prompt's token ids; missing where they were not known")
    ]
    doc: dict[str, Any]
    answer_prefix: str = ""
    thinking_opened: bool = False
    read: str = "box"
    draw: Annotated[
        int, column("which draw of examples, from 1; no column where there is one at most")
    ] = 0

    @staticmethod
    def of(
        task: str, arm: ConditionPrompts, problem: Problem, built: BuiltPrompt, read: str = "box"
    ) -> Prompt:
        """A built prompt of a condition as it is stored."""
        return Prompt(
            task=task,
            condition=arm.condition.name,
            layout=str(arm.layout),
            prompt=built.text,
            prompt_sha256=built.prompt_sha256,
            prompt_token_sha256=built.prompt_token_sha256,
            doc=make_document(problem, built.prompt, arm.condition, arm.layout),
            answer_prefix=built.answer_prefix,
            thinking_opened=built.text.rstrip().endswith("<think>"),
            read=read,
            draw=arm.draw,
        )

    @property
    def problem_id(self) -> str:
        """The problem's id; with the draw of examples (`ID#2`) where there are several."""
        return prompt_id(self.doc["id"], self.draw)

    @property
    def requested(self) -> RequestedPrompt:
        """Its segments and turns, without the answer's beginning; no segment where the document names none."""
        return document_prompt(self.doc)


def stored_prompts(plan: Plan) -> list[Prompt]:
    """Every prompt of a plan as it is stored: problems outside, arms inside."""
    return [Prompt.of(*row, read=plan.config.answer) for row in plan.rows]


class Sample(Keyed, kw_only=True, gc=False):
    """One finished completion: a line of `journal.jsonl`.

    Attributes:
        key: See `plan.sample_key`.
        task, problem_id, sample_index, replicate, seed, prompt_token_sha256: The request's.
        prompt_tokens: Length of the prompt; None where the model's tokenizer is not known.
        completion: What the model wrote.
        completion_tokens: Tokens generated; None where the backend does not say.
        finish_reason: vLLM's: `stop`, `length` or `abort`; None where the backend does not say.
    """

    task: str
    problem_id: str
    sample_index: Annotated[int, column("which of the problem's samples, from 0")]
    replicate: Annotated[
        int,
        column("which run of the condition, from 0; 1 is the second of a primary contrast's side"),
    ] = 0
    seed: Annotated[int | None, column("the sample's seed; missing when greedy", "int64")] = None
    prompt_token_sha256: str | None
    prompt_tokens: Annotated[int | None, column("tokens of the prompt")] = None
    completion: Annotated[str, column("what the model wrote")]
    completion_tokens: Annotated[int | None, column("tokens of the completion")]
    finish_reason: Annotated[
        str | None, column("stop or length; missing where the backend does not say")
    ] = None

    @staticmethod
    def of(
        request: Request,
        key: str,
        completion: str,
        *,
        tokens: int | None = None,
        reason: str | None = None,
        token_ids: Sequence[int] | None = None,
    ) -> Generated:
        """The sample that a completion makes of a request."""
        return Generated(
            key=key,
            task=request.task,
            problem_id=request.problem_id,
            sample_index=request.sample_index,
            replicate=request.replicate,
            seed=request.seed,
            prompt_token_sha256=request.prompt_token_sha256,
            prompt_tokens=None
            if request.prompt_token_ids is None
            else len(request.prompt_token_ids),
            # half a surrogate pair, which is no text, is spelt out (`\ud800`)
            completion=completion.encode("utf-8", "backslashreplace").decode(),
            completion_tokens=tokens,
            finish_reason=reason,
            token_ids=token_ids,
        )


class Generated(Sample, kw_only=True, gc=False):
    """A sample as the journal has it. Most readers read it as a `Sample`, which spares them the ids.

    Attributes:
        token_ids: Of the completion, with the token that ended it; None where the backend does not say.
    """

    token_ids: Sequence[int] | None = None


class Graded(AuditColumns, frozen=True, kw_only=True):
    """A grade with its audit, as our tasks write it into sample logs."""

    verdict: Annotated[
        Verdict, column("correct, incorrect, no_box, truncated, refused, timeout or crashed")
    ]
    answer: Annotated[
        str | None, column("what the last closed box holds, or the first line; missing without one")
    ]
    reason: Annotated[str | None, column("why a sample was refused")] = None
    audit_reason: Annotated[str | None, column("why an audit grader gave no verdict")] = None


class Score(Graded, frozen=True, kw_only=True, gc=False):
    """A line of `scores.jsonl`: a grade with its audit, by the sample's key."""

    key: str

    def graded(self) -> dict[str, Any]:
        """Without the key, as a record of `harness.grading.as_record`."""
        return {
            name: getattr(self, name) for name in SAMPLE_COLUMNS if name in Score.__struct_fields__
        }


class Arm(Struct, kw_only=True):
    """One condition in one layout and draw of examples, a task for lm-eval: what all its samples have in common.

    Attributes:
        condition, layout: Which.
        samples: Samples of each problem.
        replicates: How often these are generated.
        sampling: The parameters in force, and what the model's generation_config had to do with them.
        intervention: What is done to the model while it generates; None for nothing.
    """

    condition: str
    layout: str
    samples: Annotated[int, Meta(ge=1)]
    replicates: Annotated[int, Meta(ge=1)]
    sampling: Sampling
    intervention: dict[str, Any] | None = None


class Named(Struct):
    """Something that is known by its name."""

    name: str


class Fingerprint(Named, omit_defaults=True):
    """A model: the hash of every file of its folder, or the commit of its name on the hub."""

    sha256: dict[str, str] | None = None
    revision: str | None = None


class Engine(Named):
    """What generated."""

    version: str | None
    device: str | None


class DatasetFacts(Named):
    """Where the problems are from."""

    problems: int
    sha256: str


Contrast = tuple[str, str]
"""A condition and the one that it is compared with."""
Format = Annotated[int, Meta(ge=RUN_FORMAT, le=RUN_FORMAT)]
"""The only format that this mless reads."""


class Identity(Struct, kw_only=True):
    """A journal's first line: all that must be the same for a run to be continued.

    Attributes:
        format: `RUN_FORMAT`.
        config: What of the run config can change a sample; see `RunConfig.identity`.
        limit: Only the dataset's first so many problems are asked; None for all.
        dataset: All its problems.
        prompt_version: `PROMPT_VERSION` of the prompts.
        prompts_sha256: Hash of all prompts.
        contrasts: The comparisons that were named before the run.
        primary: The one that the run is about.
        arms: By task.
        model, engine: What generates.
    """

    format: Format
    config: dict[str, Any]
    limit: int | None
    dataset: DatasetFacts
    prompt_version: int
    prompts_sha256: str
    contrasts: list[Contrast]
    primary: Contrast | None
    arms: Annotated[dict[str, Arm], Meta(min_length=1)]
    model: Fingerprint
    engine: Engine

    def hash_setting(self) -> str:
        """Hash of what the keys of all samples share."""
        return hash_setting(
            prompt_version=self.prompt_version,
            model=msgspec.to_builtins(self.model),
            arguments=self.config["model"]["model_args"],
            engine=msgspec.to_builtins(self.engine),
        )


class ModelSettings(Struct):
    """A run config's model, as far as it is read."""

    backend: str
    model_args: dict[str, Any]
    label: str | None


class Settings(Struct):
    """A run config, as far as it is read."""

    name: str
    seed: int
    model: ModelSettings
    conditions: list[Any]


class SessionNote(Keyed):
    """What is read of a session's note in the journal, which holds more."""

    config: Settings


class Receipt(Struct):
    """What is read of `run.json`, which holds more."""

    format: Format
    run: str
    created: str
    config: Settings
    model: Fingerprint
    engine: Engine
    dataset: DatasetFacts
    problems: int
    prompt_version: int
    task_version: float
    grader_version: int
    prompts_sha256: str
    seed: int
    versions: dict[str, Any]
    git_revision: str | None
    tasks: list[Any]


class ScoredBy(Struct, kw_only=True):
    """The first line of `scores.jsonl`: what made the scores.

    Attributes:
        format: `RUN_FORMAT`.
        grader_version: The grader's version.
        task_version: The version of the lm-eval tasks, which goes up with their prompts and with the grader.
    """

    format: Format = RUN_FORMAT
    grader_version: int = GRADER_VERSION
    task_version: float


def _columns(form: type[Struct], *names: str, **renamed: str) -> dict[str, tuple[str, str]]:
    """Type and meaning of fields of a form; `renamed` maps a column to the field that it is."""
    hints = get_type_hints(form, include_extras=True)
    found = {}
    for place, name in {**{name: name for name in names}, **renamed}.items():
        of, meta = get_args(hints[name])
        kind = next((_KINDS[part] for part in (of, *get_args(of)) if part in _KINDS), "string")
        found[place] = (meta.extra["kind"] or kind, meta.description)
    return found


_KINDS = {int: "int32", bool: "bool"}
SAMPLE_COLUMNS: dict[str, tuple[str, str]] = {
    "model": ("string", "the model's label"),
    **_columns(Prompt, "condition", "layout"),
    "filler": (
        "string",
        "what is inserted: the repeated text, or the kind of filler; missing without one",
    ),
    "filler_tokens": ("int32", "its stated number of tokens; missing where none is stated"),
    "placement": ("string", "where it stands; missing without one"),
    "words": (
        "string",
        "the condition's own instruction, cue or answer prefix; empty if it has none",
    ),
    **_columns(Document, problem_id="id"),
    **_columns(Sample, "sample_index", "replicate"),
    **_columns(Prompt, "draw"),
    **_columns(Document, "subject", "level", "cluster"),
    **_columns(Graded, "verdict"),
    "correct": ("bool", "whether the verdict is correct"),
    **_columns(Graded, "answer"),
    **_columns(Document, target="answer"),
    **_columns(Sample, "completion", "finish_reason", "seed"),
    **_columns(Prompt, "prompt_sha256", "prompt_token_sha256"),
    **_columns(Sample, "prompt_tokens", "completion_tokens"),
    **_columns(Graded, "reason"),
    **_columns(AuditColumns, *AuditColumns.__struct_fields__),
    **_columns(Graded, "audit_reason"),
}
"""Type and meaning of each column of `harness.load_run`, in their order."""


def as_json(record: Struct) -> dict[str, Any]:
    """A record as it is read back from its file."""
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return read


def fit(form: type[Form], value: object, where: object) -> Form:
    """A value as JSON has it, in its form.

    Raises:
        RunError: it does not fit; naming its file or line, and the first field that is wrong.
    """
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise RunError(f"{where}: {error}.") from None
