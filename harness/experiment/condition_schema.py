"""Conditions as configs write them: a name, or a mapping that describes a filler. docs/conditions.md is its grammar."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field, StrictInt, ValidationError

from harness.errors import ConfigError
from harness.experiment import conditions
from harness.experiment.conditions import Condition, Edit, Placement
from harness.experiment.fillers import (
    DEFAULT_SEED,
    SENTENCES,
    STUDY_COUNT,
    AnyFiller,
    Filler,
    OwnText,
    RandomTokens,
    RepeatedProblem,
    Sentence,
    is_exact,
)
from harness.yaml_settings import Strict, explain

COUNTED = ("unit", "token_ids", "sentence")
"""The fillers whose number of tokens `count` says."""
FILLERS = (*COUNTED, "text", "file", "count_to", "random_ids", "repeat_problem")
"""The keys that say what a condition's filler is; it has one of them at most."""
_OTHERWISE = ("instruction", "cue", "answer_prefix")
"""What a condition without a filler can change."""
MOST = 100_000
"""More tokens, numbers or repetitions fit in no model's context, and would take hours to build."""


class ConditionConfig(Strict):
    """A condition described in a config: the filler (one of the eight keys after the name), its length, and its place.

    Attributes:
        name: What tables call it.
        unit: A text that is repeated; one token in the model's tokenizer. It may be a blank or a line break.
        token_ids: The exact token ids; a shorter list is repeated.
        sentence: The number of a sentence in sentences.yaml, from 1. `sentences: 3` in its place makes three
            conditions, with sentences drawn by the seed.
        text: A text of your own.
        file: A file with it.
        count_to: The numbers from 1 to this one.
        random_ids: So many tokens, drawn from the words of the model's vocabulary.
        repeat_problem: How often the problem stands in the prompt in all, instead of once.
        fresh: Draw random ids anew for each sample of each problem, instead of once for the run.
        count: The tokens of a unit, token ids or a sentence. By default 55.
        separator: The text between two units. By default a blank, and nothing between blank units.
        placement: Where the filler stands: `before_system`, `between`, `end`, `random`, or in the model's own `answer`.
        seed: Draws sentences, tokens, and the place of each problem's filler if that is random.
        label: Words before the filler, such as `Filler:`.
        instruction: The condition's own system prompt.
        cue: Words after the question, such as `Answer:`.
        answer_prefix: The beginning of the model's answer, which it continues.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-]+$")
    unit: str | None = None
    token_ids: tuple[int, ...] | None = None
    sentence: StrictInt | None = None
    text: str | None = None
    file: Path | None = None
    count_to: StrictInt | None = Field(default=None, ge=1, le=MOST)
    random_ids: StrictInt | None = Field(default=None, ge=1, le=MOST)
    repeat_problem: StrictInt | None = Field(default=None, le=MOST)
    fresh: bool = False
    count: StrictInt | None = Field(default=None, le=MOST)
    separator: str | None = None
    placement: Placement = Placement.BETWEEN
    seed: int = DEFAULT_SEED
    label: str = ""
    instruction: str | None = Field(default=None, min_length=1)
    cue: str = ""
    answer_prefix: str = ""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Condition:
        """The condition that these values describe.

        Raises:
            ConfigError: a value does not fit. The message names its key and what was expected.
        """
        if halved := next((key for key, value in values.items() if isinstance(value, str) and not _is_text(value)), ""):
            raise ConfigError(f"conditions: {halved}: expected Unicode text, got half a character: {values[halved]!r}.")
        try:
            given = cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(explain(error, f"condition {values.get('name', '')!r}", cls)) from None
        try:
            filler = given._filler()
        except ConfigError as error:
            where = f"condition {given.name!r}"
            raise error if str(error).startswith(where) else ConfigError(f"{where}: {error}") from None
        return Condition(
            name=given.name,
            filler=filler,
            placement=given.placement,
            seed=given.seed,
            edit=None if given.instruction is None else Edit(instruction=given.instruction),
            label=given.label,
            cue=given.cue,
            answer_prefix=given.answer_prefix,
        )

    def _filler(self) -> AnyFiller | None:
        """What is inserted.

        Raises:
            ConfigError: it is named several times or not at all, or a key does not go with it.
        """
        where = f"condition {self.name!r}"
        named = [key for key in FILLERS if getattr(self, key) is not None]
        if len(named) > 1:
            raise ConfigError(f"{where}: expected one filler, got {' and '.join(named)}. Keep one of them.")
        if not (named or any(getattr(self, key) for key in _OTHERWISE)):
            raise ConfigError(
                f"{where} changes nothing: expected a filler ({', '.join(FILLERS)}), or one of "
                f"{', '.join(_OTHERWISE)}. For the prompt without a filler use `wo`."
            )
        kind = named[0] if named else ""
        fit = {"count": COUNTED, "separator": COUNTED[:2], "label": FILLERS, "fresh": ("random_ids",)}
        for key, fillers in fit.items():
            if getattr(self, key) not in (None, "", False) and kind not in fillers:
                raise ConfigError(f"{where}: {key} goes with {', '.join(fillers)}, got {kind or 'none'}. Remove it.")
        count = STUDY_COUNT if self.count is None else self.count
        match kind:
            case "":
                return None
            case "sentence":
                return Sentence(count=count, number=(self.sentence or 0) - 1)
            case "text":
                return OwnText(content=str(self.text))
            case "file":
                return OwnText(content=_read_text(self.file, where))
            case "count_to":
                return OwnText(content=" ".join(map(str, range(1, (self.count_to or 0) + 1))))
            case "random_ids":
                return RandomTokens(count=self.random_ids or 0, seed=self.seed, fresh=self.fresh)
            case "repeat_problem":
                return RepeatedProblem(times=self.repeat_problem or 0)
        separator = _usual_separator(self.unit) if self.separator is None else self.separator
        return Filler(unit=self.unit, token_ids=self.token_ids, count=count, separator=separator)


def _usual_separator(unit: str | None) -> str:
    return "" if unit is not None and not unit.strip() else " "


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_text(path: Path | None, where: str) -> str:
    """A file's text without the line break that ends it."""
    assert path is not None
    try:
        return path.expanduser().read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:  # the last is said of ~NAME where nobody has that name
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        why = "there is no such home folder" if isinstance(error, RuntimeError) else why
        raise ConfigError(f"{where}: file {path} cannot be read: {why}. Expected a text file.") from None


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
        if "sentence" in rest:
            raise ConfigError("conditions: expected `sentence` (one) or `sentences` (several), got both.")
        if not isinstance(count, int) or not 1 <= count <= len(SENTENCES):
            raise ConfigError(f"conditions: sentences: expected 1 to {len(SENTENCES)}, got {count!r}.")
        seed = rest.get("seed", DEFAULT_SEED)  # if it is no number, each condition says so
        drawn = random.Random(seed if isinstance(seed, int) else None).sample(range(len(SENTENCES)), count)
        for place, number in enumerate(drawn, start=1):
            expanded.append({**rest, "name": f"{rest.get('name', 'sentence')}-{place}", "sentence": number + 1})
    return expanded


