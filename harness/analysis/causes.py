"""What of a filler changes accuracy: the factorial of interventions on it, and what they do to activations.

The cells of a filler differ in three switches: whether other layers see it, and its scale and bias in some layers. Each
effect is a mean over all settings of the other switches, so all cells tell of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pandas

from harness.analysis.outcomes import Outcomes, Setting
from harness.analysis.pooled import pool_changes
from harness.analysis.tests import holm

SWITCHES = ("elsewhere", "scale", "bias")
"""The switches of a cell, in the order of `Condition.factors`. `elsewhere`: other layers see the filler."""

COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "condition": "the condition whose filler is taken apart",
    "layers": "the layers whose attention to it is switched",
    "effect": "the switch, or switches: half the difference that one of them makes to the effect of the others",
    "n": "problems",
    "difference": "accuracy with it on less accuracy with it off, mean over the settings of the others, points",
    "low": "lower end of its score interval",
    "high": "upper end",
    "p": "its two-sided p-value",
    "p_adjusted": "the same, adjusted for all effects of this filler in these layers (Holm)",
}
"""Meaning of each column of `factorial_table`."""


def factorial_table(
    settings: Mapping[Setting, Mapping[str, Sequence[Outcomes]]], factors: Mapping[str, Mapping[str, Any]]
) -> pandas.DataFrame:
    """Main effects and interactions of every filler all of whose cells were run; of later layers those that see it.

    Args:
        settings: As of `outcomes.by_setting`, split by model and layout alone.
        factors: Of each condition, as of `Condition.factors`.
    """
    fillers: dict[tuple[Any, ...], str] = {}
    cells: dict[tuple[Any, ...], dict[tuple[bool, ...], str]] = {}
    for name, of in factors.items():
        key = (of["filler"], of["filler_tokens"], of["placement"])
        if of["cell"]:
            cells.setdefault((key, of["cell"]["layers"]), {})[tuple(of["cell"]["on"])] = name
        elif of["filler"] and not of["words"]:
            fillers[key] = name
    rows: list[dict[str, Any]] = []
    for setting, arms in settings.items():
        for (key, layers), named in cells.items():
            every = {**named, (True, True, True): fillers.get(key, "")}
            found = {on: arms[name][0] for on, name in every.items() if name in arms}
            varied = (0, 1, 2) if len(found) == 8 else (1, 2)
            found = {on: one for on, one in found.items() if len(varied) == 3 or on[0]}
            if len(found) < 2 ** len(varied) or len({tuple(one.problem_ids) for one in found.values()}) > 1:
                continue
            about = {**dict(setting), "condition": fillers[key], "layers": layers}
            effects = [_effect(found, chosen) for size in (1, 2, 3) for chosen in combinations(varied, size)]
            adjusted = holm([effect["p"] for effect in effects])
            rows += [about | effect | {"p_adjusted": p} for effect, p in zip(effects, adjusted, strict=True)]
    return pandas.DataFrame(rows, columns=list(COLUMNS))


def _effect(cells: Mapping[tuple[bool, ...], Outcomes], chosen: Sequence[int]) -> dict[str, Any]:
    """One effect: half of the cells less the other half, by the product of the chosen switches' signs."""
    first = next(iter(cells.values()))
    signs = [prod(1 if on[switch] else -1 for switch in chosen) for on in cells]
    change = np.sum([sign * one.right for sign, one in zip(signs, cells.values(), strict=True)], axis=0)
    found = pool_changes([(change, len(cells) // 2 * first.k)], pandas.factorize(first.clusters)[0])
    kept = {name: found[name] for name in ("n", "difference", "low", "high", "p")}
    name = "all three" if len(chosen) == 3 else " x ".join(SWITCHES[switch] for switch in chosen)
    return {"effect": name, **kept}
