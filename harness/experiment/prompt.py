"""Builds the prompt of a problem under a condition, and the document that lm-eval gets.

A prompt has four forms: requested (`Prompt`), built with its text and tokens
(`built_prompts.BuiltPrompt`), stored (`records.StoredPrompt`) and sent to an engine
(`plan.Request`). A requested prompt is a sequence of segments, each with a role. The joined
segments are the raw text. Split after the system turn and at segments of the role `turn`, they are
the messages of a chat. lm-eval's tasks, the token checks and the probe read the positions of
instruction, filler and problem from the segments, never from the text.
"""

import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import chain, cycle
from typing import Any, Literal

from harness.constants import SEPARATOR
from harness.errors import PromptMismatchError
from harness.experiment.conditions import REFERENCE_FIELDS, Condition, Placement
from harness.experiment.fewshot_examples import Draw
from harness.experiment.problems import Problem
from harness.reasoning_markers import Markers

INSTRUCTION = (
    "You are an expert mathematician. Reason step by step, and put your final answer within "
    "\\boxed{}."
)
"""The system prompt of the sound layouts."""

PLAIN_INSTRUCTION = "Answer the question."
"""The system prompt where the answer is a line."""

AS_PUBLISHED_INSTRUCTION = (
    "Please reason step by step and put your final answer within \\boxed{{}}."
)
"""The authors' string. They use it without `format`, so the model sees the doubled braces."""

Role = Literal["instruction", "separator", "filler", "problem", "demonstration", "format", "turn"]
"""The role of a segment. `format` is the text of an example's format around the question. `turn`
ends a turn of a chat: a chat template replaces it."""


