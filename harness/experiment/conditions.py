"""The experimental conditions: what is inserted into the prompt, how much of it, and where.

A condition is a filler and a placement. The study compares no filler (`wo`) with 55 meaningless tokens (`mless`),
55 times one meaningful word (`mful`) and one unrelated sentence of the same length (`random`). A condition as it is
written in a config, as it is recorded, and as prompts are built from it are one model: `Condition`.

A run adds reference conditions, which nobody makes a claim about: every condition under other instructions, and a
positive control, which must lower the accuracy. Their kind is a field. A name says nothing, so a config may give its
conditions any names but those of the study.

Source: Shi et al., "Meaningless Tokens, Meaningful Gains", arXiv 2510.01032, sections 2 and 4.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, StrictInt, ValidationError, model_validator

from harness.constants import BASELINE, DEFAULT_SEED, STUDIED
from harness.errors import ConfigError
from harness.experiment.fillers import (
    count_words,
    cut_sentence,
    cut_text,
    draw_words,
    estimate_tokens,
)
from harness.experiment.intervention_settings import Intervention
from harness.yaml_settings import Strict, explain

STUDY_COUNT = 55
"""Filler tokens in the study's main setting: that of the authors' code. The paper sweeps 0 to 70."""
MOST_TOKENS = 100_000
"""More tokens, numbers or repetitions fit in no model's context, and would take hours to build."""

_HERE = Path(__file__).parent
SENTENCES: tuple[str, ...] = tuple(
    yaml.safe_load((_HERE / "sentences.yaml").read_text(encoding="utf-8"))
)
"""Unrelated sentences. The filler of the condition `random` is cut from one of them."""
COUNTED = ("unit", "token_ids", "sentence")
"""The fillers whose number of tokens `count` says. A `text` may have one too, and is then repeated and cut."""
SEPARATED = ("unit", "token_ids")
"""The fillers that are repeated with a separator."""
FILLERS = (*COUNTED, "text", "random_ids", "repeat_problem")
"""The keys that say what a condition's filler is; it has one of them at most. `count_to` is read as a `text`."""
WORDS = ("instruction", "cue", "answer_prefix")
"""What a condition without a filler can change."""

ReferenceKind = Literal["other instruction", "positive control"]
REFERENCE_FIELDS = ("kind", "of", "number")
"""What a run says of a reference condition. A config cannot set them: they follow from the rest of it."""
OTHER_INSTRUCTION: ReferenceKind = "other instruction"
POSITIVE_CONTROL: ReferenceKind = "positive control"


class Placement(StrEnum):
    """Where the filler stands. The study finds `between` best and `end` fatal for Qwen2.5-Math-7B.

    `between` instruction and problem, at the `end` of the question, at a `random` word of it, or at the beginning of
    the model's own `answer`, which it continues. Where examples stand before the question: `between` instruction and
    examples, `before_question` behind them, or before `each` example and the question. Without examples these three
    are one place.
    """

    BEFORE_SYSTEM = "before_system"
    BETWEEN = "between"
    BEFORE_QUESTION = "before_question"
    EACH = "each"
    END = "end"
    RANDOM = "random"
    ANSWER = "answer"


