"""The experimental conditions: what is inserted into the prompt, how much of it, and where.

A condition is a filler and a placement. The study compares no filler (`wo`) with 55 meaningless tokens (`mless`),
55 times one meaningful word (`mful`) and one unrelated sentence of the same length (`random`). A condition as it is
written in a config, as it is recorded, and as prompts are built from it are one model: `Condition`.

Yardsticks are what these are held against: the conditions under other instructions, and an answer at once, or one
without examples, which must do harm (the positive control).

Source: Shi et al., "Meaningless Tokens, Meaningful Gains", arXiv 2510.01032, sections 2 and 4.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, StrictInt, ValidationError, model_validator

from harness.constants import BASELINE, DEFAULT_SEED, MOST_TOKENS, STUDIED, STUDY_COUNT
from harness.errors import ConfigError
from harness.experiment.fillers import count_words, cut_sentence, cut_text, draw_words, estimate_tokens
from harness.experiment.interventions import Intervention
from harness.yaml_settings import Strict, explain

_HERE = Path(__file__).parent
SENTENCES: tuple[str, ...] = tuple(yaml.safe_load((_HERE / "sentences.yaml").read_text(encoding="utf-8")))
"""Unrelated sentences. The filler of the condition `random` is cut from one of them."""
COUNTED = ("unit", "token_ids", "sentence")
"""The fillers whose number of tokens `count` says. A `text` may have one too, and is then repeated and cut."""
FILLERS = (*COUNTED, "text", "random_ids", "repeat_problem")
"""The keys that say what a condition's filler is; it has one of them at most. `count_to` is read as a `text`."""
WORDS = ("instruction", "cue", "answer_prefix")
"""What a condition without a filler can change."""


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

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, values: Any) -> Any:
        """Counted numbers become a text, and the length and the separator have their usual values."""
        named = [key for key in (*FILLERS, "count_to") if values.get(key) is not None]
        if len(named) > 1:
            raise ValueError(f"expected one filler, got {' and '.join(named)}")
        values = dict(values)
        if isinstance(numbers := values.get("count_to"), int) and 0 < numbers <= MOST_TOKENS:
            values |= {"count_to": None, "text": " ".join(map(str, range(1, numbers + 1)))}
        if named and named[0] in COUNTED and values.get("count") is None:
            values["count"] = STUDY_COUNT
        if named and named[0] in COUNTED[:2] and values.get("separator") is None:
            unit = values.get("unit")
            values["separator"] = usual_separator(unit) if unit is None or isinstance(unit, str) else None
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        long = self.sentence is not None and (self.count or 0) > LONGEST
        faults = [f"count: a sentence has at most {LONGEST} tokens, got {self.count}"] if long else []
        fit = {"count": (*COUNTED, "text"), "separator": COUNTED[:2], "label": FILLERS, "fresh": ("random_ids",)}
        for key, fillers in fit.items():
            if getattr(self, key) not in (None, "", False) and self.filler not in fillers:
                faults.append(f"{key} goes with {', '.join(fillers)}, got {self.filler or 'none'}")
        if self.intervention and self.intervention.kind == "filler" and not self.filler:
            faults.append("intervention: of the kind filler, and the condition has none")
        if faults:
            raise ValueError(faults[0])
        return self

    @property
    def filler(self) -> str | None:
        """Which of `FILLERS` is inserted. None: nothing."""
        return next((key for key in FILLERS if getattr(self, key) is not None), None)

    @property
    def tokens(self) -> int | None:
        """The tokens that the filler states; 0 without one, None if it states none."""
        return 0 if self.filler is None else self.random_ids if self.random_ids is not None else self.count

    @property
    def exact(self) -> bool:
        """Whether the filler states how many tokens it has, all of them its own. A prompt that breaks this is refused.

        Blanks cannot, since tokenizers merge them.
        """
        return self.tokens is not None and (self.unit is None or bool(self.unit.strip()))

    @property
    def is_plain(self) -> bool:
        """Whether its prompts are those of the baseline."""
        return self.filler is None and self.instruction is None and not (self.cue or self.answer_prefix)

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
            raise ConfigError("A filler given as `token_ids` needs the model's tokenizer. Name the model, or a `unit`.")
        text = self.text or ""
        return text if self.count is None else cut_text(self.name, text, self.count, count_tokens or count_words)

    def recorded(self) -> str | dict[str, Any]:
        """The entry of a config that makes the condition again."""
        if self == named_conditions().get(self.name):
            return self.name
        values = self.model_dump(mode="json", exclude={"count_to"})
        kept = ("separator",) if self.filler in COUNTED[:2] else ()
        return {
            key: value
            for key, value in values.items()
            if (value is not False and value not in (None, "")) or key in kept
        }

    def factors(self) -> dict[str, Any]:
        """What a sweep can vary of the condition: all of it but its name.

        Returns:
            `filler`: the repeated text, or the kind of filler, with what else makes it another one; None without one.
            `filler_tokens`: how many it states, 0 without one, None if it states none. `placement`: None without one.
            `cell`: how a filler is taken apart. `words`: what else stands in the prompt, or is done to the model.
        """
        said = {
            None: None,
            "unit": self.unit,
            "token_ids": f"token ids {' '.join(map(str, self.token_ids or ()))}",
            "sentence": "sentence" if self.name == "random" else f"sentence {self.sentence}",
            "random_ids": "fresh random tokens" if self.fresh else "random tokens",
            "text": "own text",
            "repeat_problem": "problem",
        }[self.filler]
        changed: dict[str, object] = {"label": self.label} if self.label else {}
        if self.separator is not None and self.separator != usual_separator(self.unit):
            changed["separator"] = self.separator
        drawn = self.filler == "random_ids" or self.placement is Placement.RANDOM
        if drawn and self.seed != DEFAULT_SEED:
            changed["seed"] = self.seed
        return {
            "filler": said and said + "".join(f", {key} {value!r}" for key, value in changed.items()),
            "filler_tokens": self.tokens if self.exact else None,
            "placement": str(self.placement) if self.filler else None,
            "cell": self.intervention.cell if self.intervention and self.intervention.kind == "filler" else None,
            "words": ", ".join(f"{key} {value!r}" for key in (*WORDS, "intervention") if (value := getattr(self, key))),
        }


