"""Does an effect hold under other instructions?

The same problems are asked under several instructions. Instructions and problems are crossed random
effects, so the interval of the mean holds for new instructions of the same kind and new problems.
"""

from collections.abc import Iterator, Mapping, Sequence

import pandas

from harness.analysis.crossed_effects import pool_pairs
from harness.analysis.outcomes import Outcomes, OutcomesByCondition, Setting
from harness.constants import FEWEST_INSTRUCTIONS, Row
from harness.experiment.conditions import OTHER_INSTRUCTION, OTHER_TEXT, ReferenceConditions

INSTRUCTION_COLUMNS = {
    "model": "the model's label",
    "layout": "raw, chat or as_published",
    "condition": "the condition, or a contrast such as mless - random",
    "instructions": "instructions, including that of the config",
    "problems": "number of problems",
    "difference": "mean difference over the instructions",
    "new_low": "lower end of its 95 % interval for new instructions and new problems",
    "new_high": "upper end",
    "new_p": "p-value that belongs to this interval",
    "least": "lowest difference under one instruction",
    "most": "highest difference under one instruction",
    "low": "lower end of its 95 % interval for these instructions and new problems",
    "high": "upper end",
    "effects": "difference, lower and upper end under each instruction, that of the config first",
}
"""Meaning of each column of `instructions_table`."""


def merge_instructions(
    frame: pandas.DataFrame, reference_conditions: ReferenceConditions
) -> pandas.DataFrame:
    """Turn samples under other instructions into samples of the conditions themselves.

    The column `instruction` has the number of a sample's instruction.

    Args:
        frame: One row per sample, from `samples_frame.make_frame`. Without other instructions it
            is returned unchanged.
        reference_conditions: By name, with kind, `of` and number.
    """
    names = frame["condition"].astype(str)
    kinds = {name: reference_conditions.get(name, {}).get("kind") for name in names.unique()}
    if OTHER_INSTRUCTION not in kinds.values():
        return frame
    # other texts are asked under the run's instruction alone, so their samples are too few
    is_kept = names.map(kinds) != OTHER_TEXT
    frame, names = frame[is_kept], names[is_kept]
    instructions = {
        name: fields
        for name, fields in reference_conditions.items()
        if fields["kind"] == OTHER_INSTRUCTION
    }
    numbers = {name: fields["number"] for name, fields in instructions.items()}
    merged_names = {name: fields["of"] for name, fields in instructions.items()}
    merged_conditions = [name for name in names.unique() if name not in instructions]
    numbers_by_sample = names.map(numbers).fillna(0).astype(int)
    conditions_by_sample = names.map(merged_names).fillna(names)
    return frame.assign(
        condition=pandas.Categorical(conditions_by_sample, merged_conditions, ordered=True),
        # each merged condition numbers its samples from 0, and a number must not occur twice
        sample_index=frame["sample_index"] + numbers_by_sample * (1 + frame["sample_index"].max()),
        instruction=numbers_by_sample,
    ).sort_values("condition", kind="stable", ignore_index=True)


def instructions_table(
    by_setting: Mapping[Setting, OutcomesByCondition],
    contrasts: Mapping[str, tuple[str, str]],
    reference_conditions: ReferenceConditions,
) -> pandas.DataFrame:
    """Each contrast over all instructions that both of its conditions were asked under.

    Args:
        by_setting: From `outcomes.group_by_setting`, split by model and layout alone.
        contrasts: The condition and what it is compared with, by their entry in the column
            `condition`.
        reference_conditions: See `merge_instructions`.
    """
    names = {
        (fields["of"], fields["number"]): name
        for name, fields in reference_conditions.items()
        if fields["kind"] == OTHER_INSTRUCTION
    }
    rows: list[Row] = []
    for setting, by_condition in by_setting.items():
        for name, contrast in contrasts.items():
            pairs = list(_pair_by_instruction(contrast, by_condition, names))
            if len(pairs) >= FEWEST_INSTRUCTIONS:
                rows.append({**dict(setting), "condition": name, **_compare_instructions(pairs)})
    return pandas.DataFrame(rows, columns=list(INSTRUCTION_COLUMNS))


def _pair_by_instruction(
    contrast: tuple[str, str],
    by_condition: OutcomesByCondition,
    names: Mapping[tuple[str, int], str],
) -> Iterator[tuple[Outcomes, Outcomes]]:
    """The outcomes before and after under each instruction, that of the run first."""
    number, (condition, baseline) = 0, contrast
    # The numbers begin with 0, the run's own instruction, and have no gaps. So the first missing
    # condition ends the loop.
    while condition in by_condition and baseline in by_condition:
        yield by_condition[baseline][0], by_condition[condition][0]
        number += 1
        condition, baseline = (names.get((name, number), "") for name in contrast)


def _compare_instructions(pairs: Sequence[tuple[Outcomes, Outcomes]]) -> Row:
    """The columns of a contrast."""
    effects = []
    for pair in pairs:
        effect = pool_pairs([pair])
        effects.append([effect[key] for key in ("difference", "low", "high")])
    differences = [difference for difference, _, _ in effects]
    return {
        "instructions": len(pairs),
        **pool_pairs(pairs),
        "least": min(differences),
        "most": max(differences),
        "effects": effects,
    }
