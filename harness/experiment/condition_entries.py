"""Expands the entries of a config into conditions: sweeps and references.

References are conditions that a run adds to those of its config: other texts in place of a filler,
and a positive control, which must lower the accuracy. Each combination of a sweep has a name. If
the config has another condition of the positive control's name, the control gets a longer name.
"""

import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice, product
from typing import Any

from harness.constants import BASELINE, DEFAULT_SEED, STUDY_CONDITION, JsonObject
from harness.errors import ConfigError
from harness.experiment.conditions import (
    OTHER_TEXT,
    POSITIVE_CONTROL,
    PROMPT_KEYS,
    SENTENCES,
    Condition,
    Placement,
    RandomCondition,
    SentenceCondition,
    as_condition,
    read_contrast,
)
from harness.experiment.intervention_settings import as_list, concerns_filler
from harness.yaml_settings import validate

# `model_construct` does not validate. The schema would refuse `kind`, which a config must not set.
ANSWER_AT_ONCE = Condition.model_construct(
    name="answer-at-once", answer_prefix="The final answer is $\\boxed{", kind=POSITIVE_CONTROL
)
"""The positive control: the model must answer without reasoning."""
NO_EXAMPLES = Condition.model_construct(
    name="no-examples", kind=POSITIVE_CONTROL, has_examples=False
)
"""The positive control with `answer: line`, where all answers are immediate: no examples."""
NAME_BY_SIGN = {
    "/": "slash",
    "\\": "backslash",
    ".": "dot",
    "?": "question",
    " ": "blank",
    "\n": "break",
    "-": "dash",
}
"""Words for signs in the names of swept conditions. Other signs have their Unicode names."""
MOST_NAME_CHARACTERS = 24
"""A value that is spelled with more characters has the name of its key and a number instead."""


def expand_sweep(sweep: Any) -> list[str | JsonObject]:
    """Make a condition for each combination of a sweep, named after its values: `slash-25-between`.

    A count of 0 gives the combination without the filler: the baseline, or a condition that has
    only the other changes of the combination. A combination of empty values is the baseline.

    Args:
        sweep: Keys of a condition, each with one value or a list. The first key varies slowest.

    Raises:
        ConfigError: the sweep is not a mapping, or one of its lists is empty.
    """
    if not isinstance(sweep, Mapping) or [] in sweep.values():
        raise ConfigError(f"sweep: expected a list for each key of a condition, got {sweep!r}.")
    values_by_key = {key: as_list(value) for key, value in sweep.items()}
    entries: list[str | JsonObject] = []
    for combination in product(*values_by_key.values()):
        settings = dict(zip(values_by_key, combination, strict=True))
        # `count: False` and `count: 0.0` equal 0 as well, and are refused later
        has_zero_count = type(settings.get("count")) is int and settings["count"] == 0
        if has_zero_count or all(value in ("", None) for value in combination):
            settings = _leave_out_filler(settings)
        # an empty value has no spelling
        spellings = [
            _spell_value(key, value, values_by_key[key]) for key, value in settings.items()
        ]
        name = "-".join(filter(None, spellings))
        entry = {"name": name, **settings} if settings else BASELINE
        # The prompt without the filler of `count: 0` is the same for all fillers, and is run once.
        # Any other two entries are equal because a value is listed twice: both are kept, so that
        # the config is refused for conditions of the same name.
        if not (has_zero_count and entry in entries):
            entries.append(entry)
    return entries


def _leave_out_filler(settings: JsonObject) -> JsonObject:
    """The settings of a combination that do not need its filler.

    An intervention on the filler needs it, and any other intervention stays.
    """
    changes_filler = concerns_filler(settings.get("intervention"))
    keys = PROMPT_KEYS if changes_filler else (*PROMPT_KEYS, "intervention")
    return {key: settings[key] for key in keys if settings.get(key)}


def _spell_value(key: str, value: Any, swept_values: list[Any]) -> str:
    """Spell a value of a sweep in letters, digits and hyphens.

    - An intervention has its keys and values: {'kind': 'attention', 'part': 'filler', 'weight':
      0.5} is `attention-part-filler-weight-0_5`.
    - A number other than the count has its key: `seed-2`.
    - A placement is itself: `before-system`.
    - A template, and a text with a long spelling, has its key and its number among the values of
      the key: `template-2`.
    - Any other text has words for its signs: `slash`.
    """
    hyphenated_key = key.replace("_", "-")
    text = str(value or "")
    if key == "intervention":
        # The text is Python's form of a mapping, or of a list of mappings, as in the example above.
        # A minus becomes a word, because all signs become hyphens below.
        text = text.replace("'kind': ", "").replace(" -", " minus")
        # so that the list `1, 3` has another name than the range `1-3`
        text = re.sub(r"(?<=\d)(\.|'?, ?'?)(?=\d)", "_", text)
        return re.sub(r"\W+", "-", text, flags=re.ASCII).strip("-")
    if isinstance(value, int) and key != "count":
        return f"{hyphenated_key}-{value}"
    if key == "placement":
        return str(value).replace("_", "-")
    # blanks are named only if the text has nothing else
    spelling = re.sub(r"[^A-Za-z0-9\s]" if text.strip() else r"\s", _name_sign, text)
    spelling = re.sub(r"[^A-Za-z0-9]+", "-", spelling).strip("-")
    if value and (key in ("template", "question") or len(spelling) > MOST_NAME_CHARACTERS):
        return f"{hyphenated_key}-{swept_values.index(value) + 1}"
    return spelling