_SPELT = {"/": "slash", "\\": "backslash", ".": "dot", "?": "question", " ": "blank", "\n": "break", "-": "dash"}
"""Words for signs in the names of swept conditions; other signs have the name that Unicode gives them."""


def expand_sweep(sweep: Mapping[str, Any]) -> list[str | dict[str, Any]]:
    """A condition for each combination of the values that a sweep lists, named after them: `slash-25-end`.

    A count of 0 is the combination without its filler: the baseline, or a condition with the same words otherwise.

    Args:
        sweep: Keys of a condition, each with a value or a list of them. The first key varies slowest.

    Raises:
        ConfigError: it is no such mapping, or two combinations have one name.
    """
    known = [key for key in ConditionConfig.model_fields if key != "name"]
    if not isinstance(sweep, Mapping) or not sweep or (unknown := [key for key in sweep if key not in known]):
        got = f"the key {unknown[0]!r}" if isinstance(sweep, Mapping) and sweep else repr(sweep)
        raise ConfigError(
            f"sweep: expected keys of a condition with lists, such as {{unit: ['/'], count: [10, 25]}}, got {got}. "
            f"The keys are {', '.join(known)}."
        )
    lists = {key: value if isinstance(value, list) else [value] for key, value in sweep.items()}
    if empty := next((key for key, values in lists.items() if not values), None):
        raise ConfigError(f"sweep: {empty} has no value: expected one or more. Add one, or remove the key.")
    arms: list[str | dict[str, Any]] = []
    for values in product(*lists.values()):
        one = dict(zip(lists, values, strict=True))
        without = type(one.get("count")) is int and one["count"] == 0
        if without or all(value in ("", None) for value in one.values()):
            one = {key: one[key] for key in _OTHERWISE if one.get(key)}
        name = "-".join(filter(None, (_spell(key, value) for key, value in one.items())))
        arm = {"name": name, **one} if one else conditions.BASELINE
        if arm not in arms or not without:
            arms.append(arm)
    names = [arm if isinstance(arm, str) else arm["name"] for arm in arms]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"sweep: two conditions would be called {doubled!r}. Name one of them in `conditions` instead."
        )
    return arms