class Condition(Strict):
    """One filler (`unit` to `repeat_problem`), its length and its place."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-]+$")
    """What tables call it."""
    unit: str | None = Field(default=None, min_length=1)
    """A text of one token that is repeated."""
    token_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=None, min_length=1)
    """The exact token ids; a shorter list is repeated."""
    sentence: StrictInt | None = Field(default=None, ge=1, le=len(SENTENCES))
    """A sentence's number in sentences.yaml, from 1."""
    text: str | None = Field(default=None, min_length=1)
    """A text of your own."""
    count_to: StrictInt | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """The numbers from 1 to this one."""
    random_ids: StrictInt | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """So many tokens, drawn from the vocabulary's words."""
    repeat_problem: StrictInt | None = Field(default=None, ge=2, le=MOST_TOKENS)
    """How often the problem stands in the prompt."""
    fresh: bool = False
    """Whether random ids are drawn anew for each problem."""
    count: StrictInt | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """The filler's tokens. By default 55; of a text of your own as many as it has."""
    separator: str | None = None
    """The text between two units: a blank, and nothing between blank units."""
    placement: Placement = Placement.BETWEEN
    """`before_system`, `between`, `before_question`, `each`, `end`, `random`, or the model's own `answer`."""
    seed: int = DEFAULT_SEED
    """Draws tokens and places."""
    label: str = ""
    """Words before the filler, such as `Filler:`."""
    instruction: str | None = Field(default=None, min_length=1)
    """The condition's own system prompt."""
    cue: str = ""
    """Words after the question, such as `Answer:`."""
    answer_prefix: str = ""
    """The beginning of the model's answer."""
    intervention: Intervention | None = None
    """What is done inside the model while it answers."""

    kind: ReferenceKind | None = Field(default=None, exclude=True)
    """What kind of reference condition it is; None for a condition of the config."""
    of: str | None = Field(default=None, exclude=True)
    """The condition that is asked under another instruction."""
    number: int = Field(default=0, exclude=True)
    """Which of the other instructions, from 1."""
    has_examples: bool = Field(default=True, exclude=True)
    """Whether examples stand before the question, where a run has some."""

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, values: Any) -> Any:
        """Counted numbers become a text, and the length and the separator have their usual values."""
        fillers = [key for key in (*FILLERS, "count_to") if values.get(key) is not None]
        if len(fillers) > 1:
            raise ValueError(f"expected one filler, got {' and '.join(fillers)}")
        values = dict(values)
        last_number = values.get("count_to")
        if isinstance(last_number, int) and 0 < last_number <= MOST_TOKENS:
            values |= {"count_to": None, "text": " ".join(map(str, range(1, last_number + 1)))}
        if fillers and fillers[0] in COUNTED and values.get("count") is None:
            values["count"] = STUDY_COUNT
        if fillers and fillers[0] in SEPARATED and values.get("separator") is None:
            unit = values.get("unit")
            if unit is None or isinstance(unit, str):
                values["separator"] = usual_separator(unit)
        return values

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.sentence is not None and (self.count or 0) > SENTENCE_TOKENS:
            raise ValueError(
                f"count: a sentence has at most {SENTENCE_TOKENS} tokens, got {self.count}"
            )
        fillers_by_key = {
            "count": (*COUNTED, "text"),
            "separator": SEPARATED,
            "label": FILLERS,
            "fresh": ("random_ids",),
        }
        for key, fillers in fillers_by_key.items():
            if getattr(self, key) not in (None, "", False) and self.filler not in fillers:
                raise ValueError(
                    f"{key} goes with {', '.join(fillers)}, got {self.filler or 'none'}"
                )
        if self.intervention and self.intervention.kind == "filler" and not self.filler:
            raise ValueError("intervention: of the kind filler, and the condition has none")
        return self

    @property
    def filler(self) -> str | None:
        """Which of `FILLERS` is inserted. None: nothing."""
        return next((key for key in FILLERS if getattr(self, key) is not None), None)

    @property
    def tokens(self) -> int | None:
        """The tokens that the filler states; 0 without one, None if it states none."""
        if self.filler is None:
            return 0
        return self.count if self.random_ids is None else self.random_ids

    @property
    def exact(self) -> bool:
        """Whether the filler states how many tokens it has, all of them its own. A prompt that breaks this is refused.

        Blanks cannot, since tokenizers merge them.
        """
        return self.tokens is not None and (self.unit is None or bool(self.unit.strip()))

    @property
    def filler_tokens(self) -> int | None:
        """The filler's length, where it states one that its prompts keep."""
        return self.tokens if self.exact else None

    @property
    def filler_content(self) -> tuple[object, ...]:
        """What tells two fillers apart beside their length and their placement."""
        drawn = self.filler == "random_ids" or self.placement is Placement.RANDOM
        return (
            *(getattr(self, key) for key in FILLERS if key != "random_ids"),
            self.filler,
            self.fresh,
            self.separator,
            self.label,
            self.seed if drawn else None,
        )

    @property
    def cell(self) -> dict[str, Any] | None:
        """How the filler is taken apart, see `FillerIntervention.cell`; None where it is not."""
        change = self.intervention
        return change.cell if change is not None and change.kind == "filler" else None

    @property
    def words(self) -> str:
        """What the prompt has beside a filler, and what is done to the model."""
        changes = {key: getattr(self, key) for key in (*WORDS, "intervention")}
        return ", ".join(f"{key} {value!r}" for key, value in changes.items() if value)

    @property
    def is_plain(self) -> bool:
        """Whether its prompts are those of the baseline."""
        return (
            self.filler is None
            and self.instruction is None
            and not (self.cue or self.answer_prefix)
        )

    @property
    def reference(self) -> dict[str, Any]:
        """The fields that make it a reference condition; empty for a condition of the config."""
        return {key: getattr(self, key) for key in REFERENCE_FIELDS} if self.kind else {}

    def filler_text(
        self,
        count_tokens: Callable[[str], int] | None = None,
        words: Sequence[str] = (),
        key: str | None = None,
    ) -> str:
        """The filler as text, but for token ids, which only a tokenizer turns into text; empty for a repeated problem.

        Args:
            count_tokens: Counts a text's tokens as it will stand in the prompt. Without it a sentence has about its
                count: each word is taken as one token, and each comma as another.
            words: The words that are one token each where they follow a blank, which random ids are drawn from.
            key: The problem, if each has a draw of random ids of its own.

        Raises:
            ConfigError: the filler needs a tokenizer, or none of its kind has the count in this one.
        """
        if self.unit is not None:
            return (self.separator or "").join([self.unit] * (self.count or 0))
        if self.sentence is not None:
            return cut_sentence(SENTENCES[self.sentence - 1].split(), self.count or 0, count_tokens)
        if self.random_ids is not None:
            draw = random.Random(self.seed if key is None else f"{self.seed}/{key}")
            return draw_words(words, self.random_ids, count_tokens or len, draw)
        if self.token_ids is not None:
            raise ConfigError(
                "A filler given as `token_ids` needs the model's tokenizer. Name the model, or a `unit`."
            )
        text = self.text or ""
        return (
            text
            if self.count is None
            else cut_text(self.name, text, self.count, count_tokens or count_words)
        )

    def recorded(self) -> str | dict[str, Any]:
        """The entry of a config that makes the condition again."""
        if self == named_conditions().get(self.name):
            return self.name
        values = self.model_dump(mode="json", exclude={"count_to"})
        if self.filler not in SEPARATED:
            del values["separator"]
        # a seed of 0 equals False, and is recorded
        recorded = {
            key: value
            for key, value in values.items()
            if value is not False and value not in (None, "")
        }
        return recorded | {key: values[key] for key in ("separator",) if key in values}

    def describe(self) -> dict[str, Any]:
        """What the condition is, as columns of tables: all that a sweep can vary of it.

        Returns:
            `filler`: the repeated text, or the kind of filler, with what else makes it another one; None without one.
            `filler_tokens`: how many it states, 0 without one, None if it states none. `placement`: None without one.
            `words`: what else stands in the prompt, or is done to the model.
        """
        return {
            "filler": self._describe_filler(),
            "filler_tokens": self.filler_tokens,
            "placement": str(self.placement) if self.filler else None,
            "words": self.words,
        }

    def _describe_filler(self) -> str | None:
        match self.filler:
            case None:
                return None
            case "unit":
                description = str(self.unit)
            case "token_ids":
                description = f"token ids {' '.join(map(str, self.token_ids or ()))}"
            case "sentence":
                description = f"sentence {self.sentence}"
            case "random_ids":
                description = "fresh random tokens" if self.fresh else "random tokens"
            case "text":
                description = "own text"
            case _:
                description = "problem"
        if self.label:
            description += f", label {self.label!r}"
        if self.separator is not None and self.separator != usual_separator(self.unit):
            description += f", separator {self.separator!r}"
        drawn = self.filler == "random_ids" or self.placement is Placement.RANDOM
        if drawn and self.seed != DEFAULT_SEED:
            description += f", seed {self.seed!r}"
        return description


