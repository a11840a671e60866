"""Builds the prompt of a problem under a condition, and the document that lm-eval gets.

Here are the default instructions and templates, the layouts, and the placement of a filler.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import chain, cycle, groupby
from typing import Any, Literal

from harness.constants import SEPARATOR
from harness.errors import ConfigError, PromptMismatchError
from harness.experiment.choices import letter_lines
from harness.experiment.conditions import REFERENCE_FIELDS, Condition, FilledCondition, Placement
from harness.experiment.problems import Problem
from harness.experiment.prompts.template_parser import (
    CHOICES,
    FILLER,
    PROBLEM,
    ParsedTemplate,
    Piece,
    Pieces,
    fill_columns,
    parse_template,
)
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

QUESTION_AND_ANSWER = "Q: {problem}\nA: {answer}"
"""The default template in `raw` with examples, and where the answer is a line."""
ONLY_PROBLEM = "{problem}{answer}"
"""The default template of all other prompts, whose turns separate problem and answer."""

Role = Literal["instruction", "separator", "filler", "problem", "demonstration", "format", "turn"]
"""The role of a segment. `demonstration` is an example, and `format` the template's text around the
question. `turn` ends a turn of a chat: a chat template replaces it."""


class Layout(StrEnum):
    """How a prompt becomes the model's input.

    `raw` joins all segments into one string. `chat` puts the instruction into the system turn and
    the rest into the user turn; each example is a user turn and an assistant turn before it.
    `as_published` is the string of the authors' code, without separators and without a template.
    """

    RAW = "raw"
    CHAT = "chat"
    AS_PUBLISHED = "as_published"


@dataclass(frozen=True)
class Segment:
    """A stretch of prompt text with one role."""

    role: Role
    text: str


Segments = list[Segment]
"""Consecutive segments."""


def join_texts(segments: Iterable[Segment]) -> str:
    """The text of consecutive segments."""
    return "".join(segment.text for segment in segments)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as it is requested, before a template and a tokenizer.

    Attributes:
        segments: The segments in order. The problem has two if a filler splits it.
        system_size: Number of leading segments in the system turn. 0: there is no system turn.
        answer_segments: The beginning of the model's answer, which the model continues.
        blank: The blank after the question, which belongs to the first token of the answer.
        answer_end: The text that ends an answer of one line, as it ends those of examples.
    """

    segments: tuple[Segment, ...]
    system_size: int
    answer_segments: tuple[Segment, ...] = ()
    blank: str = ""
    answer_end: str = "\n"

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
        # A segment of the role `turn` stands between two turns, and belongs to neither. The system
        # turn ends at `system_size`, where the next turn begins.
        turn_ends = [index for index, segment in enumerate(self.segments) if segment.role == "turn"]
        stops = [self.system_size, *turn_ends, len(self.segments)]
        starts = [0, self.system_size, *(end + 1 for end in turn_ends)]
        return [self.segments[start:stop] for start, stop in zip(starts, stops, strict=True)]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns of a chat, as chat templates take them."""
        roles = chain(["system"], cycle(["user", "assistant"]))
        messages = [
            {"role": role, "content": join_texts(turn)}
            # not strict, because `cycle` is endless
            for role, turn in zip(roles, self.turns, strict=False)
        ]
        return messages if self.system else messages[1:]


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """What the prompts of several conditions share.

    Attributes:
        layout: `as_published` has no separators, and the authors' instruction.
        instruction: Replaces the instruction of the layout. The condition's own replaces both.
        template: The run's template of examples and question.
        question: The run's template of the question, if it differs from the examples'.
        asks_in_text: Whether QUESTION_AND_ANSWER is the default template in `raw`.
        examples: The examples before the question.
        draw: The number of the draw of examples, from 1; 0 if there is at most one draw.
        sample_number: The number of the only sample with these prompts, from 1. 0: all samples have
            these prompts.
        has_system_turn: False for chat templates that refuse a system role. The instruction is then
            in the user turn, and the raw text is the same.
        reasoning_markers: The markers of the model's reasoning; those of all families if there are
            none.
        scored_form: Where the gold answer stands when its log-probability is measured: `box` or
            `line`. None: it is not measured.
        other_answers: By a problem's id, the other answers whose log-probability is measured too;
            empty if none is.
    """

    layout: Layout = Layout.RAW
    instruction: str | None = None
    template: str | None = None
    question: str | None = None
    asks_in_text: bool = False
    examples: tuple[Problem, ...] = ()
    draw: int = 0
    sample_number: int = 0
    has_system_turn: bool = True
    reasoning_markers: Markers = ()
    scored_form: str | None = None
    other_answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def choose_instruction(self, condition: Condition) -> str:
        """The system prompt under a condition."""
        for instruction in (condition.instruction, self.instruction):
            if instruction is not None:
                return instruction
        return AS_PUBLISHED_INSTRUCTION if self.layout is Layout.AS_PUBLISHED else INSTRUCTION

    def parse_templates(
        self, condition: Condition, problem: Problem
    ) -> tuple[ParsedTemplate, ParsedTemplate]:
        """The parsed templates of examples and of the question for a problem under a condition.

        Raises:
            ConfigError: only the problem or only a template has choices.
        """
        asks_in_text = self.asks_in_text and self.layout is Layout.RAW
        template_without_choices = QUESTION_AND_ANSWER if asks_in_text else ONLY_PROBLEM
        # the template if neither the run nor the condition has one
        default_template = template_without_choices.replace(
            "{problem}", "{problem}\n{choices}" if problem.choices else "{problem}"
        )
        templates = condition.choose_templates(self.template or default_template, self.question)
        parsed_example, parsed_question = (
            parse_template(str(template), condition.filler_key is not None)
            for template in templates
        )
        for parsed in (parsed_example, parsed_question):
            # only one of template and problem has choices
            if (CHOICES in parsed.question) != bool(problem.choices):
                raise ConfigError(
                    "template: the question needs {choices} if problems have choices, and only "
                    f"then; problem {problem.id} has {len(problem.choices)}."
                )
        return parsed_example, parsed_question


def build_prompt(
    problem: Problem, condition: Condition, *, filler_text: str, settings: PromptSettings
) -> Prompt:
    """Build the prompt for one problem under one condition.

    Args:
        problem: The problem. Together with the condition's seed, its id draws a random placement.
        condition: The condition with the placement of the filler.
        filler_text: The filler's text, from `tokenizer.fit_filler`; empty without a filler.
        settings: The layout, the instruction and the examples.
    """
    row = problem.row
    layout = settings.layout
    separator = Segment("separator", "" if layout is Layout.AS_PUBLISHED else SEPARATOR)
    parsed_example, parsed_question = settings.parse_templates(condition, problem)
    instruction = fill_columns(settings.choose_instruction(condition), row)
    system_segments = [Segment("instruction", instruction), separator]
    body_segments = []
    for example in settings.examples:
        body_segments += _fill_example(parsed_example, example, filler_text, layout)
    body_segments += _fill_pieces(parsed_question.question, problem, filler_text)
    answer_segments = [Segment("separator", fill_columns(condition.answer_prefix, row))]
    template_pieces = parsed_example.pieces + parsed_question.pieces
    # a filler that no template mentions is inserted where its condition places it
    if isinstance(condition, FilledCondition) and FILLER not in template_pieces:
        insertion = [Segment("filler", fill_columns(filler_text, row)), separator]
        match condition.placement:
            case Placement.BEFORE_SYSTEM:
                system_segments = insertion + system_segments
            case Placement.RANDOM:
                system_segments, body_segments = _insert_at_random(
                    system_segments, body_segments, insertion, f"{condition.seed}:{problem.id}"
                )
            case Placement.ANSWER:
                # without an answer prefix nothing comes after the filler, so no separator either
                answer_segments = (
                    insertion if condition.answer_prefix else insertion[:1]
                ) + answer_segments
            case _:
                # before the first example, or before the question if there are no examples
                body_segments = insertion + body_segments
    merged_system = _merge_same_role(system_segments)
    is_raw = layout is Layout.RAW
    return Prompt(
        segments=merged_system + _merge_same_role(body_segments),
        system_size=len(merged_system) if settings.has_system_turn else 0,
        answer_segments=_merge_same_role(answer_segments),
        blank=parsed_question.blank if is_raw else "",
        # the model ends its answer as the examples that it sees end theirs
        answer_end=parsed_example.answer_end if is_raw and settings.examples else "\n",
    )


def _choose_role(piece: Piece, pieces: Pieces, is_example: bool) -> Role:
    """The role of the text that replaces one of these pieces of a template."""
    if piece == FILLER:
        return "filler"
    if piece.kind == "gap":
        return "separator"
    if is_example:
        return "demonstration"
    if piece in (PROBLEM, CHOICES):
        return "problem"
    # in a template without `{problem}`, the columns are the problem
    if piece.kind == "name" and PROBLEM not in pieces:
        return "problem"
    return "format"


def _fill_pieces(
    pieces: Pieces, problem: Problem, filler_text: str, *, is_example: bool = False
) -> Iterator[Segment]:
    """Yield the segments of pieces of a template, with a problem's texts in place of the names."""
    text_by_name = {f"row.{column}": text for column, text in problem.row.items()}
    text_by_name |= {
        "problem": problem.problem,
        "answer": problem.answer,
        "choices": "\n".join(letter_lines(problem.choices)),
        "filler": fill_columns(filler_text, problem.row),
    }
    for piece in pieces:
        text = text_by_name[piece.text] if piece.kind == "name" else piece.text
        yield Segment(_choose_role(piece, pieces, is_example), text)


