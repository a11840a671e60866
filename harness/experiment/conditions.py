"""The experimental conditions: what is inserted into the prompt, how much of it, and where.

A condition is a filler and a placement. The study compares no filler (`wo`) with 55 meaningless tokens (`mless`),
55 times one meaningful word (`mful`) and one unrelated sentence of the same length (`random`).

Yardsticks are what these are held against: harmless rewordings of the instruction without a filler (the prompt null),
other fillers of the same length (the filler null), and an answer at once, which must do harm (the positive control).

Source: Shi et al., "Meaningless Tokens, Meaningful Gains", arXiv 2510.01032, sections 2 and 4.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import cycle, islice
from typing import Literal

import yaml

from harness import resources
from harness.errors import ConfigError

STUDY_COUNT = 55
"""Number of filler tokens in the study's main setting: that of the authors' code. The paper sweeps 0 to 70."""

BASELINE = "wo"
"""The condition that all others are compared with."""

DEFAULT_SEED = 1234
"""Seed of what is drawn at random here: the sentence, and a random placement."""


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


class Placement(StrEnum):
    """Where the filler stands. The study finds `between` best and `end` fatal for Qwen2.5-Math-7B."""

    BEFORE_SYSTEM = "before_system"
    BETWEEN = "between"
    END = "end"
    RANDOM = "random"


SENTENCES: tuple[str, ...] = tuple(yaml.safe_load(resources.sentences().read_text(encoding="utf-8")))
"""Unrelated sentences. The filler of the condition `random` is cut from one of them."""

_DRAWS = 100
_PADDING_WORDS = ("and", "so", "in", "a", "he", "the", "to", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filler:
    """A filler that repeats one text, or a list of token ids, up to `count` tokens.

    Attributes:
        unit: The repeated text. It must be one token in the model's tokenizer, which is measured.
        token_ids: The exact token ids, instead of a unit. A shorter list is repeated until `count` is reached.
        count: Number of tokens that the filler must have.
        separator: Text between two units. A space keeps most tokenizers from merging neighbours.

    Raises:
        ConfigError: `count` is below 1, the unit is blank, or unit and token_ids are both given or both missing.
    """

    unit: str | None = None
    token_ids: tuple[int, ...] | None = None
    count: int = STUDY_COUNT
    separator: str = " "

    def __post_init__(self) -> None:
        _check_count(self.count)
        if (self.unit is None) == (self.token_ids is None):
            raise ConfigError(
                "A filler needs exactly one of `unit` and `token_ids`: "
                f"got unit={self.unit!r}, token_ids={self.token_ids!r}. Remove one, or give the missing one."
            )
        if self.unit is not None and not self.unit.strip():
            raise ConfigError(
                f"A filler's `unit` must hold a visible character, got {self.unit!r}. For no filler use `wo`."
            )
        if self.token_ids is not None and (not self.token_ids or min(self.token_ids) < 0):
            raise ConfigError(
                "A filler's `token_ids` must be a non-empty list of ids from 0 up, "
                f"got {list(self.token_ids)!r}. Look the ids up with the model's tokenizer."
            )

    def text(self) -> str:
        """The filler as text, if it repeats a unit.

        Raises:
            ConfigError: the filler is given as token ids, which only a tokenizer turns into text.
        """
        if self.unit is None:
            raise ConfigError(
                "A filler given as `token_ids` needs the model's tokenizer, and none was given. "
                "Name the model (pretrained=..., tokenizer=... or --model), or give a `unit` instead."
            )
        return self.separator.join([self.unit] * self.count)

    def repeated_ids(self) -> list[int]:
        """The filler's `token_ids`, repeated up to `count`; empty if it repeats a unit."""
        return list(islice(cycle(self.token_ids or ()), self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A filler that is one unrelated sentence, cut to `count` tokens.

    With a tokenizer the sentence has exactly `count` tokens: it is cut and, where needed, padded with short words.
    Without one it has about as many: each word is taken as one token, and each comma as another.

    Attributes:
        count: Number of tokens that the sentence must have.
        seed: Chooses one of `SENTENCES`, unless `number` does.
        number: The place of the sentence in `SENTENCES`, from 0.

    Raises:
        ConfigError: `count` is below 1 or more than the sentences hold, or there is no sentence of that number.
    """

    count: int = STUDY_COUNT
    seed: int = DEFAULT_SEED
    number: int | None = None

    def __post_init__(self) -> None:
        _check_count(self.count)
        if self.number is not None and not 0 <= self.number < len(SENTENCES):
            raise ConfigError(
                f"There are {len(SENTENCES)} sentences: expected 1 to {len(SENTENCES)}, got {self.number + 1}."
            )
        if self.count > _LONGEST:
            raise ConfigError(
                f"The random sentence can have at most {_LONGEST} tokens, got count {self.count}. "
                "Lower the count, or use a repeated unit."
            )

    def text(self, count_tokens: Callable[[str], int] | None = None) -> str:
        """The sentence as text. `count_tokens` counts a candidate's tokens as it will stand in the prompt."""
        drawn = random.Random(self.seed).choice(SENTENCES)
        words = (drawn if self.number is None else SENTENCES[self.number]).split()
        if count_tokens is None:
            fitting = [size for size in range(1, len(words) + 1) if _estimated_tokens(words[:size]) <= self.count]
            return _as_sentence(words[: max(fitting, default=1)])
        for size in range(min(len(words), self.count), 0, -1):
            missing = self.count - count_tokens(_as_sentence(words[:size]))
            if missing < 0:
                continue
            for shift in range(len(_PADDING_WORDS)):
                padding = [_PADDING_WORDS[(shift + i) % len(_PADDING_WORDS)] for i in range(missing)]
                for padded in range(missing, -1, -1):  # a padding word may be several tokens: then fewer words fit
                    candidate = _as_sentence(words[:size] + padding[:padded])
                    if (got := count_tokens(candidate)) == self.count:
                        return candidate
                    if got < self.count:
                        break
        raise ConfigError(
            f"No cut of the random sentence has exactly {self.count} tokens in this tokenizer. "
            "Choose another seed or count."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomTokens:
    """A filler of tokens drawn at random from a model's vocabulary, each of them one word.

    Attributes:
        count: Number of tokens that the filler must have.
        seed: Draws them.

    Raises:
        ConfigError: `count` is below 1.
    """

    count: int = STUDY_COUNT
    seed: int = DEFAULT_SEED

    def __post_init__(self) -> None:
        _check_count(self.count)

    def text(
        self, words: Sequence[str] = (), count_tokens: Callable[[str], int] = lambda text: len(text.split())
    ) -> str:
        """The filler as text.

        Args:
            words: The words that are one token each where they follow a blank.
            count_tokens: Counts a text's tokens as it will stand in the prompt; by default its words.

        Raises:
            ConfigError: there are no such words, or none of many draws has the count.
        """
        draw = random.Random(self.seed)
        for _ in range(_DRAWS if words else 0):
            drawn = draw.choices(words, k=self.count)
            while drawn and (got := count_tokens(" ".join(drawn))) >= self.count:  # the first word follows no blank
                if got == self.count:
                    return " ".join(drawn)
                drawn.pop()
        raise ConfigError(
            "Random tokens are drawn from the words of the model's vocabulary, and no draw of these has "
            f"{self.count} tokens. Name the model's tokenizer (--set model.arguments.tokenizer=NAME), or leave "
            "filler_null out."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Another wording of the same instruction.

    Attributes:
        instruction: The instruction's text.
        separator: The text between instruction and problem. None: the standard separator.
    """

    instruction: str
    separator: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One arm of the experiment: a filler at a placement, or no filler.

    Attributes:
        name: Its name in tables, figures and tasks.
        filler: What is inserted. None: nothing.
        placement: Where the filler is inserted.
        seed: Draws the place if the placement is `random`. Each problem gets a place of its own.
        edit: An edit of the instruction, which the prompt null has instead of a filler.
        answer_prefix: The beginning of the answer, which the prompt then ends in, and the model continues.
    """

    name: str
    filler: Filler | Sentence | RandomTokens | None = None
    placement: Placement = Placement.BETWEEN
    seed: int = DEFAULT_SEED
    edit: Edit | None = None
    answer_prefix: str = ""


CONTROL = Condition(name="control", answer_prefix="The final answer is $\\boxed{")
"""The positive control: the model must answer at once, without any working."""


def named_conditions() -> dict[str, Condition]:
    """The study's four conditions, by name, in the order in which tables and figures show them."""
    conditions = (
        Condition(name="wo"),
        Condition(name="mless", filler=Filler(unit="/")),
        Condition(name="mful", filler=Filler(unit="he")),
        Condition(name="random", filler=Sentence()),
    )
    return {condition.name: condition for condition in conditions}


def named_condition(name: str) -> Condition:
    """The study's condition of that name.

    Raises:
        ConfigError: there is no such condition. The message lists the four.
    """
    conditions = named_conditions()
    if name not in conditions:
        raise ConfigError(
            f"Unknown condition {name!r}: expected one of {', '.join(conditions)}, or an inline condition such as "
            "{name: dots, unit: '.', count: 55}."
        )
    return conditions[name]


@cache
def all_edits() -> tuple[Condition, ...]:
    """Every edit of the prompt null as a condition: `edit-01`, `edit-02`, ... in the order of rewordings.yaml."""
    entries = yaml.safe_load(resources.rewordings().read_text(encoding="utf-8"))
    return tuple(Condition(name=f"edit-{n:02}", edit=Edit(**entry)) for n, entry in enumerate(entries, start=1))


def first_edits(count: int) -> tuple[Condition, ...]:
    """The first `count` edits of the prompt null.

    Raises:
        ConfigError: there are fewer.
    """
    edits = all_edits()
    if not 0 <= count <= len(edits):
        raise ConfigError(f"prompt_null: expected 0 to {len(edits)} edits (experiment/rewordings.yaml), got {count}.")
    return edits[:count]


def other_fillers(number: int, like: Condition, own: Iterable[int] = ()) -> tuple[Condition, ...]:
    """So many other fillers of the length and at the place of a condition's: the filler null, `filler-01` and so on.

    Every other one is a sentence that neither the study's `random` nor the run has, while there are any of that length;
    the rest are random tokens.

    Args:
        number: How many.
        like: The condition.
        own: Places in `SENTENCES` of those that the run's conditions have.
    """
    assert like.filler is not None
    count = like.filler.count
    used = random.Random(DEFAULT_SEED).choice(SENTENCES)
    fits = count <= _LONGEST
    left = [place for place, text in enumerate(SENTENCES) if fits and text != used and place not in own]
    found = []
    for place in range(number):
        sentence = place % 2 == 0 and bool(left)
        filler = Sentence(count=count, number=left.pop(0)) if sentence else RandomTokens(count=count, seed=place + 1)
        name = f"filler-{place + 1:02}"
        found.append(Condition(name=name, filler=filler, placement=like.placement, seed=like.seed))
    return tuple(found)


Yardstick = Literal["rewording", "other filler", "positive control"]


def yardstick(name: str) -> Yardstick | None:
    """What kind of yardstick a condition of this name is. None: it is a condition of the experiment itself."""
    if any(edit.name == name for edit in all_edits()):
        return "rewording"
    if name == CONTROL.name:
        return "positive control"
    return "other filler" if re.fullmatch(r"filler-(?!00)\d\d", name) else None


def find_yardsticks(names: Iterable[str]) -> dict[str, Yardstick]:
    """Those of the conditions that are yardsticks, with the kind of each, as `analysis.compare` takes them."""
    return {str(name): kind for name in names if (kind := yardstick(str(name)))}


def group_name(name: str) -> str:
    """What a condition is shown under while there is one line for all yardsticks of a kind: its name, or the kind."""
    kind = yardstick(name)
    return name if kind is None else kind if kind == "positive control" else f"{kind}s"


def _check_count(count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(
            f"A filler's `count` must be a whole number of tokens from 1 up, got {count!r}. "
            "For no filler use the condition `wo`."
        )


def _estimated_tokens(words: list[str]) -> int:
    """Tokens of plain English in a large vocabulary: one per word, one per comma, one for the full stop."""
    return len(words) + sum(word.endswith(",") for word in words) + 1


_LONGEST = min(_estimated_tokens(sentence.split()) for sentence in SENTENCES)
"""Tokens that every sentence has at least."""


def _as_sentence(words: list[str]) -> str:
    return " ".join(words).rstrip(",") + "."