def usual_separator(unit: str | None) -> str:
    """What stands between two units unless told: nothing between blank ones."""
    return "" if unit is not None and not unit.strip() else " "


LONGEST = min(estimate_tokens(sentence.split()) for sentence in SENTENCES)
"""Tokens that every sentence has at least."""
CONTROL = Condition(name="control", answer_prefix="The final answer is $\\boxed{")
"""The positive control: the model must answer at once, without any working."""
UNSHOWN = Condition(name="no-examples")
"""The positive control where examples stand before the question, which answer at once: the question without them."""
CONTROLS = {CONTROL.name: "an answer at once, no working", UNSHOWN.name: "no examples before the question"}
"""What a positive control is, by its name."""


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
    named = named_conditions()
    if isinstance(value, str) and value in named:
        return named[value]
    if not isinstance(value, Mapping):
        expected = f"expected {', '.join(named)}, or a mapping such as {{name: dots, unit: '.'}}"
        raise ConfigError(f"conditions: {expected}, got {value!r}.")
    where = f"condition {value.get('name', '')!r}"
    try:
        condition = Condition.model_validate(value)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None
    taken = condition.name in named or yardstick(condition.name)
    for bad, what in (
        (
            condition.is_plain and not condition.intervention,
            f"changes nothing: expected one of {', '.join((*FILLERS, *WORDS))}",
        ),
        (taken, "has the name of one of the study's own conditions or of a yardstick"),
    ):
        if bad:
            raise ConfigError(f"{where} {what}.")
    return condition


SPELT = {"/": "slash", "\\": "backslash", ".": "dot", "?": "question", " ": "blank", "\n": "break", "-": "dash"}
"""Words for signs in the names of swept conditions; other signs have the name that Unicode gives them."""


def expand_sweep(sweep: Any) -> list[str | dict[str, Any]]:
    """A condition for each combination of the values that a sweep lists, named after them: `slash-25-end`.

    A count of 0 is the combination without its filler: the baseline, or a condition with the same words otherwise.

    Args:
        sweep: Keys of a condition, each with a value or a list of them. The first key varies slowest.

    Raises:
        ConfigError: it is no mapping.
    """
    if not isinstance(sweep, Mapping):
        raise ConfigError(f"sweep: expected lists by a condition's keys, got {sweep!r}.")
    lists = {key: value if isinstance(value, list) else [value] for key, value in sweep.items()}
    arms: list[str | dict[str, Any]] = []
    for values in product(*lists.values()):
        one = dict(zip(lists, values, strict=True))
        without = type(one.get("count")) is int and one["count"] == 0
        if without or all(value in ("", None) for value in one.values()):
            one = {key: one[key] for key in WORDS if one.get(key)}
        name = "-".join(filter(None, (_spell(key, value) for key, value in one.items())))
        arm = {"name": name, **one} if one else BASELINE
        if arm not in arms or not without:
            arms.append(arm)
    return arms


def _spell(key: str, value: Any) -> str:
    """A value in letters, digits and hyphens; a number with its key, unless that is the count."""
    if isinstance(value, int) and key != "count":
        return f"{key.replace('_', '-')}-{value}"
    if key == "placement":
        return str(value).replace("_", "-")
    spelt = [
        one if one.isascii() and one.isalnum() else f"-{SPELT.get(one) or unicodedata.name(one, 'sign').lower()}-"
        for one in str(value)
    ]
    return re.sub(r"[^A-Za-z0-9]+", "-", "".join(spelt)).strip("-")[:40]


def find_baseline(names: Sequence[str], named: str | None = None) -> str:
    """Which of a run's conditions the others are compared with: the one that its config names, `wo`, or the first.

    A single condition is compared with `wo` of another run.
    """
    return named or (BASELINE if BASELINE in names or len(names) < 2 else names[0])


def contrast_name(condition: str, baseline: str = BASELINE) -> str:
    """How a difference of two conditions is written: `mless - wo`."""
    return f"{condition} - {baseline}"


def read_contrast(text: str) -> tuple[str, str]:
    """The two conditions of a contrast such as `mless - wo`: the condition, and what it is compared with.

    Raises:
        ConfigError: it is not two names with ` - ` between them.
    """
    condition, _, baseline = (part.strip() for part in str(text).partition(" - "))
    if not (condition and baseline):
        raise ConfigError(f"Expected a contrast of two conditions, such as '{contrast_name('mless')}', got {text!r}.")
    return condition, baseline


def under_wording(name: str, number: int) -> str:
    """What a condition is called under the so many-th other instruction: `mless-w01`."""
    return f"{name}-w{number:02}"


Yardstick = Literal["other wording", "positive control"]


def yardstick(name: str) -> Yardstick | None:
    """What kind of yardstick a condition of this name is. None: it is a condition of the experiment itself."""
    if name in CONTROLS:
        return "positive control"
    return "other wording" if re.fullmatch(r".+-w(?!00)\d\d", name) else None


def find_yardsticks(names: Iterable[str]) -> dict[str, Yardstick]:
    """Those of the conditions that are yardsticks, with the kind of each, as `analysis.compare` takes them."""
    return {str(name): kind for name in names if (kind := yardstick(str(name)))}
