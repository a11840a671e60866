"""What of a filler changes accuracy: interventions that show the model a part of it, against the position gap.

The cells of a filler differ in three switches: whether other layers see it, and its scale and bias in some layers. Each
cell is compared with the position gap, where only the positions after the filler are moved. So an effect belongs to one
prompt and one computation, and is no mean over cells.

Scale gives original tokens less weight by the weight of the filler, and bias adds the filler's values with that weight.
Only both together, or neither, are attention: with scale alone the weights add up to less than 1, with bias alone to
more. Such cells separate the parts of a sum. No prompt makes a model compute them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from harness.analysis.count_correct import Outcomes, Setting, refuse_unpaired
from harness.analysis.paired_tests import holm
from harness.analysis.pool_models import estimate_over_draws
from harness.experiment.conditions import Condition

CAUSE_COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "filler": "the condition with the filler as it is",
    "condition": "the condition that is compared with the position gap",
    "layers": "the layers whose attention to the filler is switched; missing for the filler as it is",
    "valid_attention": "whether the attention weights add up to 1: scale and bias are both on, or both off",
    "problems": "number of problems",
    "difference": "accuracy less that of the position gap, points",
    "low": "lower end of its 95 % interval",
    "high": "upper end",
    "p": "its two-sided p-value",
    "p_adjusted": "the same, adjusted for all conditions of this filler (Holm)",
}
"""Meaning of each column of `causes_table`."""


def causes_table(
    settings: Mapping[Setting, Mapping[str, Sequence[Outcomes]]],
    conditions: Mapping[str, Condition],
) -> pandas.DataFrame:
    """The filler as it is, and each of its cells, against the position gap.

    Args:
        settings: As of `count_correct.by_setting`, split by model and layout alone.
        conditions: The config's, by name.
    """
    fillers: dict[tuple[Any, ...], str] = {}
    gaps: dict[tuple[Any, ...], str] = {}
    cells: dict[tuple[Any, ...], list[str]] = {}
    for name, condition in conditions.items():
        key = (condition.filler_content, condition.filler_tokens, condition.placement)
        if condition.cell:
            if not any(condition.cell["on"]):
                gaps[key] = name
            else:
                cells.setdefault(key, []).append(name)
        elif condition.filler and not condition.words:
            fillers[key] = name
    rows: list[dict[str, Any]] = []
    for setting, arms in settings.items():
        for key, gap in gaps.items():
            if gap not in arms or key not in fillers:
                continue
            names = [name for name in (fillers[key], *cells.get(key, [])) if name in arms]
            effects = [_compare_with_gap(arms[gap][0], arms[name][0]) for name in names]
            adjusted = holm([effect["p"] for effect in effects])
            for name, effect, p in zip(names, effects, adjusted.tolist(), strict=True):
                cell = conditions[name].cell or {"layers": None, "on": [True, True, True]}
                _, scale, bias = cell["on"]
                about = {
                    **dict(setting),
                    "filler": fillers[key],
                    "condition": name,
                    "layers": cell["layers"],
                }
                rows.append({**about, "valid_attention": scale == bias, **effect, "p_adjusted": p})
    return pandas.DataFrame(rows, columns=list(CAUSE_COLUMNS))


def _compare_with_gap(gap: Outcomes, cell: Outcomes) -> dict[str, Any]:
    refuse_unpaired(gap, cell)
    changes = gap.by_draw(cell.right_by_prompt - gap.right_by_prompt)
    effect = estimate_over_draws(changes, gap.by_draw(gap.samples_by_prompt), gap.clusters)
    low, high = effect.interval()
    points = {"difference": effect.difference, "low": low, "high": high}
    return {
        "problems": len(gap.clusters),
        "p": effect.p,
        **{name: 100 * share for name, share in points.items()},
    }