def _fill_example(
    parsed: ParsedTemplate, example: Problem, filler_text: str, layout: Layout
) -> Segments:
    """The segments of an example.

    In a chat, question and answer are two turns. Otherwise the template's blank stands between
    them, and its end after the answer.
    """
    question, answer = (
        _fill_pieces(pieces, example, filler_text, is_example=True)
        for pieces in (parsed.question, parsed.answer)
    )
    if layout is Layout.CHAT:
        end = Segment("turn", SEPARATOR)
        return [*question, end, *answer, end]
    blank = Segment("demonstration", parsed.blank)
    end = Segment("separator", parsed.end)
    return [*question, blank, *answer, end]


def _merge_same_role(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The segments that have a text. Neighbours of the same role are joined."""
    nonempty_segments = [segment for segment in segments if segment.text]
    groups = groupby(nonempty_segments, key=lambda segment: segment.role)
    return tuple(Segment(role, join_texts(group)) for role, group in groups)


def _insert_at_random(
    system: Segments, body: Segments, insertion: Segments, seed: str
) -> tuple[Segments, Segments]:
    """The system and the body of a prompt with a filler at a boundary that is drawn uniformly.

    The boundaries are the one after the instruction, and each single blank between two words of the
    instruction or of the problem: a cut there does not change the tokens on either side.
    """
    problem_index = [segment.role for segment in body].index("problem")
    # Each boundary is the segments of the system or of the body, the index of one of them, and a
    # position in its text. The first boundary, at position 0, is the one after the instruction.
    boundaries = [(body, 0, 0)]
    for segments, index in ((system, 0), (body, problem_index)):
        blanks = re.finditer(r"(?<=\w) (?=[A-Za-z])", segments[index].text)
        boundaries += [(segments, index, blank.start()) for blank in blanks]
    segments, index, position = random.Random(seed).choice(boundaries)
    # only the boundary after the instruction has position 0: a blank has a word before it
    if not position:
        return system, insertion + body
    cut_segment = segments[index]
    head = Segment(cut_segment.role, cut_segment.text[:position])
    tail = Segment(cut_segment.role, cut_segment.text[position:])
    # `insertion` ends with a separator; another one stands before the filler
    inserted_segments = [head, insertion[-1], *insertion, tail]
    segments_with_filler = segments[:index] + inserted_segments + segments[index + 1 :]
    return (segments_with_filler, body) if segments is system else (system, segments_with_filler)


TaskDocument = Mapping[str, Any]
"""A document of an lm-eval task: a problem and, in tasks of mless, its prompt."""
_DOCUMENT_FIELDS = {"condition", "layout", "system", "user", "segments"}
"""The fields that `make_document` adds to a problem, besides those of a reference condition."""


def make_document(
    problem: Problem, prompt: Prompt, condition: Condition, layout: Layout
) -> dict[str, Any]:
    """Make the document that lm-eval gets of a problem under one condition."""
    shown_field = {"shown": problem.shown_text} if problem.shown_text else {}
    return {
        **problem.record(),
        **shown_field,
        "condition": condition.name,
        **condition.reference_fields,
        "layout": "as_published" if layout is Layout.AS_PUBLISHED else "sound",
        "system": prompt.system,
        "user": prompt.user,
        "segments": [asdict(segment) for segment in prompt.segments],
    }


def read_document_prompt(document: TaskDocument) -> Prompt:
    """Read the prompt, without its answer, from a document of `make_document`."""
    segments = tuple(Segment(**segment) for segment in document["segments"])
    system_size = system_length = 0
    # the system turn consists of entire segments, so their length reaches that of its text exactly
    while system_length < len(document["system"]):
        system_length += len(segments[system_size].text)
        system_size += 1
    return Prompt(segments=segments, system_size=system_size)


def is_ours(document: TaskDocument) -> bool:
    """Whether a document is of a task of mless."""
    return _DOCUMENT_FIELDS <= document.keys()


def hash_problem(document: TaskDocument, target: str | None) -> str:
    """Hash of a problem and its gold answer. It is the same under all conditions of a task.

    Args:
        document: A document of a task of mless, or of another task.
        target: Its gold answer.
    """
    # without the fields that a condition adds, the hash is the same under all conditions
    added_fields = {*_DOCUMENT_FIELDS, *REFERENCE_FIELDS, "shown"} if is_ours(document) else ()
    problem = {name: value for name, value in document.items() if name not in added_fields}
    return hash_text(json.dumps([problem, target], sort_keys=True))


def hash_text(text: str) -> str:
    """SHA-256 of a prompt's text, as in lm-eval's sample logs.

    lm-eval hashes the UTF-8 bytes and fails on half a surrogate pair, which has none. Here such
    text has a hash too, so that a file with such text gives an error message that names the file.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def refuse_other_text(text: str, sha256: str, location: str) -> None:
    """Raise PromptMismatchError unless the text has the SHA-256 that the run recorded."""
    text_sha256 = hash_text(text)
    if text_sha256 != sha256:
        raise PromptMismatchError(
            f"{location}: the prompt differs from that of the run: "
            f"expected SHA-256 {sha256[:12]}, got {text_sha256[:12]}."
        )


def hash_prompts(prompts: Iterable[Any]) -> str:
    """Hash over the texts and token ids of all prompts, built or stored, in order."""
    return hash_text(
        "\n".join(f"{prompt.prompt_sha256} {prompt.prompt_token_sha256}" for prompt in prompts)
    )
