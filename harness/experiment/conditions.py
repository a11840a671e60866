"""The experimental conditions: what is inserted into the prompt, how much of it, and where.

A condition is a filler and a placement. The study compares no filler (`wo`) with 55 meaningless
tokens (`mless`), one meaningful word repeated 55 times (`mful`) and one unrelated sentence of the
same length (`random`). `Condition` is the only model of a condition: configs and records are read
into it, and prompts are built from it.

A run adds reference conditions, about which nothing is claimed: all conditions under other
instructions, and a positive control, which must lower the accuracy. Their kind is a field. Nothing
is read from a name, so a config may give its conditions any names but those of the study.

Source: Shi et al., "Meaningless Tokens, Meaningful Gains", arXiv 2510.01032, sections 2 and 4.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, StrictInt, model_validator

from harness.constants import BASELINE, DEFAULT_SEED, STUDIED
from harness.errors import ConfigError, list_near
from harness.experiment.fillers import cut_sentence, draw_words, estimate_tokens
from harness.experiment.intervention_settings import Intervention
from harness.yaml_settings import Strict, validate

STUDY_COUNT = 55
"""Filler tokens in the main setting of the authors' code. The paper sweeps 0 to 70."""
MOST_TOKENS = 100_000
"""A longer filler fits into no model's context, and would take hours to build."""

SENTENCES: tuple[str, ...] = tuple(
    yaml.safe_load((Path(__file__).parent / "sentences.yaml").read_text(encoding="utf-8"))
)
"""Unrelated sentences. The filler of the condition `random` is cut from the fourth."""
SENTENCE_TOKENS = min(map(estimate_tokens, SENTENCES))
"""Every sentence has at least this number of tokens."""
COUNTED = ("unit", "token_ids", "sentence")
"""The fillers of `count` tokens."""
SEPARATED = ("unit", "token_ids")
"""The fillers that are repeated with a separator."""
FILLERS = (*COUNTED, "text", "random_ids", "repeat_problem")
"""The keys of fillers. A condition has at most one of them. `count_to` is read as a `text`."""
WORDS = ("instruction", "cue", "answer_prefix")
"""What a condition without a filler can change."""

ReferenceKind = Literal["other instruction", "positive control"]
REFERENCE_FIELDS = ("kind", "of", "number")
"""The recorded fields of a reference condition. Each follows from other keys."""
ReferenceConditions = Mapping[str, Mapping[str, Any]]
"""The REFERENCE_FIELDS of reference conditions, by name."""
OTHER_INSTRUCTION: ReferenceKind = "other instruction"
POSITIVE_CONTROL: ReferenceKind = "positive control"


class Placement(StrEnum):
    """Where the filler stands. The study finds `between` best and `end` fatal for Qwen2.5-Math-7B.

    `before_system`: before the instruction. `between`: after the instruction. `before_question`:
    after the examples. `each`: before each example and before the question. Without examples these
    last three are equal. `end`: after the problem. `random`: at a random word of instruction or
    problem. `answer`: at the beginning of the model's answer, which the model continues.
    """

    BEFORE_SYSTEM = "before_system"
    BETWEEN = "between"
    BEFORE_QUESTION = "before_question"
    EACH = "each"
    END = "end"
    RANDOM = "random"
    ANSWER = "answer"


