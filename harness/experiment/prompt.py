"""Builds a prompt of a problem and a condition, and the document in which lm-eval gets it. Only this module does.

A prompt has four forms: requested (`Prompt`), built with its text and tokens (`token_checks.BuiltPrompt`), stored
(`records.Prompt`) and sent to an engine (`plan.Request`). A requested prompt is a sequence of segments, each with a
role. Joined, they are the raw text; split after the system part and at segments of the role `turn`, they are the
messages of a chat. lm-eval's tasks, the token checks and the probe all read the segments, so that nothing has to guess
from the text where instruction, filler and problem stand.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from harness.constants import SEPARATOR
from harness.errors import PromptMismatchError
from harness.experiment.conditions import REFERENCE_FIELDS, Condition, Placement
from harness.experiment.fewshot_examples import Draw
from harness.experiment.problems import Problem

INSTRUCTION = "You are an expert mathematician. Reason step by step, and put your final answer within \\boxed{}."
"""The system prompt of the sound layouts."""

PLAIN_INSTRUCTION = "Answer the question."
"""The system prompt where the answer is a line."""

AS_PUBLISHED_INSTRUCTION = (
    "Please reason step by step and put your final answer within \\boxed{{}}."
)
"""The authors' string. The doubled braces are literal, since their code does not use it as a format string."""

Role = Literal["instruction", "separator", "filler", "problem", "demonstration", "format", "turn"]
"""What a segment is. `format` is what an example's format puts around the question. `turn` ends a turn of a chat: there
a chat template stands in its place."""


