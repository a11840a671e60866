"""From the entries of a config to all conditions of a run: sweeps, parts of a filler, and reference conditions.

Each entry that stands for several conditions names them. Where a config has given such a name to a condition of its
own, the new one gets another.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from harness.constants import BASELINE
from harness.errors import ConfigError
from harness.experiment.conditions import (
    OTHER_INSTRUCTION,
    POSITIVE_CONTROL,
    WORDS,
    Condition,
    as_condition,
    named_conditions,
)
from harness.layers_and_heads import parse_numbers

ANSWER_AT_ONCE = Condition(
    name="answer-at-once", answer_prefix="The final answer is $\\boxed{", kind=POSITIVE_CONTROL
)
"""The positive control: the model must answer without any working."""
NO_EXAMPLES = Condition(name="no-examples", kind=POSITIVE_CONTROL, has_examples=False)
"""The positive control where every condition is answered at once after examples: the question without them."""
CELLS = {
    "masked": (True, False, False),
    "no-scale": (True, False, True),
    "no-bias": (True, True, False),
    "layer-1": (False, True, True),
    "scale": (False, True, False),
    "bias": (False, False, True),
    "gap": (False, False, False),
}
"""The cells beside the filler itself: whether other layers see it, scale, bias. Later layers have the first three, and
the gap."""
SIGN_NAMES = {
    "/": "slash",
    "\\": "backslash",
    ".": "dot",
    "?": "question",
    " ": "blank",
    "\n": "break",
    "-": "dash",
}
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
    entries: list[str | dict[str, Any]] = []
    for values in product(*lists.values()):
        combination = dict(zip(lists, values, strict=True))
        without_filler = type(combination.get("count")) is int and combination["count"] == 0
        if without_filler or all(value in ("", None) for value in values):
            combination = {key: combination[key] for key in WORDS if combination.get(key)}
        name = "-".join(filter(None, (_spell(key, value) for key, value in combination.items())))
        entry = {"name": name, **combination} if combination else BASELINE
        if entry not in entries or not without_filler:
            entries.append(entry)
    return entries


def _spell(key: str, value: Any) -> str:
    """A value in letters, digits and hyphens; a number with its key, unless that is the count."""
    if isinstance(value, int) and key != "count":
        return f"{key.replace('_', '-')}-{value}"
    if key == "placement":
        return str(value).replace("_", "-")
    letters = [
        sign
        if sign.isascii() and sign.isalnum()
        else f"-{SIGN_NAMES.get(sign) or unicodedata.name(sign, 'sign').lower()}-"
        for sign in str(value)
    ]
    return re.sub(r"[^A-Za-z0-9]+", "-", "".join(letters)).strip("-")[:40]


def expand_causes(entries: Iterable[Any]) -> list[Any]:
    """The entries of `conditions`, with each `{causes: NAME, layers: ...}` as the cells of that condition's filler.

    Raises:
        ConfigError: there is no condition of that name.
    """
    entries = list(entries)
    sources: dict[str, Any] = {
        name: condition.model_dump(exclude_none=True, exclude={"separator", "placement"})
        for name, condition in named_conditions().items()
    }
    sources |= index_by_name(entries)
    taken = set(sources)
    cells = set[tuple[str, str, tuple[int, ...]]]()
    expanded: list[Any] = []
    for entry in entries:
        if not (isinstance(entry, dict) and "causes" in entry):
            expanded.append(entry)
            continue
        source, layers = (
            entry["causes"],
            parse_numbers(entry.get("layers", entry.get("layer")), "layers"),
        )
        is_complete = layers and not entry.keys() - {"causes", "layer", "layers"}
        if not is_complete or not isinstance(source, str) or source not in sources:
            raise ConfigError(
                f"conditions: expected {{causes: a condition with a filler, layers: 1}}, got {entry!r}."
            )
        is_first_layer = layers == (1,)
        span = f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])
        for cell, (other_layers, scale, bias) in CELLS.items():
            if not (other_layers or cell == "gap" or is_first_layer):
                continue
            # no layer sees the filler in the gap, so that it is one condition whatever the layers
            key = (source, cell, () if cell == "gap" else tuple(layers))
            if key in cells:
                continue
            cells.add(key)
            name = (
                f"{source}-{cell}" if cell == "gap" or is_first_layer else f"{source}-{span}-{cell}"
            )
            switches = {"other_layers": other_layers, "scale": scale, "bias": bias}
            intervention = {"kind": "filler", "layers": list(layers), **switches}
            expanded.append(
                {
                    **sources[source],
                    "name": find_free_name(name, taken),
                    "intervention": intervention,
                }
            )
    return expanded


def add_reference_conditions(
    conditions: Sequence[Condition],
    *,
    instructions: Iterable[str] = (),
    control: Condition | None = None,
) -> tuple[Condition, ...]:
    """The conditions of a config, the positive control, and all of these under every other instruction.

    Args:
        conditions: The config's.
        instructions: The other instructions.
        control: `ANSWER_AT_ONCE` or `NO_EXAMPLES`.
    """
    taken = {condition.name for condition in conditions}
    asked = list(conditions)
    if control is not None:
        asked.append(control.model_copy(update={"name": find_free_name(control.name, taken)}))
    others = []
    for number, instruction in enumerate(instructions, start=1):
        for condition in asked:
            name = find_free_name(f"{condition.name}-w{number:02}", taken)
            fields = {"kind": OTHER_INSTRUCTION, "of": condition.name, "number": number}
            others.append(
                condition.model_copy(update={"name": name, "instruction": instruction, **fields})
            )
    return (*asked, *others)


def index_by_name(entries: Any) -> dict[str, dict[str, Any]]:
    """The mappings among the entries of `conditions`, by name."""
    if not isinstance(entries, list):
        return {}
    mappings = [entry for entry in entries if isinstance(entry, dict)]
    return {entry["name"]: entry for entry in mappings if isinstance(entry.get("name"), str)}


def find_free_name(name: str, taken: set[str]) -> str:
    """The name, with underscores behind it if another condition has it; it is taken from now on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def read_conditions(config: Mapping[str, Any]) -> dict[str, Condition]:
    """All conditions of a recorded config, by name; see `RunConfig.all_conditions`."""
    across = config.get("across") or {}
    control = choose_control(config.get("answer")) if config.get("positive_control") else None
    conditions = add_reference_conditions(
        [as_condition(entry) for entry in config["conditions"]],
        instructions=across.get("instructions", ()),
        control=control,
    )
    return {condition.name: condition for condition in conditions}


def choose_control(answer: str | None) -> Condition:
    """The positive control of a run that reads its answers so: see `RunConfig.answer`."""
    return NO_EXAMPLES if answer == "line" else ANSWER_AT_ONCE
