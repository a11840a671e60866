"""Conditions as configs write them: a name, or a mapping that describes a filler."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, StrictInt, ValidationError

from harness.errors import ConfigError
from harness.experiment.conditions import (
    DEFAULT_SEED,
    SENTENCES,
    STUDY_COUNT,
    Condition,
    Filler,
    Placement,
    Sentence,
    named_condition,
    named_conditions,
)
from harness.experiment.rewordings import is_edit
from harness.experiment.yaml_settings import Strict, explain


class ConditionConfig(Strict):
    """An inline condition: a repeated unit, token ids, or one of our sentences; how many tokens, and where."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-]+$")
    unit: str | None = None
    token_ids: tuple[int, ...] | None = None
    sentence: StrictInt | None = None
    count: StrictInt = STUDY_COUNT
    separator: str = " "
    placement: Placement = Placement.BETWEEN
    seed: int = DEFAULT_SEED

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Condition:
        """A condition from raw values.

        Raises:
            ConfigError: naming the key and what it should be.
        """
        try:
            return cls.model_validate(dict(values)).condition()
        except ValidationError as error:
            raise ConfigError(explain(error, "condition", cls)) from None

    def condition(self) -> Condition:
        """The condition that this describes."""
        filler: Filler | Sentence
        if self.sentence is None:
            filler = Filler(unit=self.unit, token_ids=self.token_ids, count=self.count, separator=self.separator)
        elif self.unit is None and self.token_ids is None:
            filler = Sentence(count=self.count, number=self.sentence - 1)
        else:
            raise ConfigError(f"Condition {self.name!r}: expected one of unit, token_ids and sentence, got several.")
        return Condition(name=self.name, filler=filler, placement=self.placement, seed=self.seed)


def as_condition(value: Any) -> Condition:
    """A named condition from its name, an inline one from a mapping; a study's name stays the study's."""
    if isinstance(value, str):
        return named_condition(value)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"conditions: expected a name or a mapping such as {{name: dots, unit: '.'}}, got {value!r}. "
            "Quote names that YAML reads as something else."
        )
    condition = ConditionConfig.parse(value)
    if condition.name in named_conditions() or is_edit(condition.name):
        raise ConfigError(
            f"conditions: the name {condition.name!r} is the study's own condition or a prompt edit's. Give an inline "
            "one another name."
        )
    return condition


def draw_sentences(values: Any) -> Any:
    """`{name: X, sentences: 3}` becomes three conditions X-1, X-2, X-3, with sentences drawn by the seed."""
    if not isinstance(values, (list, tuple)):
        return values
    expanded: list[Any] = []
    for value in values:
        if not (isinstance(value, Mapping) and "sentences" in value):
            expanded.append(value)
            continue
        rest = {key: entry for key, entry in value.items() if key != "sentences"}
        count, seed = value["sentences"], rest.get("seed", DEFAULT_SEED)
        if not isinstance(count, int) or not 1 <= count <= len(SENTENCES):
            raise ConfigError(f"conditions: sentences: expected 1 to {len(SENTENCES)}, got {count!r}.")
        drawn = random.Random(seed).sample(range(len(SENTENCES)), count)
        expanded += [
            {**rest, "name": f"{rest.get('name', 'sentence')}-{place}", "sentence": number + 1}
            for place, number in enumerate(drawn, start=1)
        ]
    return expanded


def drawn_names(name: str, conditions: Iterable[Condition]) -> tuple[str, ...]:
    """What `draw_sentences` made of `{name: NAME, sentences: N}`; empty if it made nothing of that name."""
    names = [condition.name for condition in conditions if isinstance(condition.filler, Sentence)]
    return tuple(found for found in names if re.fullmatch(rf"{re.escape(name)}-\d+", found))


def to_yaml(condition: Condition) -> str | dict[str, Any]:
    """The name or mapping that makes the condition again."""
    if condition.filler is None or condition == named_conditions().get(condition.name):
        return condition.name
    filler = condition.filler
    if isinstance(filler, Sentence):
        assert filler.number is not None  # only the study's own is drawn by its seed
        content: dict[str, Any] = {"sentence": filler.number + 1}
    elif filler.unit is not None:
        content = {"unit": filler.unit, "separator": filler.separator}
    else:
        content = {"token_ids": list(filler.token_ids or ()), "separator": filler.separator}
    ends = {"count": filler.count, "placement": str(condition.placement), "seed": condition.seed}
    return {"name": condition.name, **content, **ends}
