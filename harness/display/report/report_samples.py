"""Samples with their prompts, compressed into blocks that the page unpacks on demand.

A block is JSON, deflated, in base64, which no parser of HTML can mistake for markup. The samples of
one problem are in the same block, since they resemble each other.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.result_tables import list_rows
from harness.constants import JsonObject, Row
from harness.display.value_texts import define_flips, format_flips
from harness.grading import GRADERS
from harness.runs.run_reader import Run

PROBLEMS_PER_BLOCK = 10
"""Problems in one block of the report. A browser unpacks a block in some milliseconds."""
MOST_SNIPPET_CHARACTERS = 90
"""Characters of a problem's text that the report's list shows."""

REPORTED_COLUMNS = (
    "replicate",
    "sample_index",
    "completion",
    "answer",
    "verdict",
    "seed",
    "finish_reason",
    "completion_tokens",
    "reason",
    "audit_reason",
    *GRADERS,
)
"""The columns of `load_run` that the page shows of a sample."""


def read_samples(runs: Sequence[Run]) -> list[Row]:
    """The samples of all runs, with the names of `load_run`'s columns.

    A sample is found by its layout, condition, problem and number. Two fields are other than in
    `load_run`: `prompt` is the sample's `AnsweredPrompt`, and `problem_id` that of this prompt. It
    also names the draw of examples or the sample, if each has a prompt of its own.

    Raises:
        RunError: a run has not recorded its texts.
    """
    samples = []
    for run in runs:
        prompt_by_sample = {}
        for prompt in run.prompts:
            for sample, _ in prompt.graded_samples:
                prompt_by_sample[
                    prompt.layout, str(prompt.condition), sample.problem_id, sample.sample_index
                ] = prompt
        for row in list_rows(run.samples):
            prompt = prompt_by_sample[
                row["layout"], row["condition"], row["problem_id"], row["sample_index"]
            ]
            samples.append({**row, "problem_id": prompt.problem_id, "prompt": prompt})
    return samples


def pack(content: Any) -> str:
    """Compress JSON into one word that HTML cannot mistake for markup."""
    json_bytes = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    # without zlib's header, as the browser's `deflate-raw` expects it
    return base64.b64encode(zlib.compress(json_bytes, 9, -zlib.MAX_WBITS)).decode()


def pack_samples(
    samples: Sequence[Row], *, baseline: str, conditions: Sequence[Row], contrasts: Sequence[Row]
) -> tuple[str, list[str]]:
    """Pack the samples, and the facts with which the page lists, filters and explains them.

    A setting is a model and a layout. The samples of a problem are in groups, one for each setting
    and condition. A group's name has the index of the setting, such as `0 mless`.

    Args:
        samples: From `read_samples`.
        baseline: The condition that all others are compared with.
        conditions: Name, label and colour (`slot`) of each condition, in the page's order. Samples
            of other conditions are left out.
        contrasts: The rows of the comparison, whose flips are next to the list.

    Returns:
        The packed facts, with a list of the problems that says in which block the samples of each
        are; and the packed blocks of `PROBLEMS_PER_BLOCK` problems each.
    """
    condition_names = {condition["name"] for condition in conditions}
    settings = list(dict.fromkeys((sample["model"], sample["layout"]) for sample in samples))

    def name_group(row: Row) -> str:
        return f"{settings.index((row['model'], row['layout']))} {row['condition']}"

    groups_by_problem: dict[str, dict[str, list[Row]]] = {}
    for sample in samples:
        if sample["condition"] in condition_names:
            samples_by_group = groups_by_problem.setdefault(sample["problem_id"], {})
            samples_by_group.setdefault(name_group(sample), []).append(sample)
    page_facts = {
        "baseline": baseline,
        "conditions": conditions,
        "settings": [{"model": model, "layout": layout} for model, layout in settings],
        "graders": GRADERS,
        "flips": {
            name_group(row): format_flips(row["wrong_to_right"], row["right_to_wrong"])
            for row in contrasts
        },
        "define_flips": define_flips(contrasts),
        "problems": [
            # the index of the block, and the problem's index in it
            _describe_problem(samples_by_group) | {"at": divmod(index, PROBLEMS_PER_BLOCK)}
            for index, samples_by_group in enumerate(groups_by_problem.values())
        ],
    }
    problem_entries = list(map(_describe_samples, groups_by_problem.values()))
    blocks = [
        pack(problem_entries[start : start + PROBLEMS_PER_BLOCK])
        for start in range(0, len(problem_entries), PROBLEMS_PER_BLOCK)
    ]
    return pack(page_facts), blocks


def _describe_problem(samples_by_group: Mapping[str, Sequence[Row]]) -> JsonObject:
    """The entry of a problem in the list: the fields that the page shows and filters by.

    `right` has two numbers for each group: the correct samples of the first run, and all of the
    first run.
    """
    first_sample = next(iter(samples_by_group.values()))[0]
    doc = first_sample["prompt"].doc
    # documents of other tasks have a question, or only a prompt
    problem_text = str(doc.get("problem", doc.get("question", first_sample["prompt"].prompt)))
    if len(problem_text) > MOST_SNIPPET_CHARACTERS:
        problem_text = f"{problem_text[:MOST_SNIPPET_CHARACTERS]}\N{HORIZONTAL ELLIPSIS}"
    right_counts_by_group = {}
    for group, samples in samples_by_group.items():
        right_flags = [sample["correct"] for sample in samples if sample["replicate"] == 0]
        right_counts_by_group[group] = (int(sum(right_flags)), len(right_flags))
    return {
        "id": first_sample["problem_id"],
        "subject": first_sample["subject"] or None,
        "level": first_sample["level"] or None,
        "target": first_sample["target"],
        "text": problem_text,
        "right": right_counts_by_group,
    }


def _describe_samples(samples_by_group: Mapping[str, Sequence[Row]]) -> JsonObject:
    """The prompts and samples of one problem, of each group."""
    entry: JsonObject = {"prompts": {}, "samples": {}}
    for group, samples in samples_by_group.items():
        # the samples of a group have the same prompt
        entry["prompts"][group] = {
            "parts": samples[0]["prompt"].roles_and_texts,
            "tokens": samples[0]["prompt_tokens"],
        }
        entry["samples"][group] = [
            {name: sample.get(name) for name in REPORTED_COLUMNS} for sample in samples
        ]
    return entry