class Layout(StrEnum):
    """How a prompt becomes the model's input.

    `raw` joins all segments into one string. `chat` puts the instruction into the system turn, and the rest into the
    user turn; each example has a user turn and an assistant turn before it. `as_published` is the string of the
    authors' code, without separators and without a template.
    """

    RAW = "raw"
    CHAT = "chat"
    AS_PUBLISHED = "as_published"

    @property
    def instruction(self) -> str:
        """The system prompt of the layout."""
        return AS_PUBLISHED_INSTRUCTION if self is Layout.AS_PUBLISHED else INSTRUCTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of prompt text with one role."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as it is requested, before a template and a tokenizer.

    Attributes:
        segments: The segments in order. The problem has two if a filler splits it.
        system_size: Number of leading segments that belong to the system turn. 0: there is no system turn.
        answer: The beginning of the model's answer, which it continues.
    """

    segments: tuple[Segment, ...]
    system_size: int
    answer: tuple[Segment, ...] = ()

    @property
    def text(self) -> str:
        """The raw text: all segments joined."""
        return self.system + self.user

    @property
    def system(self) -> str:
        """The text of the system turn."""
        return "".join(segment.text for segment in self.segments[: self.system_size])

    @property
    def user(self) -> str:
        """The text of all turns after the system's."""
        return "".join(segment.text for segment in self.segments[self.system_size :])

    @property
    def turns(self) -> list[tuple[Segment, ...]]:
        """The segments of each turn, the system's first, which may have none."""
        ends = [place for place, segment in enumerate(self.segments) if segment.role == "turn"]
        stops = [self.system_size, *ends, len(self.segments)]
        starts = [0, self.system_size, *(end + 1 for end in ends)]
        return [self.segments[start:stop] for start, stop in zip(starts, stops, strict=True)]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns of a chat, in the form that chat templates take."""
        roles = ("assistant", "user")
        texts = enumerate("".join(segment.text for segment in turn) for turn in self.turns)
        return [
            {"role": roles[at % 2] if at else "system", "content": text}
            for at, text in texts
            if at or text
        ]


def build_prompt(
    problem: str,
    condition: Condition,
    *,
    filler_text: str,
    layout: Layout = Layout.RAW,
    key: str = "",
    system_turn: bool = True,
    instruction: str | None = None,
    draw: Draw | None = None,
) -> Prompt:
    """Build the prompt for one problem under one condition.

    Args:
        problem: The problem's text, which goes into the prompt unchanged.
        condition: The condition, which says where the filler stands.
        filler_text: The filler's text, from `tokenizer.fit_filler`; empty for none, and for the problem repeated.
        layout: `as_published` leaves out the separators and has the authors' instruction.
        key: The problem's id. With the condition's seed it draws a random placement.
        system_turn: False for chat templates that refuse a system role. Then everything goes into the user turn, and
            the raw text stays the same.
        instruction: A system prompt that replaces the layout's own. A condition's own replaces both.
        draw: The examples before the question.
    """
    gap = "" if layout is Layout.AS_PUBLISHED else SEPARATOR
    wording = layout.instruction if instruction is None else instruction
    if condition.instruction is not None:
        wording = condition.instruction
    if condition.repeat_problem is not None:
        filler_text = gap.join([problem] * (condition.repeat_problem - 1))
    instruct = Segment(role="instruction", text=wording)
    separator = Segment(role="separator", text=gap)
    ask = Segment(role="problem", text=problem)
    label, cue, begun = (
        [Segment(role="separator", text=text)] if text else []
        for text in (condition.label, condition.cue, condition.answer_prefix)
    )
    inserted = [*label, *([separator] if label else []), Segment(role="filler", text=filler_text)]

    head: list[Segment] = [instruct, separator]
    question, at = [ask], condition.placement
    before, between, behind = draw.frame if draw and layout is Layout.RAW else ("", "", "")
    if condition.filler is not None:
        match condition.placement:
            case Placement.BEFORE_SYSTEM:
                head = [*inserted, separator, instruct, separator]
            case Placement.END:
                question = [ask, separator, *inserted, *([separator] if between else [])]
            case Placement.RANDOM:
                if split := _insert_at_random(
                    instruct, ask, inserted, separator, f"{condition.seed}:{key}"
                ):
                    head, question = [*split[0], separator], split[1]
                else:
                    at = Placement.BETWEEN
            case Placement.ANSWER:
                begun = [*inserted, *([separator] if begun else []), *begun]
    parts, chat = [], layout is Layout.CHAT
    ends = Segment(role="turn" if chat else "separator", text=SEPARATOR)
    for one in draw.examples if draw else ():
        texts = (
            (one.problem, one.answer)
            if chat
            else (before + one.problem + between + one.answer + behind,)
        )
        parts.append(
            [part for text in texts for part in (Segment(role="demonstration", text=text), ends)]
        )
    opening, closing = (Segment(role="format", text=text) for text in (before, between.rstrip(" ")))
    parts.append([opening, *question, closing])
    starts = {
        Placement.BETWEEN: parts[:1],
        Placement.BEFORE_QUESTION: parts[-1:],
        Placement.EACH: parts,
    }
    for part in starts.get(at, []) if condition.filler is not None else []:
        part[:0] = [*inserted, separator]
    tail = [segment for part in parts for segment in part]
    tail += [separator, *cue] if cue else []
    head, tail, begun = ([s for s in part if s.text] for part in (head, tail, begun))
    return Prompt(
        segments=(*head, *tail), system_size=len(head) if system_turn else 0, answer=tuple(begun)
    )


def _insert_at_random(
    instruct: Segment, ask: Segment, inserted: list[Segment], separator: Segment, seed: str
) -> tuple[list[Segment], list[Segment]] | None:
    """Put the filler at a word boundary, drawn uniformly from those of instruction and problem.

    A boundary is a single blank between two words, or the place after the instruction: then the answer is None. A cut
    there does not change the tokens on either side.
    """
    places = [
        (segment, match.start())
        for segment in (instruct, ask)
        for match in re.finditer(r"(?<=\w) (?=[A-Za-z])", segment.text)
    ]
    place = random.Random(seed).choice([None, *places])
    if place is None:
        return None
    segment, at = place
    parts = [
        Segment(role=segment.role, text=segment.text[:at]),
        separator,
        *inserted,
        separator,
        Segment(role=segment.role, text=segment.text[at:]),
    ]
    return (parts, [ask]) if segment is instruct else ([instruct], parts)


_ADDED = frozenset(("condition", "layout", "system", "user", "segments"))
"""What `make_document` adds to a problem, beside the fields of a reference condition."""


def make_document(
    problem: Problem, prompt: Prompt, condition: Condition, layout: Layout
) -> dict[str, Any]:
    """A problem under one condition for lm-eval: its fields, the condition, `system` and `user` text, the segments."""
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
    """The prompt that a document of `make_document` holds, segments and turns."""
    segments = tuple(Segment(**segment) for segment in document["segments"])
    size, length = 0, 0
    while length < len(document["system"]):
        length += len(segments[size].text)
        size += 1
    return Prompt(segments=segments, system_size=size)


def is_ours(document: Mapping[str, Any]) -> bool:
    """Whether a document is one of our tasks', rather than another's."""
    return _ADDED <= document.keys()


def hash_problem(document: Mapping[str, Any], target: str | None) -> str:
    """Hash of what is asked and of its answer, the same under all conditions of our tasks.

    Args:
        document: A document of a task of mless, or of another task.
        target: Its gold answer.
    """
    added = {*_ADDED, *REFERENCE_FIELDS} if is_ours(document) else ()
    asked = {name: value for name, value in document.items() if name not in added}
    return hashlib.sha256(json.dumps([asked, target], sort_keys=True).encode()).hexdigest()


def hash_text(text: str) -> str:
    """SHA-256 of a prompt's text, as in lm-eval's sample logs.

    lm-eval hashes the UTF-8 bytes, and refuses text with half a surrogate pair, which has none. Here such text has a
    hash too, so that a reader who finds it in a file can name the file.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def refuse_other_text(text: str, sha256: str, where: str) -> None:
    """Raise PromptMismatchError unless the text has this hash, which was recorded when it was run."""
    if (found := hash_text(text)) != sha256:
        raise PromptMismatchError(
            f"{where}: the prompt is not the one that was run: expected SHA-256 {sha256[:12]}, got {found[:12]}."
        )


class HashedPrompt(Protocol):
    """A prompt of which the hashes of text and token ids are known: built or stored."""

    @property
    def prompt_sha256(self) -> str:
        """Of the text."""

    @property
    def prompt_token_sha256(self) -> str | None:
        """Of the token ids; None where they are not known."""


def hash_prompts(prompts: Iterable[HashedPrompt]) -> str:
    """Hash over the texts and token ids of all prompts, in order."""
    hashes = (f"{prompt.prompt_sha256} {prompt.prompt_token_sha256}" for prompt in prompts)
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
