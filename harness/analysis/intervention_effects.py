"""The table `causes`: how accuracy changes when an intervention switches a part of a filler off.

An intervention on a filler has three switches: whether the other layers see the filler, and its
scale and its bias in some layers. Each combination of switches is a cell of this design. A cell is
compared with the position gap, the cell that only moves the positions after the filler. So an
effect belongs to one prompt and one computation, and is no mean over cells.

Scale reduces the weight of the original tokens by the weight of the filler. Bias adds the filler's
values with this weight. Only with both or with neither do the attention weights add up to 1: with
scale alone their sum is less, with bias alone it is more. Such cells separate the terms of a sum;
no prompt makes a model compute them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas

from harness.analysis.count_correct import Arms, Outcomes, Row, Setting, refuse_unpaired
from harness.analysis.paired_tests import holm
from harness.analysis.pool_models import estimate_over_draws, to_points
from harness.experiment.conditions import Condition

CAUSE_COLUMNS = {
    "model": "the model's label",
    "layout": "raw, chat or as_published",
    "filler": "condition with the complete filler",
    "condition": "arm, or the complete filler, that is compared with the position gap",
    "layers": "layers of the arm's intervention; missing for the complete filler",
    "valid_attention": "whether attention weights add up to 1: scale and bias both on or both off",
    "problems": "number of problems",
    "difference": "accuracy minus that of the position gap",
    "low": "lower end of its 95 % interval",
    "high": "upper end",
    "p": "its p-value, not adjusted",
    "p_adjusted": "p after Holm over all arms of this filler",
}
"""Meaning of each column of `causes_table`."""


class _Cells(NamedTuple):
    """Names of a filler's conditions: as it is, its position gap, and its other cells."""

    filler: str
    gap: str
    switched: Sequence[str]


def causes_table(
    settings: Mapping[Setting, Arms], conditions: Mapping[str, Condition]
) -> pandas.DataFrame:
    """Each filler as it is, and each of its cells, compared with its position gap.

    Args:
        settings: From `count_correct.group_by_setting`, split by model and layout alone.
        conditions: The conditions of the config, by name.
    """
    rows: list[Row] = []
    for setting, arms in settings.items():
        for cells in _group_cells(conditions):
            if cells.gap not in arms:
                continue
            names = [name for name in (cells.filler, *cells.switched) if name in arms]
            effects = [_compare_with_gap(arms[cells.gap][0], arms[name][0]) for name in names]
            adjusted_p = holm([effect["p"] for effect in effects])
            for name, effect, p in zip(names, effects, adjusted_p.tolist(), strict=True):
                # the filler as it is has all three switches on
                cell = conditions[name].cell or {"layers": None, "on": [True, True, True]}
                _, has_scale, has_bias = cell["on"]
                row = {**dict(setting), "filler": cells.filler, "condition": name}
                row |= {"layers": cell["layers"], "valid_attention": has_scale == has_bias}
                rows.append({**row, **effect, "p_adjusted": p})
    return pandas.DataFrame(rows, columns=list(CAUSE_COLUMNS))


def _group_cells(conditions: Mapping[str, Condition]) -> list[_Cells]:
    """The cells of each filler that has a position gap: same content, length and placement."""
    fillers: dict[tuple[Any, ...], str] = {}
    gaps: dict[tuple[Any, ...], str] = {}
    switched_conditions: dict[tuple[Any, ...], list[str]] = {}
    for name, condition in conditions.items():
        key = (condition.filler_content, condition.filler_tokens, condition.placement)
        if condition.cell is None:
            if condition.filler and not condition.words:
                fillers[key] = name
        elif any(condition.cell["on"]):
            switched_conditions.setdefault(key, []).append(name)
        else:
            gaps[key] = name
    return [
        _Cells(fillers[key], gap, switched_conditions.get(key, []))
        for key, gap in gaps.items()
        if key in fillers
    ]


def _compare_with_gap(gap: Outcomes, cell: Outcomes) -> Row:
    """The columns of a cell's difference from the position gap."""
    refuse_unpaired(gap, cell)
    changes = gap.sum_by_draw(cell.right_by_prompt - gap.right_by_prompt)
    effect = estimate_over_draws(changes, gap.sum_by_draw(gap.samples_by_prompt), gap.clusters)
    return {"problems": len(gap.clusters), "p": effect.p, **to_points(effect)}