def _spell(key: str, value: Any) -> str:
    """A value in letters, digits and hyphens; a number with its key, unless that is the count."""
    if isinstance(value, int) and key != "count":
        return f"{key.replace('_', '-')}-{value}"
    spelt = [
        one if one.isascii() and one.isalnum() else f"-{_SPELT.get(one) or unicodedata.name(one, 'sign').lower()}-"
        for one in str(value)
    ]
    return re.sub(r"[^A-Za-z0-9]+", "-", "".join(spelt)).strip("-")[:40]


def describe_factors(condition: Condition) -> dict[str, Any]:
    """What a sweep can vary of a condition: all of it but its name.

    Returns:
        `filler`: the repeated text, or the kind of filler, with what else makes it another one; None without one.
        `filler_tokens`: how many it states, 0 without one, None if it states none. `placement`: None without one.
        `words`: what else stands in the prompt; empty for the usual prompt.
    """
    filler = condition.filler
    said: str | None = None
    match filler:
        case Filler(unit=None):
            said = f"token ids {' '.join(map(str, filler.token_ids or ()))}"
        case Filler():
            said = filler.unit
        case Sentence():
            said = "sentence" if filler.number is None else f"sentence {filler.number + 1}"
        case RandomTokens():
            said = "fresh random tokens" if filler.fresh else "random tokens"
        case OwnText():
            said = "own text"
        case RepeatedProblem():
            said = "problem"
    changed: dict[str, object] = {"label": condition.label} if condition.label else {}
    if isinstance(filler, Filler) and filler.separator != _usual_separator(filler.unit):
        changed["separator"] = filler.separator
    if (isinstance(filler, RandomTokens) or condition.placement is Placement.RANDOM) and condition.seed != DEFAULT_SEED:
        changed["seed"] = condition.seed
    words = {"instruction": condition.edit and condition.edit.instruction}
    words |= {key: getattr(condition, key) for key in ("cue", "answer_prefix")}
    return {
        "filler": said and said + "".join(f", {key} {value!r}" for key, value in changed.items()),
        "filler_tokens": 0 if filler is None else filler.count if is_exact(filler) else None,
        "placement": str(condition.placement) if filler else None,
        "words": ", ".join(f"{key} {value!r}" for key, value in words.items() if value),
    }


def drawn_names(name: str, chosen: Iterable[Condition]) -> tuple[str, ...]:
    """The names of the conditions that `draw_sentences` made of `{name: NAME, sentences: N}`; empty if it made none."""
    names = [condition.name for condition in chosen if isinstance(condition.filler, Sentence)]
    return tuple(found for found in names if re.fullmatch(rf"{re.escape(name)}-\d+", found))


def to_yaml(condition: Condition) -> str | dict[str, Any]:
    """The entry of a config that makes the condition again."""
    if condition == conditions.named_conditions().get(condition.name):
        return condition.name
    filler = condition.filler
    content: dict[str, Any] = {}
    match filler:
        case Sentence():
            assert filler.number is not None  # only the study's own sentence is chosen by its seed
            content = {"sentence": filler.number + 1, "count": filler.count}
        case Filler():
            content = {"unit": filler.unit, "separator": filler.separator, "count": filler.count}
            if filler.unit is None:
                content["token_ids"] = list(filler.token_ids or ())
        case OwnText():
            content = {"text": filler.content}
        case RandomTokens():
            content = {"random_ids": filler.count, **({"fresh": True} if filler.fresh else {})}
        case RepeatedProblem():
            content = {"repeat_problem": filler.times}
    words = {key: getattr(condition, key) for key in ("label", "cue", "answer_prefix")}
    words["instruction"] = condition.edit.instruction if condition.edit else None
    given = {key: value for key, value in {**content, **words}.items() if value not in (None, "") or key == "separator"}
    return {"name": condition.name, **given, "placement": str(condition.placement), "seed": condition.seed}