def _name_sign(match: re.Match[str]) -> str:
    """The word for a sign, between hyphens."""
    return f"-{NAME_BY_SIGN.get(match[0]) or unicodedata.name(match[0], 'sign').lower()}-"


def add_reference_conditions(
    conditions: Sequence[Condition], config: JsonObject, tested_name: str | None
) -> tuple[Condition, ...]:
    """Add the positive control and other texts to conditions, and mark fillers in a template.

    Args:
        conditions: The conditions of the config.
        config: The config as plain values.
        tested_name: The condition of the primary contrast.

    Raises:
        ConfigError: the tested condition has no filler of an exact length, a family of other texts
            has too few for it, or a condition has the name of a text.
    """
    condition_names = {condition.name for condition in conditions}
    templates = config.get("template"), config.get("question")
    all_conditions = [
        condition.model_copy(update={"is_in_template": condition.mentions_filler(*templates)})
        for condition in conditions
    ]
    if config.get("positive_control"):
        control = NO_EXAMPLES if config.get("answer") == "line" else ANSWER_AT_ONCE
        control_name = control.name
        # a condition of the config may have this name
        while control_name in condition_names:
            control_name += "_"
        all_conditions.append(control.model_copy(update={"name": control_name}))
    if config.get("other_texts"):
        all_conditions += _make_other_texts(all_conditions, tested_name, config)
    return tuple(all_conditions)


def _make_other_texts(
    conditions: Sequence[Condition], tested_name: str | None, config: JsonObject
) -> list[Condition]:
    """Conditions with another text of the tested filler's length, at its place.

    They are the first texts of each family, so a larger number keeps the earlier ones. A text that
    a condition has is left out.

    Raises:
        ConfigError: see `add_reference_conditions`.
    """
    condition_by_name = {condition.name: condition for condition in conditions}
    tested_condition = condition_by_name.get(str(tested_name))
    if (
        tested_condition is None
        or not tested_condition.filler_tokens
        or tested_condition.intervention
    ):
        raise ConfigError(
            "other_texts: expected a primary contrast whose condition has a filler of an exact "
            f"number of tokens and no intervention, got {tested_name}"
        )
    descriptions = [condition.describe() for condition in conditions]
    text_conditions = []
    for family, text_count in config["other_texts"].items():
        candidates = _draw_other_texts(tested_condition, family, config.get("seed", DEFAULT_SEED))
        new_candidates = (
            candidate for candidate in candidates if candidate.describe() not in descriptions
        )
        family_conditions = list(islice(new_candidates, text_count))
        if len(family_conditions) < text_count:
            raise ConfigError(
                f"other_texts.{family}: expected at most {len(family_conditions)}, got {text_count}"
            )
        for condition in family_conditions:
            if condition.name in condition_by_name:
                raise ConfigError(
                    f"conditions: {condition.name} is also the name of a text of "
                    f"other_texts.{family}"
                )
        text_conditions.extend(family_conditions)
    return text_conditions


def _draw_other_texts(tested_condition: Condition, family: str, seed: int) -> Iterator[Condition]:
    """Yield the texts of a family in the order in which a run takes them, each as a condition.

    A text has a number in its family, which is part of its name. Sentences have their numbers in
    sentences.yaml, and each comes once, in random order. Random texts are numbered from 1 without
    an end, and the seed of a text is that of the run plus its number. Apart from the filler, each
    condition has the settings of the tested one.

    Raises:
        ConfigError: random texts would also change the place of the filler.
    """
    numbers: Iterable[int] = count(1)
    if family == "sentences":
        numbers = random.Random(f"{seed}:{family}").sample(
            range(1, len(SENTENCES) + 1), len(SENTENCES)
        )
    elif getattr(tested_condition, "placement", None) is Placement.RANDOM:
        raise ConfigError(
            f"other_texts.{family}: the seed of a text would also change the random placement of "
            f"{tested_condition.name}"
        )
    condition_class = SentenceCondition if family == "sentences" else RandomCondition
    tested_settings = tested_condition.model_dump(include={*PROMPT_KEYS, "placement", "seed"})
    for number in numbers:
        if family == "sentences":
            filler_settings = {
                "name": f"sentence-{number}",
                "sentence": number,
                "count": tested_condition.filler_tokens,
            }
        else:
            filler_settings = {
                "name": f"random-tokens-{number}",
                "random_ids": tested_condition.filler_tokens,
                "seed": seed + number,
            }
        condition = validate(
            condition_class, tested_settings | filler_settings, f"other_texts.{family}"
        )
        # not validated, because a config must not set these fields
        yield condition.model_copy(
            update={
                "kind": OTHER_TEXT,
                "of": tested_condition.name,
                "number": number,
                "is_in_template": tested_condition.is_in_template,
            }
        )


def index_entries(entries: Iterable[Any]) -> dict[str, JsonObject]:
    """Index the mappings among the entries of `conditions` by name."""
    return {
        entry["name"]: entry
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }


def read_conditions(config: JsonObject) -> dict[str, Condition]:
    """Read all conditions of a recorded config, by name; see `RunConfig.all_conditions`."""
    # without a named primary contrast, the primary contrast is that of the study's condition
    primary = config.get("primary")
    tested_name = read_contrast(primary)[0] if primary else STUDY_CONDITION
    conditions = [as_condition(entry) for entry in config["conditions"]]
    return {
        condition.name: condition
        for condition in add_reference_conditions(conditions, config, tested_name)
    }