class Condition(Strict):
    """A filler (one of `unit` to `repeat_problem`), its length and its placement."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-]+$")
    """Its name in tables."""
    unit: str | None = Field(default=None, min_length=1)
    """A repeated text of one token."""
    token_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=None, min_length=1)
    """Token ids, repeated up to `count`."""
    sentence: StrictInt | None = Field(default=None, ge=1, le=len(SENTENCES))
    """The number of a sentence in sentences.yaml."""
    text: str | None = Field(default=None, min_length=1)
    """Your own text."""
    count_to: StrictInt | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """The numbers from 1 to this."""
    random_ids: StrictInt | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """A number of tokens, drawn from the vocabulary's words."""
    repeat_problem: StrictInt | None = Field(default=None, ge=2, le=MOST_TOKENS)
    """How often the problem appears."""
    count: StrictInt | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """The number of filler tokens, by default 55."""
    separator: str | None = None
    """The text between units. By default a blank, but nothing between blanks."""
    placement: Placement = Placement.BETWEEN
    """`before_system`, `between`, `before_question`, `each`, `end`, `random`, or the model's
    `answer`."""
    seed: int = DEFAULT_SEED
    """The seed of random tokens and placements."""
    label: str = ""
    """Words before the filler, such as `Filler:`."""
    instruction: str | None = Field(default=None, min_length=1)
    """Its own system prompt."""
    cue: str = ""
    """Words after the question, such as `Answer:`."""
    answer_prefix: str = ""
    """The beginning of the model's answer."""
    intervention: Intervention | None = None
    """A change inside the model."""

    kind: ReferenceKind | None = Field(default=None, exclude=True)
    """The kind of reference condition. None: a condition of the config."""
    of: str | None = Field(default=None, exclude=True)
    """The name of the condition that runs here under another instruction."""
    number: int = Field(default=0, exclude=True)
    """The number of the other instruction, from 1."""
    has_examples: bool = Field(default=True, exclude=True)
    """Whether the examples of the run stand before the question."""

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, values: Any) -> Any:
        """Write `count_to` as a text, and fill in the usual length and separator."""
        fillers = [key for key in (*FILLERS, "count_to") if values.get(key) is not None]
        if len(fillers) > 1:
            raise ValueError(f"expected one filler, got {' and '.join(fillers)}")
        filler = next(iter(fillers), None)
        values = dict(values)
        last_number = values.get("count_to")
        if isinstance(last_number, int) and 0 < last_number <= MOST_TOKENS:
            values["text"] = " ".join(map(str, range(1, last_number + 1)))
            values["count_to"] = None
        if filler in COUNTED and values.get("count") is None:
            values["count"] = STUDY_COUNT
        if filler in SEPARATED and values.get("separator") is None:
            values["separator"] = _usual_separator(values.get("unit"))
        return values

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.sentence is not None and (self.count or 0) > SENTENCE_TOKENS:
            raise ValueError(
                f"count: a sentence has at most {SENTENCE_TOKENS} tokens, got {self.count}"
            )
        fillers_by_key = {
            "count": COUNTED,
            "separator": SEPARATED,
            "label": FILLERS,
        }
        for key, fillers in fillers_by_key.items():
            if getattr(self, key) not in (None, "") and self.filler not in fillers:
                raise ValueError(
                    f"{key}: needs one of {', '.join(fillers)}, got {self.filler or 'no filler'}"
                )
        if self.intervention and self.intervention.kind == "filler" and not self.filler:
            raise ValueError("intervention: the kind filler needs a condition with a filler")
        return self

    @property
    def filler(self) -> str | None:
        """The key of the filler, one of `FILLERS`. None: the condition has no filler."""
        return next((key for key in FILLERS if getattr(self, key) is not None), None)

    @property
    def tokens(self) -> int | None:
        """The stated number of filler tokens: 0 without a filler, None if it is not stated."""
        if self.filler is None:
            return 0
        return self.count if self.random_ids is None else self.random_ids

    @property
    def is_exact(self) -> bool:
        """Whether every prompt must have exactly the stated number of filler tokens.

        Blank units cannot promise this, since tokenizers merge blanks.
        """
        return self.tokens is not None and (self.unit is None or bool(self.unit.strip()))

    @property
    def filler_tokens(self) -> int | None:
        """The exact number of filler tokens in every prompt; None if there is no such number."""
        return self.tokens if self.is_exact else None

    @property
    def _has_random_draw(self) -> bool:
        return self.filler == "random_ids" or self.placement is Placement.RANDOM

    @property
    def filler_content(self) -> tuple[object, ...]:
        """What distinguishes two fillers of the same length and placement."""
        return (
            # the number of random ids is a length
            *(getattr(self, key) for key in FILLERS if key != "random_ids"),
            self.filler,
            self.separator,
            self.label,
            self.seed if self._has_random_draw else None,
        )

    @property
    def words(self) -> str:
        """The other changes of the prompt besides the filler, and the intervention."""
        changes = {key: getattr(self, key) for key in (*WORDS, "intervention")}
        return ", ".join(f"{key} {value!r}" for key, value in changes.items() if value)

    @property
    def is_plain(self) -> bool:
        """Whether its prompts are those of the baseline."""
        # an empty instruction is an instruction
        has_usual_words = self.instruction is None and not self.cue and not self.answer_prefix
        return self.filler is None and has_usual_words

    @property
    def reference(self) -> dict[str, Any]:
        """The fields of a reference condition; empty for a condition of the config."""
        return {key: getattr(self, key) for key in REFERENCE_FIELDS} if self.kind else {}

    def filler_text(
        self,
        count_tokens: Callable[[str], int] = estimate_tokens,
        words: Sequence[str] = (),
    ) -> str:
        """The filler as text; empty for a repeated problem.

        Args:
            count_tokens: Counts the tokens that a text has in the prompt. By default the length of
                a sentence is estimated: one token for each word and each comma.
            words: The words that are one token after a blank. Random ids are drawn from them.

        Raises:
            ConfigError: the filler needs a tokenizer, or no such filler has exactly this length.
        """
        if self.unit is not None:
            return (self.separator or "").join([self.unit] * (self.count or 0))
        if self.sentence is not None:
            return cut_sentence(SENTENCES[self.sentence - 1].split(), self.count or 0, count_tokens)
        if self.random_ids is not None:
            draw = random.Random(self.seed)
            return draw_words(words, self.random_ids, count_tokens, draw)
        if self.token_ids is not None:
            raise ConfigError(
                "A filler given as `token_ids` needs the model's tokenizer. "
                "Name the model, or a `unit`."
            )
        return self.text or ""

    def recorded(self) -> str | dict[str, Any]:
        """The entry of a config from which `as_condition` reads this condition again."""
        if self == named_conditions().get(self.name):
            return self.name
        values = self.model_dump(mode="json")
        recorded = {key: value for key, value in values.items() if value not in (None, "")}
        if self.filler in SEPARATED:
            recorded["separator"] = self.separator  # an empty separator is a value too
        return recorded

    def describe(self) -> dict[str, Any]:
        """The columns that tables have of a condition: all that a sweep can vary.

        Returns:
            `filler`: the repeated text or the kind of filler, and its label, separator and seed;
            None without a filler. `filler_tokens`: the exact length, 0 without a filler, None if
            there is none. `placement`: None without a filler. `words`: the other changes.
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
                description = "random tokens"
            case "text":
                description = "own text"
            case _:
                description = "problem"
        if self.label:
            description += f", label {self.label!r}"
        if self.separator is not None and self.separator != _usual_separator(self.unit):
            description += f", separator {self.separator!r}"
        if self._has_random_draw and self.seed != DEFAULT_SEED:
            description += f", seed {self.seed!r}"
        return description


def _usual_separator(unit: object) -> str:
    """The separator of a condition that sets none: nothing between blank units, else a blank."""
    return "" if isinstance(unit, str) and not unit.strip() else " "


@cache
def named_conditions() -> dict[str, Condition]:
    """The study's four conditions by name, in the order of tables and figures."""
    fillers: dict[str, dict[str, Any]] = {
        BASELINE: {},
        STUDIED: {"unit": "/"},
        "mful": {"unit": "he"},
        "random": {"sentence": 4},  # drawn at random once, and fixed since
    }
    return {name: Condition(name=name, **filler) for name, filler in fillers.items()}