class Layout(StrEnum):
    """How a prompt becomes the model's input.

    `raw` joins all segments into one string. `chat` puts the instruction into the system turn and
    the rest into the user turn; each example is a user turn and an assistant turn before it.
    `as_published` is the string of the authors' code, without separators and without a template.
    """

    RAW = "raw"
    CHAT = "chat"
    AS_PUBLISHED = "as_published"


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of prompt text with one role."""

    role: Role
    text: str


def join_texts(segments: Iterable[Segment]) -> str:
    """The text of consecutive segments."""
    return "".join(segment.text for segment in segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as it is requested, before a template and a tokenizer.

    Attributes:
        segments: The segments in order. The problem has two if a filler splits it.
        system_size: Number of leading segments in the system turn. 0: there is no system turn.
        answer: The beginning of the model's answer, which the model continues.
    """

    segments: tuple[Segment, ...]
    system_size: int
    answer: tuple[Segment, ...] = ()

    @property
    def text(self) -> str:
        """The raw text: all segments joined."""
        return join_texts(self.segments)

    @property
    def system(self) -> str:
        """The text of the system turn."""
        return join_texts(self.segments[: self.system_size])

    @property
    def user(self) -> str:
        """The text of all turns after the system turn."""
        return join_texts(self.segments[self.system_size :])

    @property
    def turns(self) -> list[tuple[Segment, ...]]:
        """The segments of each turn. The first is the system turn, which may be empty."""
        ends = [index for index, segment in enumerate(self.segments) if segment.role == "turn"]
        stops = [self.system_size, *ends, len(self.segments)]
        starts = [0, self.system_size, *(end + 1 for end in ends)]
        return [self.segments[start:stop] for start, stop in zip(starts, stops, strict=True)]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns of a chat, as chat templates take them."""
        roles = chain(["system"], cycle(["user", "assistant"]))
        messages = [
            {"role": role, "content": join_texts(turn)}
            # not strict, because the roles never end
            for role, turn in zip(roles, self.turns, strict=False)
        ]
        return messages if self.system else messages[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """What the prompts of several conditions share.

    Attributes:
        layout: `as_published` has no separators, and the authors' instruction.
        instruction: Replaces the instruction of the layout. The condition's own replaces both.
        draw: The examples before the question.
        has_system_turn: False for chat templates that refuse a system role. The instruction is then
            in the user turn, and the raw text is the same.
        thinking: The markers of the model's reasoning; those of all families if there are none.
        scored: Where the gold answer stands when its log-probability is measured: `box` or `line`.
            None: it is not measured.
        other_answers: Then the other answers that are measured too, by the problem's id.
    """

    layout: Layout = Layout.RAW
    instruction: str | None = None
    draw: Draw | None = None
    has_system_turn: bool = True
    thinking: Markers = ()
    scored: str | None = None
    other_answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def choose_instruction(self, condition: Condition) -> str:
        """The system prompt under a condition."""
        for instruction in (condition.instruction, self.instruction):
            if instruction is not None:
                return instruction
        return AS_PUBLISHED_INSTRUCTION if self.layout is Layout.AS_PUBLISHED else INSTRUCTION

    @property
    def separator(self) -> Segment:
        """The separator between instruction, filler and problem."""
        text = "" if self.layout is Layout.AS_PUBLISHED else SEPARATOR
        return Segment("separator", text)

    @property
    def frame(self) -> tuple[str, str, str]:
        """The text before a problem, between problem and answer, and after the answer."""
        return self.draw.frame if self.draw and self.layout is Layout.RAW else ("", "", "")

    @property
    def examples(self) -> list[list[Segment]]:
        """The segments of each example."""
        before, between, after = self.frame
        is_chat = self.layout is Layout.CHAT
        end = Segment("turn" if is_chat else "separator", SEPARATOR)
        blocks = []
        for example in self.draw.examples if self.draw else ():
            texts = [before + example.problem + between + example.answer + after]
            if is_chat:
                texts = [example.problem, example.answer]
            block = []
            for text in texts:
                block += [Segment("demonstration", text), end]
            blocks.append(block)
        return blocks


@dataclass(slots=True, kw_only=True)
class _Draft:
    """The segments of a prompt before its filler is inserted. Some segments may have no text.

    Attributes:
        system: The system turn: the instruction and a separator.
        blocks: The segments of each example, and of the question: format, problem, format, cue.
        answer: The beginning of the model's answer.
    """

    system: list[Segment]
    blocks: list[list[Segment]]
    answer: list[Segment]


def build_prompt(
    problem: str,
    condition: Condition,
    *,
    filler_text: str,
    key: str = "",
    settings: PromptSettings,
) -> Prompt:
    """Build the prompt for one problem under one condition.

    Args:
        problem: The problem's text, which the prompt contains unchanged.
        condition: The condition with the placement of the filler.
        filler_text: The filler's text, from `tokenizer.fit_filler`; empty without a filler, and for
            a repeated problem.
        key: The problem's id. Together with the condition's seed it draws a random placement.
        settings: The layout, the instruction and the examples.
    """
    separator = settings.separator
    before, between, _ = settings.frame
    question = [
        Segment("format", before),
        Segment("problem", problem),
        # Without the blank at its end, which belongs to the first token of the answer.
        Segment("format", between.rstrip(" ")),
    ]
    if condition.cue:
        question += [separator, Segment("separator", condition.cue)]
    instruction = settings.choose_instruction(condition)
    draft = _Draft(
        system=[Segment("instruction", instruction), separator],
        blocks=[*settings.examples, question],
        answer=[Segment("separator", condition.answer_prefix)],
    )
    if condition.filler is not None:
        if condition.repeat_problem is not None:
            filler_text = separator.text.join([problem] * (condition.repeat_problem - 1))
        filler = [Segment("filler", filler_text)]
        if condition.label:
            filler[:0] = [Segment("separator", condition.label), separator]
        _insert_filler(draft, filler, condition, key, settings)
    system, answer = _drop_empty(draft.system), _drop_empty(draft.answer)
    return Prompt(
        segments=(*system, *_drop_empty(chain.from_iterable(draft.blocks))),
        system_size=len(system) if settings.has_system_turn else 0,
        answer=answer,
    )


def _drop_empty(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    return tuple(segment for segment in segments if segment.text)


def _insert_filler(
    draft: _Draft,
    filler: Sequence[Segment],
    condition: Condition,
    key: str,
    settings: PromptSettings,
) -> None:
    """Insert the filler, and the separators around it, where the condition places it."""
    separator = settings.separator
    insertion = [*filler, separator]
    question = draft.blocks[-1]
    match condition.placement:
        case Placement.BEFORE_SYSTEM:
            draft.system[:0] = insertion
        case Placement.BETWEEN:
            # before the first example, which is the question itself if there are no examples
            draft.blocks[0][:0] = insertion
        case Placement.BEFORE_QUESTION:
            question[:0] = insertion
        case Placement.EACH:
            for block in draft.blocks:
                block[:0] = insertion
        case Placement.END:
            _, between, _ = settings.frame
            # index 2: directly after the problem, because the prompt must end with the format's
            # rest or the cue
            question[2:2] = [separator, *(insertion if between else filler)]
        case Placement.RANDOM:
            seed = f"{condition.seed}:{key}"
            boundary = _draw_word_boundary((draft.system[0], question[1]), seed)
            if boundary is None:
                draft.blocks[0][:0] = insertion
                return
            segment, position = boundary
            start = replace(segment, text=segment.text[:position])
            rest = replace(segment, text=segment.text[position:])
            block = draft.system if segment is draft.system[0] else question
            index = block.index(segment)
            block[index : index + 1] = [start, separator, *insertion, rest]
        case Placement.ANSWER:
            draft.answer[:0] = insertion if condition.answer_prefix else filler


def _draw_word_boundary(segments: Iterable[Segment], seed: str) -> tuple[Segment, int] | None:
    """Draw a word boundary uniformly from those of instruction and problem.

    A boundary is a single blank between two words, since a cut there does not change the tokens on
    either side, or the boundary after the instruction, which is None.
    """
    boundaries: list[tuple[Segment, int] | None] = [None]
    for segment in segments:
        for match in re.finditer(r"(?<=\w) (?=[A-Za-z])", segment.text):
            boundaries.append((segment, match.start()))
    return random.Random(seed).choice(boundaries)


_DOCUMENT_FIELDS = frozenset(("condition", "layout", "system", "user", "segments"))
"""The fields that `make_document` adds to a problem, besides those of a reference condition."""


def make_document(
    problem: Problem, prompt: Prompt, condition: Condition, layout: Layout
) -> dict[str, Any]:
    """Make the document that lm-eval gets of a problem under one condition."""
    return {
        **problem.record(),
        "condition": condition.name,
        **condition.reference,
        "layout": "as_published" if layout is Layout.AS_PUBLISHED else "sound",
        "system": prompt.system,
        "user": prompt.user,
        "segments": [asdict(segment) for segment in prompt.segments],
    }


def document_prompt(document: Mapping[str, Any]) -> Prompt:
    """Read the prompt, without its answer, from a document of `make_document`."""
    segments = tuple(Segment(**segment) for segment in document["segments"])
    size, length = 0, 0
    # the system turn consists of whole segments, so the lengths become equal
    while length < len(document["system"]):
        length += len(segments[size].text)
        size += 1
    return Prompt(segments=segments, system_size=size)


def is_ours(document: Mapping[str, Any]) -> bool:
    """Whether a document is of a task of mless."""
    return _DOCUMENT_FIELDS <= document.keys()


def hash_problem(document: Mapping[str, Any], target: str | None) -> str:
    """Hash of a problem and its gold answer. It is the same under all conditions of a task.

    Args:
        document: A document of a task of mless, or of another task.
        target: Its gold answer.
    """
    # what a condition adds does not change the problem
    added = {*_DOCUMENT_FIELDS, *REFERENCE_FIELDS} if is_ours(document) else ()
    problem = {name: value for name, value in document.items() if name not in added}
    return hash_text(json.dumps([problem, target], sort_keys=True))


def hash_text(text: str) -> str:
    """SHA-256 of a prompt's text, as in lm-eval's sample logs.

    lm-eval hashes the UTF-8 bytes and fails on half a surrogate pair, which has none. Here such
    text has a hash too, so that a file with such text gives an error message that names the file.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def refuse_other_text(text: str, sha256: str, where: str) -> None:
    """Raise PromptMismatchError unless the text has the SHA-256 that the run recorded."""
    text_sha256 = hash_text(text)
    if text_sha256 != sha256:
        raise PromptMismatchError(
            f"{where}: the prompt differs from that of the run: "
            f"expected SHA-256 {sha256[:12]}, got {text_sha256[:12]}."
        )


def hash_prompts(prompts: Iterable[Any]) -> str:
    """Hash over the texts and token ids of all prompts, built or stored, in order."""
    hashes = [f"{prompt.prompt_sha256} {prompt.prompt_token_sha256}" for prompt in prompts]
    return hash_text("\n".join(hashes))