def usual_separator(unit: str | None) -> str:
    """What stands between two units unless told: nothing between blank ones."""
    return "" if unit is not None and not unit.strip() else " "


SENTENCE_TOKENS = min(estimate_tokens(sentence.split()) for sentence in SENTENCES)
"""Tokens that every sentence has at least."""


@cache
def named_conditions() -> dict[str, Condition]:
    """The study's four conditions, by name, in the order in which tables and figures show them."""
    fillers: dict[str, dict[str, Any]] = {
        BASELINE: {},
        STUDIED: {"unit": "/"},
        "mful": {"unit": "he"},
        "random": {"sentence": 4},  # drawn once
    }
    return {name: Condition(name=name, **filler) for name, filler in fillers.items()}


def as_condition(value: Any) -> Condition:
    """The condition of an entry in a config: the study's, if it is a name, or the one that a mapping describes.

    Raises:
        ConfigError: the entry is neither, describes no condition, or takes a name that stands for another condition.
    """
    study = named_conditions()
    if isinstance(value, str) and value in study:
        return study[value]
    if not isinstance(value, Mapping):
        expected = f"expected {', '.join(study)}, or a mapping such as {{name: dots, unit: '.'}}"
        raise ConfigError(f"conditions: {expected}, got {value!r}.")
    where = f"condition {value.get('name', '')!r}"
    for key in value:
        if key in Condition.model_fields and Condition.model_fields[key].exclude:
            raise ConfigError(f"{where}: unknown key {key!r}.")
    try:
        condition = Condition.model_validate(value)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None
    if condition.is_plain and not condition.intervention:
        raise ConfigError(
            f"{where} changes nothing: expected one of {', '.join((*FILLERS, *WORDS))}."
        )
    if condition.name in study:
        raise ConfigError(f"{where} has the name of one of the study's own conditions.")
    return condition


def find_baseline(names: Sequence[str], configured: str | None = None) -> str:
    """Which of a run's conditions the others are compared with: the one that its config names, `wo`, or the first.

    A single condition is compared with `wo` of another run.
    """
    if configured:
        return configured
    return BASELINE if BASELINE in names or len(names) < 2 else names[0]


def contrast_name(condition: str, baseline: str = BASELINE) -> str:
    """How a difference of two conditions is written: `mless - wo`."""
    return f"{condition} - {baseline}"


def read_contrast(text: str) -> tuple[str, str]:
    """The two conditions of a contrast such as `mless - wo`: the condition, and what it is compared with.

    Raises:
        ConfigError: it is not two names with ` - ` between them.
    """
    condition, _, baseline = (name.strip() for name in str(text).partition(" - "))
    if not (condition and baseline):
        raise ConfigError(
            f"Expected a contrast of two conditions, such as '{contrast_name('mless')}', got {text!r}."
        )
    return condition, baseline
