"""The fillers: what can be inserted into a prompt, each with the number of tokens that it must have.

A filler whose tokens can be counted beforehand states its `count`, and every prompt is checked for it. Text of one's
own and a repeated problem have as many tokens as they have (`count` is None), and the dry run reports how many.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import yaml

from harness import resources
from harness.errors import ConfigError

STUDY_COUNT = 55
"""Number of filler tokens in the study's main setting: that of the authors' code. The paper sweeps 0 to 70."""

DEFAULT_SEED = 1234
"""Seed of what is drawn at random here: the sentence, and a random placement."""


SENTENCES: tuple[str, ...] = tuple(yaml.safe_load(resources.sentences().read_text(encoding="utf-8")))
"""Unrelated sentences. The filler of the condition `random` is cut from one of them."""

_DRAWS = 100
_PADDING_WORDS = ("and", "so", "in", "a", "he", "the", "to", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filler:
    """A filler that repeats one text, or a list of token ids, up to `count` tokens.

    Attributes:
        unit: The repeated text. It must be one token in the model's tokenizer, which is measured. A blank unit, such as
            a line break, is repeated too, but tokenizers merge it: its tokens are reported.
        token_ids: The exact token ids, instead of a unit. A shorter list is repeated until `count` is reached.
        count: Number of tokens that the filler must have.
        separator: Text between two units. A space keeps most tokenizers from merging neighbours.

    Raises:
        ConfigError: `count` is below 1, the unit is empty, or unit and token_ids are both given or both missing.
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
        if self.unit == "":
            raise ConfigError("A filler's `unit` is empty: expected text, which may be a blank. For none use `wo`.")
        if self.token_ids is not None and (not self.token_ids or min(self.token_ids) < 0):
            raise ConfigError(
                "A filler's `token_ids` must be a non-empty list of ids from 0 up, "
                f"got {list(self.token_ids)!r}. Look the ids up with the model's tokenizer."
            )

    @property
    def exact(self) -> bool:
        """Whether it can have exactly `count` tokens: blanks cannot, since tokenizers merge them."""
        return self.unit is None or bool(self.unit.strip())

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
        if self.count > LONGEST:
            raise ConfigError(
                f"The random sentence can have at most {LONGEST} tokens, got count {self.count}. "
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
    """A filler of words drawn at random from a model's vocabulary, each one token where it follows a blank.

    Attributes:
        count: Number of tokens that the filler must have.
        seed: Draws them.
        fresh: Whether they are drawn anew for each sample of each problem.

    Raises:
        ConfigError: `count` is below 1.
    """

    count: int = STUDY_COUNT
    seed: int = DEFAULT_SEED
    fresh: bool = False

    def __post_init__(self) -> None:
        _check_count(self.count)

    def text(
        self,
        words: Sequence[str] = (),
        count_tokens: Callable[[str], int] = lambda text: len(text.split()),
        key: str | None = None,
    ) -> str:
        """The filler as text.

        Args:
            words: The words that are one token each where they follow a blank.
            count_tokens: Counts a text's tokens as it will stand in the prompt; by default its words.
            key: The problem, if each has a draw of its own.

        Raises:
            ConfigError: there are no such words, or none of many draws has the count.
        """
        draw = random.Random(self.seed if key is None else f"{self.seed}/{key}")
        for _ in range(_DRAWS if words else 0):
            drawn = draw.choices(words, k=self.count)
            while drawn and (got := count_tokens(" ".join(drawn))) >= self.count:  # the first word follows no blank
                if got == self.count:
                    return " ".join(drawn)
                drawn.pop()
        raise ConfigError(
            "Random tokens are drawn from the words of the model's vocabulary, and no draw of these has "
            f"{self.count} tokens. Name the model's tokenizer (--set model.arguments.tokenizer=NAME), or leave them "
            "(random_ids, filler_null) out."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnText:
    """A filler that is a text of one's own, whatever its number of tokens.

    Attributes:
        content: The text.

    Raises:
        ConfigError: it is empty.
    """

    content: str
    count: None = None

    def __post_init__(self) -> None:
        if not self.content:
            raise ConfigError("A filler's `text` is empty: expected some text. For no filler use `wo`.")

    def text(self) -> str:
        """The text."""
        return self.content


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedProblem:
    """A filler that is the problem itself, so that it stands in the prompt several times.

    Attributes:
        times: How often it stands there in all.

    Raises:
        ConfigError: that is less than twice.
    """

    times: int
    count: None = None

    def __post_init__(self) -> None:
        if self.times < 2:
            raise ConfigError(f"repeat_problem: expected 2 times or more in all, got {self.times}. For once use `wo`.")

    def text(self) -> str:
        """Nothing: each prompt has its own, which `build_prompt` knows."""
        return ""


AnyFiller = Filler | Sentence | RandomTokens | OwnText | RepeatedProblem


def is_exact(filler: AnyFiller) -> bool:
    """Whether the filler states how many tokens it has, all of them its own. A prompt that breaks this is refused."""
    return filler.exact if isinstance(filler, Filler) else filler.count is not None


def _check_count(count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(
            f"A filler's `count` must be a whole number of tokens from 1 up, got {count!r}. "
            "For no filler use the condition `wo`."
        )


def _estimated_tokens(words: list[str]) -> int:
    """Tokens of plain English in a large vocabulary: one per word, one per comma, one for the full stop."""
    return len(words) + sum(word.endswith(",") for word in words) + 1


LONGEST = min(_estimated_tokens(sentence.split()) for sentence in SENTENCES)
"""Tokens that every sentence has at least."""


def _as_sentence(words: list[str]) -> str:
    return " ".join(words).rstrip(",") + "."
