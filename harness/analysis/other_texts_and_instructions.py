"""Does an effect hold for one text in one prompt only? A condition against other texts, and under other instructions.

Both tables have a mean over several prompts, asked about the same problems. Prompts and problems are crossed random
effects, so the interval holds for new prompts of the same kind on new problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas

from harness.analysis.count_correct import Outcomes, Setting
from harness.analysis.pool_models import pool_changes
from harness.constants import ALPHA, FEWEST_INSTRUCTIONS, FEWEST_TEXTS
from harness.experiment.conditions import OTHER_INSTRUCTION, Condition

Arms = Mapping[str, Sequence[Outcomes]]
"""The outcomes of one setting by condition."""
KINDS = {"sentence": "sentences", "random_ids": "random tokens", "text": "own texts"}
"""What texts of a kind are called, by the key of their filler."""

TEXT_COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "condition": "the condition",
    "kind": "what it is held against: sentences, random tokens or own texts of its length, at its place",
    "texts": "how many of them",
    "least": "accuracy under the worst of them, percent",
    "most": "under the best",
    "problems": "number of problems",
    "difference": "accuracy less the mean under these texts, points",
    "new_low": "lower end of its interval for new texts of this kind, on new problems",
    "new_high": "upper end",
    "new_p": "its p-value; exploratory, so neither adjusted nor judged",
}
"""Meaning of each column of `text_table`."""

INSTRUCTION_COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "condition": "the condition, or a contrast with another baseline",
    "instructions": "instructions that it was asked under, its own among them",
    "problems": "number of problems",
    "difference": "mean over the instructions of the difference, points",
    "new_low": "lower end of its interval for new instructions of this kind, on new problems",
    "new_high": "upper end",
    "new_p": "its p-value",
    "least": "the least difference under one instruction and draw of examples, points",
    "most": "the greatest",
    "better": "instructions under which it is better, each with p < 0.05, not adjusted",
    "worse": "under which it is worse",
    "low": "lower end of the mean's interval for these instructions, on new problems",
    "high": "upper end",
    "effects": "difference, lower and upper end under each instruction, the run's own first",
}
"""Meaning of each column of `instructions_table`."""


def text_table(
    settings: Mapping[Setting, Arms], conditions: Mapping[str, Condition]
) -> pandas.DataFrame:
    """Each condition with a filler against the mean of other texts of its length and place: a row for each kind.

    A condition that is itself one of so many texts has no row.

    Args:
        settings: As of `count_correct.by_setting`, split by model and layout alone.
        conditions: The config's, by name.
    """
    fillers = {name: condition for name, condition in conditions.items() if condition.filler_tokens}
    texts: dict[tuple[Any, ...], list[str]] = {}
    for name, condition in fillers.items():
        if condition.filler in KINDS and not condition.fresh:
            texts.setdefault((KINDS[condition.filler], *_position(condition)), []).append(name)
    every = [name for names in texts.values() if len(names) >= FEWEST_TEXTS for name in names]
    rows: list[dict[str, Any]] = []
    for setting, arms in settings.items():
        for name in (name for name in fillers if name in arms and name not in every):
            for (kind, *place), members in texts.items():
                others = [arms[one][0] for one in members if one in arms]
                if place != _position(fillers[name]) or len(others) < FEWEST_TEXTS:
                    continue
                means = [100 * float((one.right / one.samples).mean()) for one in others]
                row = {**dict(setting), "condition": name, "kind": kind, "texts": len(others)}
                row |= {"least": min(means), "most": max(means)}
                rows.append(row | _over_prompts([(one, arms[name][0]) for one in others]))
    return pandas.DataFrame(rows, columns=list(TEXT_COLUMNS))


def merge_instructions(
    frame: pandas.DataFrame, reference_conditions: Mapping[str, Mapping[str, Any]]
) -> pandas.DataFrame:
    """The samples under other instructions as further samples of their condition, with a column `instruction`.

    Args:
        frame: One row per sample, as of `samples_frame.read_frame`. Without other instructions it is returned as it is.
        reference_conditions: By name, with kind, `of` and number.
    """
    conditions = [str(name) for name in frame["condition"].unique()]
    others = {
        name: fields
        for name, fields in reference_conditions.items()
        if fields["kind"] == OTHER_INSTRUCTION
    }
    if not others.keys() & set(conditions):
        return frame
    names = frame["condition"].astype(str)
    numbers = names.map(
        {name: others[name]["number"] if name in others else 0 for name in conditions}
    )
    merged = names.map(
        {name: others[name]["of"] if name in others else name for name in conditions}
    )
    return frame.assign(
        condition=pandas.Categorical(
            merged, [name for name in conditions if name not in others], ordered=True
        ),
        sample_index=frame["sample_index"] + numbers * (1 + frame["sample_index"].max()),
        instruction=numbers,
    ).sort_values("condition", kind="stable", ignore_index=True)


def instructions_table(
    settings: Mapping[Setting, Arms],
    contrasts: Mapping[str, tuple[str, str]],
    reference_conditions: Mapping[str, Mapping[str, Any]],
) -> pandas.DataFrame:
    """Each contrast over all instructions that its two conditions were asked under.

    Args:
        settings: As of `count_correct.by_setting`, split by model and layout alone.
        contrasts: What stands under `condition`, with the condition and what it is compared with.
        reference_conditions: As of `merge_instructions`.
    """
    names = {
        (fields["of"], fields["number"]): name for name, fields in reference_conditions.items()
    }
    rows: list[dict[str, Any]] = []
    for setting, arms in settings.items():
        for name, pair in contrasts.items():
            both = [
                (arms[old][0], arms[new][0])
                for new, old in _under_each_instruction(pair, arms, names)
            ]
            if len(both) < FEWEST_INSTRUCTIONS:
                continue
            effects = [
                pool_changes([(new.right - old.right, old.k)], old.clusters) for old, new in both
            ]
            found = [one["difference"] for one in effects if one["p"] < ALPHA]
            draws = [
                100 * float(changes.sum() / samples.sum())
                for old, new in both
                for changes, samples in zip(
                    new.right_by_prompt - old.right_by_prompt, old.samples_by_prompt, strict=True
                )
            ]
            row = {
                **dict(setting),
                "condition": name,
                "instructions": len(both),
                **_over_prompts(both),
            }
            row |= {"least": min(draws), "most": max(draws)}
            row |= {"better": sum(one > 0 for one in found), "worse": sum(one < 0 for one in found)}
            rows.append(
                row
                | {
                    "effects": [
                        [one[end] for end in ("difference", "low", "high")] for one in effects
                    ]
                }
            )
    return pandas.DataFrame(rows, columns=list(INSTRUCTION_COLUMNS))


def _under_each_instruction(
    pair: tuple[str, str], arms: Arms, names: Mapping[tuple[str, int], str]
) -> Iterator[tuple[str, str]]:
    """The names of the pair itself, and of the pair under each other instruction."""
    number, (new, old) = 0, pair
    while new in arms and old in arms:
        yield new, old
        number += 1
        new, old = (names.get((name, number), "") for name in pair)


def _position(condition: Condition) -> list[Any]:
    return [condition.filler_tokens, condition.placement, condition.words]


def _over_prompts(both: Sequence[tuple[Outcomes, Outcomes]]) -> dict[str, Any]:
    """The mean difference over pairs of outcomes, the second less the first, with its interval for new prompts."""
    clusters = both[0][0].clusters
    pooled = pool_changes([(new.right - old.right, old.k) for old, new in both], clusters)
    return {
        name: pooled[name]
        for name in ("problems", "difference", "low", "high", "new_low", "new_high", "new_p")
    }
