"""What is inserted, how much of it, and where: the experimental conditions.

A condition is a filler and a placement. The study compares no filler (`wo`) with 55 meaningless tokens (`mless`),
55 times one meaningful word (`mful`) and one unrelated sentence of the same length (`random`).

Source: Shi et al., "Meaningless Tokens, Meaningful Gains", arXiv 2510.01032, sections 2 and 4.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import yaml

from harness import resources
from harness.errors import ConfigError

STUDY_COUNT = 55
"""Filler tokens in the study's main setting (the authors' code; the paper sweeps 0 to 70)."""

BASELINE = "wo"
"""The condition that all others are compared with."""

DEFAULT_SEED = 1234
"""Seed of everything here that is drawn at random: the sentence, and a random placement."""


class Placement(StrEnum):
    """Where the filler stands. The study finds `between` best and `end` fatal for Qwen2.5-Math-7B."""

    BEFORE_SYSTEM = "before_system"
    BETWEEN = "between"
    END = "end"
    RANDOM = "random"


SENTENCES: tuple[str, ...] = tuple(yaml.safe_load(resources.sentences().read_text(encoding="utf-8")))
"""Unrelated sentences, which a condition `random` is cut from."""

_PADDING_WORDS = ("and", "so", "in", "a", "he", "the", "to", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filler:
    """A run of `count` copies of `unit`, or `count` token ids of one's own.

    Attributes:
        unit: The repeated text. One token each in the model's tokenizer: this is measured, never assumed.
        token_ids: Instead of a unit, the exact token ids; shorter lists are repeated until `count` is reached.
        count: Number of tokens that the filler must have.
        separator: Text between two units. A space keeps most tokenizers from merging neighbours.

    Raises:
        ConfigError: count below 1, neither or both of unit and token_ids, or an empty unit.
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

    def text(self, decode: Callable[[list[int]], str] | None = None) -> str:
        """The filler as text. `decode` turns token ids into text and is needed for `token_ids` only."""
        if self.unit is not None:
            return self.separator.join([self.unit] * self.count)
        if decode is None:
            raise ConfigError(
                "A filler given as `token_ids` needs the model's tokenizer, and none was given. "
                "Name the model (pretrained=..., tokenizer=... or --model), or give a `unit` instead."
            )
        assert self.token_ids is not None
        repeats = -(-self.count // len(self.token_ids))
        return decode(list(self.token_ids * repeats)[: self.count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One unrelated, varied sentence of `count` tokens, chosen and cut by seed.

    Without a tokenizer the sentence is cut by words to about `count` tokens (one word is taken as one token, a
    comma as another). With one it is cut, and padded with short words if need be, to exactly `count`.

    Attributes:
        count: Number of tokens that the sentence must have.
        seed: Chooses one of `SENTENCES`, unless `number` does.
        number: Which one, from 0.

    Raises:
        ConfigError: count below 1 or more than the sentences hold, or no such sentence.
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
        longest = min(_estimated_tokens(sentence.split()) for sentence in SENTENCES)
        if self.count > longest:
            raise ConfigError(
                f"The random sentence can have at most {longest} tokens, got count {self.count}. "
                "Lower the count, or use a repeated unit."
            )

    def text(self, count_tokens: Callable[[str], int] | None = None) -> str:
        """The sentence as text. `count_tokens` measures a candidate where it will stand in the prompt."""
        drawn = random.Random(self.seed).choice(SENTENCES)
        words = (drawn if self.number is None else SENTENCES[self.number]).split()
        if count_tokens is None:
            size = max(
                (n for n in range(1, len(words) + 1) if _estimated_tokens(words[:n]) <= self.count),
                default=1,
            )
            return _as_sentence(words[:size])
        for size in range(min(len(words), self.count), 0, -1):
            missing = self.count - count_tokens(_as_sentence(words[:size]))
            if missing < 0:
                continue
            for shift in range(len(_PADDING_WORDS)):
                padding = [_PADDING_WORDS[(shift + i) % len(_PADDING_WORDS)] for i in range(missing)]
                for padded in range(missing, -1, -1):  # fewer words where a padding word is several tokens
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
class Edit:
    """Another way to put the same instruction.

    Attributes:
        instruction: The instruction's text.
        separator: What stands between it and the problem; None for the standard one.
    """

    instruction: str
    separator: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One arm of the experiment: a filler (or none) at a placement.

    Attributes:
        name: What tables, figures and tasks call it.
        filler: What is inserted; None for the baseline.
        placement: Where it is inserted.
        seed: Draws the place when the placement is `random`; each problem gets its own place.
        edit: A harmless edit of the instruction instead of a filler, for the prompt null.
    """

    name: str
    filler: Filler | Sentence | None = None
    placement: Placement = Placement.BETWEEN
    seed: int = field(default=DEFAULT_SEED)
    edit: Edit | None = None


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
        ConfigError: there is none; the message lists those there are.
    """
    conditions = named_conditions()
    if name not in conditions:
        raise ConfigError(
            f"Unknown condition {name!r}: expected one of {', '.join(conditions)}, or an inline condition such as "
            "{name: dots, unit: '.', count: 55}."
        )
    return conditions[name]


def _check_count(count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(
            f"A filler's `count` must be a whole number of tokens from 1 up, got {count!r}. "
            "For no filler use the condition `wo`."
        )


def _estimated_tokens(words: list[str]) -> int:
    """Tokens of plain English words in a large vocabulary: one a word, one a comma, one for the full stop."""
    return len(words) + sum(word.endswith(",") for word in words) + 1


def _as_sentence(words: list[str]) -> str:
    return " ".join(words).rstrip(",") + "."
