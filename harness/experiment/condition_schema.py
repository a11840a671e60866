"""Conditions as configs write them: a name, or a mapping that describes a filler."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, StrictInt, ValidationError

from harness.errors import ConfigError
from harness.experiment import conditions
from harness.experiment.conditions import DEFAULT_SEED, SENTENCES, Condition, Filler, Placement, RandomTokens, Sentence
from harness.experiment.yaml_settings import Strict, explain


class ConditionConfig(Strict):
    """A filler described in a config: a repeated unit, token ids or one of our sentences, with its length and place.

    Attributes:
        name: What tables call it.
        unit: The text that is repeated; one token in the model's tokenizer.
        token_ids: The exact token ids instead; a shorter list is repeated.
        sentence: The number of a sentence in sentences.yaml instead, from 1. `sentences: 3` in its place makes three
            conditions, with sentences drawn by the seed.
        count: The tokens of the filler.
        separator: The text between two units.
        placement: Where the filler stands: `before_system`, `between`, `end`, or `random`.
        seed: Draws sentences, and the place of each problem's filler if that is random.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-]+$")
    unit: str | None = None
    token_ids: tuple[int, ...] | None = None
    sentence: StrictInt | None = None
    count: StrictInt = conditions.STUDY_COUNT
    separator: str = " "
    placement: Placement = Placement.BETWEEN
    seed: int = DEFAULT_SEED

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Condition:
        """The condition that these values describe.

        Raises:
            ConfigError: a value does not fit. The message names its key and what was expected.
        """
        try:
            given = cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(explain(error, f"condition {values.get('name', '')!r}", cls)) from None
        filler: Filler | Sentence
        if given.sentence is None:
            filler = Filler(unit=given.unit, token_ids=given.token_ids, count=given.count, separator=given.separator)
        elif given.unit is None and given.token_ids is None:
            filler = Sentence(count=given.count, number=given.sentence - 1)
        else:
            raise ConfigError(f"Condition {given.name!r}: expected one of unit, token_ids and sentence, got several.")
        return Condition(name=given.name, filler=filler, placement=given.placement, seed=given.seed)


def as_condition(value: Any) -> Condition:
    """The condition of an entry in a config: the study's, if it is a name, or the one that a mapping describes.

    Raises:
        ConfigError: the entry is neither, describes no condition, or takes a name that stands for another condition.
    """
    if isinstance(value, str):
        return conditions.named_condition(value)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"conditions: expected a name or a mapping such as {{name: dots, unit: '.'}}, got {value!r}. "
            "Quote names that YAML reads as something else."
        )
    condition = ConditionConfig.parse(value)
    if condition.name in conditions.named_conditions() or conditions.yardstick(condition.name):
        raise ConfigError(
            f"conditions: the name {condition.name!r} is the study's own condition's or a yardstick's. Give the "
            "inline condition another name."
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
        rest = dict(value)
        count = rest.pop("sentences")
        if not isinstance(count, int) or not 1 <= count <= len(SENTENCES):
            raise ConfigError(f"conditions: sentences: expected 1 to {len(SENTENCES)}, got {count!r}.")
        drawn = random.Random(rest.get("seed", DEFAULT_SEED)).sample(range(len(SENTENCES)), count)
        for place, number in enumerate(drawn, start=1):
            expanded.append({**rest, "name": f"{rest.get('name', 'sentence')}-{place}", "sentence": number + 1})
    return expanded


def drawn_names(name: str, chosen: Iterable[Condition]) -> tuple[str, ...]:
    """The names of the conditions that `draw_sentences` made of `{name: NAME, sentences: N}`; empty if it made none."""
    names = [condition.name for condition in chosen if isinstance(condition.filler, Sentence)]
    return tuple(found for found in names if re.fullmatch(rf"{re.escape(name)}-\d+", found))


def to_yaml(condition: Condition) -> str | dict[str, Any]:
    """The entry of a config that makes the condition again."""
    filler = condition.filler
    if filler is None or condition == conditions.named_conditions().get(condition.name):
        return condition.name
    assert not isinstance(filler, RandomTokens)  # which no config can ask for by name
    if isinstance(filler, Sentence):
        assert filler.number is not None  # only the study's own sentence is chosen by its seed
        content: dict[str, Any] = {"sentence": filler.number + 1}
    elif filler.unit is not None:
        content = {"unit": filler.unit, "separator": filler.separator}
    else:
        content = {"token_ids": list(filler.token_ids or ()), "separator": filler.separator}
    ends = {"count": filler.count, "placement": str(condition.placement), "seed": condition.seed}
    return {"name": condition.name, **content, **ends}
