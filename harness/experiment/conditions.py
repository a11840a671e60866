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
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Literal

import yaml

from harness import resources
from harness.errors import ConfigError
from harness.experiment.fillers import (
    DEFAULT_SEED,
    LONGEST,
    SENTENCES,
    AnyFiller,
    Filler,
    RandomTokens,
    Sentence,
    is_exact,
)

BASELINE = "wo"
"""The condition that all others are compared with."""


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
    """Where the filler stands. The study finds `between` best and `end` fatal for Qwen2.5-Math-7B.

    `between` instruction and problem, at the `end` of the question, at a `random` word of it, or at the beginning of
    the model's own `answer`, which it continues.
    """

    BEFORE_SYSTEM = "before_system"
    BETWEEN = "between"
    END = "end"
    RANDOM = "random"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Another instruction, such as another wording of the same.

    Attributes:
        instruction: The instruction's text.
        separator: The text between instruction and problem. None: the standard separator.
    """

    instruction: str
    separator: str | None = None


_APART = 1_000_003
"""Between the seeds of two samples, so that no other condition's seed is one of them: see `Condition.for_samples`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One arm of the experiment: a filler at a placement, or another change of the prompt.

    Attributes:
        name: Its name in tables, figures and tasks.
        filler: What is inserted. None: nothing.
        placement: Where the filler is inserted.
        seed: Draws the place if the placement is `random`. Each problem gets a place of its own.
        edit: Another instruction: that of the condition itself, or one of the prompt null.
        label: Words before the filler, such as `Filler:`.
        cue: Words after the question, such as `Answer:`.
        answer_prefix: The beginning of the answer, which the prompt then ends in, and the model continues.
    """

    name: str
    filler: AnyFiller | None = None
    placement: Placement = Placement.BETWEEN
    seed: int = DEFAULT_SEED
    edit: Edit | None = None
    label: str = ""
    cue: str = ""
    answer_prefix: str = ""

    def for_samples(self, count: int) -> list[Condition]:
        """The condition as each sample of a problem has it. Empty, unless they differ: its tokens are drawn anew."""
        filler = self.filler
        if not (isinstance(filler, RandomTokens) and filler.fresh):
            return []
        return [replace(self, filler=replace(filler, seed=filler.seed + _APART * index)) for index in range(count)]

    @property
    def is_plain(self) -> bool:
        """Whether its prompts are those of the baseline."""
        return self.filler is None and self.edit is None and not (self.cue or self.answer_prefix)


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
    count = like.filler.count if like.filler and is_exact(like.filler) else None
    if count is None:
        raise ConfigError(
            f"filler_null: other fillers have the length of {like.name!r}, and its tokens are not counted beforehand: "
            "expected a filler with a count. Make another contrast the primary one, or leave filler_null out."
        )
    used = random.Random(DEFAULT_SEED).choice(SENTENCES)
    fits = count <= LONGEST
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
