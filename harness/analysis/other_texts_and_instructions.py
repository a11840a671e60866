"""Does an effect hold for other texts and under other instructions?

Both tables have a mean over several prompts that were asked about the same problems. Prompts and
problems are crossed random effects, so the interval holds for new prompts of the same kind and new
problems.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas

from harness.analysis.count_correct import Arms, Outcomes, Row, Setting
from harness.analysis.crossed_effects import pool_pairs
from harness.constants import FEWEST_INSTRUCTIONS, FEWEST_TEXTS
from harness.experiment.conditions import OTHER_INSTRUCTION, Condition, ReferenceConditions

KINDS = {"sentence": "sentences", "random_ids": "random tokens"}
"""Names of the kinds of text in the table, by the kind of filler."""

TEXT_COLUMNS = {
    "model": "the model's label",
    "layout": "raw, chat or as_published",
    "condition": "the condition",
    "kind": "kind of the other texts: sentences or random tokens",
    "texts": "other texts of the same length at the same placement",
    "least": "lowest accuracy with one of them, percent",
    "most": "highest accuracy with one of them, percent",
    "problems": "number of problems",
    "difference": "accuracy minus the mean accuracy with these texts",
    "new_low": "lower end of its 95 % interval for new texts and new problems",
    "new_high": "upper end",
    "new_p": "p-value that belongs to this interval",
}
"""Meaning of each column of `text_table`."""

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


def text_table(
    settings: Mapping[Setting, Arms], conditions: Mapping[str, Condition]
) -> pandas.DataFrame:
    """Each condition with a filler against the mean of other texts: a row for each kind of text.

    The texts have the length and placement of the condition's filler. A condition that is itself
    such a text has no row.

    Args:
        settings: From `count_correct.group_by_setting`, split by model and layout alone.
        conditions: The conditions of the config, by name.
    """
    fillers = {name: condition for name, condition in conditions.items() if condition.filler_tokens}
    texts: dict[tuple[Any, ...], list[str]] = {}
    for name, condition in fillers.items():
        if condition.filler in KINDS:
            key = (KINDS[condition.filler], _locate_filler(condition))
            texts.setdefault(key, []).append(name)
    groups = {key: names for key, names in texts.items() if len(names) >= FEWEST_TEXTS}
    grouped_names = set().union(*groups.values())
    rows: list[Row] = []
    for setting, arms in settings.items():
        for name, condition in fillers.items():
            # a text is not compared with a mean that contains it
            if name not in arms or name in grouped_names:
                continue
            for (kind, location), text_names in groups.items():
                prompts = [arms[text][0] for text in text_names if text in arms]
                if location != _locate_filler(condition) or len(prompts) < FEWEST_TEXTS:
                    continue
                accuracies = [100 * float((text.right / text.samples).mean()) for text in prompts]
                row = {**dict(setting), "condition": name, "kind": kind, "texts": len(prompts)}
                row |= {"least": min(accuracies), "most": max(accuracies)}
                rows.append(row | pool_pairs([(text, arms[name][0]) for text in prompts]))
    return pandas.DataFrame(rows, columns=list(TEXT_COLUMNS))


def merge_instructions(
    frame: pandas.DataFrame, reference_conditions: ReferenceConditions
) -> pandas.DataFrame:
    """Turn samples under other instructions into samples of the conditions themselves.

    The column `instruction` has the number of a sample's instruction.

    Args:
        frame: One row per sample, as of `samples_frame.read_frame`. Without other instructions it
            is returned unchanged.
        reference_conditions: By name, with kind, `of` and number.
    """
    conditions = [str(name) for name in frame["condition"].unique()]
    instructions = {
        name: fields
        for name, fields in reference_conditions.items()
        if fields["kind"] == OTHER_INSTRUCTION
    }
    if not instructions.keys() & set(conditions):
        return frame
    numbers = {name: fields["number"] for name, fields in instructions.items()}
    merged_names = {name: fields["of"] for name, fields in instructions.items()}
    merged_conditions = [name for name in conditions if name not in instructions]
    names = frame["condition"].astype(str)
    numbers_by_sample = names.map(lambda name: numbers.get(name, 0))
    conditions_by_sample = names.map(lambda name: merged_names.get(name, name))
    return frame.assign(
        condition=pandas.Categorical(conditions_by_sample, merged_conditions, ordered=True),
        # each merged condition numbers its samples from 0, and a number must not occur twice
        sample_index=frame["sample_index"] + numbers_by_sample * (1 + frame["sample_index"].max()),
        instruction=numbers_by_sample,
    ).sort_values("condition", kind="stable", ignore_index=True)


def instructions_table(
    settings: Mapping[Setting, Arms],
    contrasts: Mapping[str, tuple[str, str]],
    reference_conditions: ReferenceConditions,
) -> pandas.DataFrame:
    """Each contrast over all instructions that both of its conditions were asked under.

    Args:
        settings: From `count_correct.group_by_setting`, split by model and layout alone.
        contrasts: The condition and what it is compared with, by their entry in the column
            `condition`.
        reference_conditions: As of `merge_instructions`.
    """
    names = {
        (fields["of"], fields["number"]): name
        for name, fields in reference_conditions.items()
        if fields["kind"] == OTHER_INSTRUCTION
    }
    rows: list[Row] = []
    for setting, arms in settings.items():
        for name, contrast in contrasts.items():
            pairs = list(_pair_by_instruction(contrast, arms, names))
            if len(pairs) >= FEWEST_INSTRUCTIONS:
                rows.append({**dict(setting), "condition": name, **_compare_instructions(pairs)})
    return pandas.DataFrame(rows, columns=list(INSTRUCTION_COLUMNS))


def _pair_by_instruction(
    contrast: tuple[str, str], arms: Arms, names: Mapping[tuple[str, int], str]
) -> Iterator[tuple[Outcomes, Outcomes]]:
    """The outcomes before and after under each instruction, that of the run first."""
    number, (condition, baseline) = 0, contrast
    # The numbers begin with 0, the run's own instruction, and have no gaps. So the first missing
    # condition ends the loop.
    while condition in arms and baseline in arms:
        yield arms[baseline][0], arms[condition][0]
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


def _locate_filler(condition: Condition) -> tuple[Any, ...]:
    """What a condition and the texts that it is compared with must share."""
    return condition.filler_tokens, condition.describe()["placement"], condition.words