def as_condition(value: Any) -> Condition:
    """Read an entry of a config: a name of the study's conditions, or a mapping.

    Raises:
        ConfigError: the entry is neither, describes no condition, or has the name of a condition of
            the study.
    """
    study = named_conditions()
    if isinstance(value, str) and value in study:
        return study[value]
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"Expected a condition, one of {list_near(str(value), study)}, or a mapping such as "
            f"{{name: dots, unit: '.'}}, got {value!r}."
        )
    where = f"condition {value.get('name', '')!r}"
    condition = validate(Condition, value, where)
    if condition.is_plain and not condition.intervention:
        raise ConfigError(
            f"{where} changes nothing: expected one of {', '.join((*FILLERS, *WORDS))}."
        )
    if condition.name in study:
        raise ConfigError(f"{where} has the name of a condition of the study.")
    return condition


def find_baseline(names: Sequence[str], configured: str | None = None) -> str:
    """Choose the baseline of a run: the configured condition, else `wo`, else the first.

    A single condition is compared with `wo` of another run.
    """
    if configured:
        return configured
    return BASELINE if BASELINE in names or len(names) < 2 else names[0]


def contrast_name(condition: str, baseline: str = BASELINE) -> str:
    """The text of a contrast of two conditions: `mless - wo`."""
    return f"{condition} - {baseline}"


def read_contrast(text: str) -> tuple[str, str]:
    """Read a contrast such as `mless - wo` into the condition and its baseline.

    Raises:
        ConfigError: the text is not two names with ` - ` between them.
    """
    condition, _, baseline = (name.strip() for name in str(text).partition(" - "))
    if not (condition and baseline):
        raise ConfigError(
            f"Expected a contrast of two conditions, such as '{contrast_name('mless')}', "
            f"got {text!r}."
        )
    return condition, baseline
