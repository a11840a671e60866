"""Samples with their prompts, compressed into blocks that the page unpacks on demand.

A block is JSON, deflated, in base64, which no parser of HTML can mistake for markup. The samples of
one problem are in the same block, since they resemble each other.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.result_tables import records
from harness.constants import JsonObject, Row
from harness.display.value_texts import define_flips, flips
from harness.grading import GRADERS
from harness.runs.run_reader import Run

BLOCK_PROBLEMS = 10
"""Problems in one block of the report. A browser unpacks a block in some milliseconds."""
SNIPPET_CHARACTERS = 90
"""Characters of a problem's text that the report's list shows."""

REPORTED_COLUMNS = (
    *("replicate", "sample_index", "completion", "answer", "verdict", "seed", "finish_reason"),
    *("completion_tokens", "reason", "audit_reason"),
    *GRADERS,
)
"""The columns of `load_run` that the page shows of a sample."""


def read_samples(runs: Sequence[Run]) -> list[Row]:
    """The samples of all runs, with the names of `load_run`'s columns.

    `prompt` is the sample's `AnsweredPrompt`. Where draws of examples or samples have prompts of
    their own, these have problem ids of their own.

    Raises:
        RunError: a run has not recorded its texts.
    """
    samples: list[Row] = []
    for run in runs:
        rows = records(run.samples)
        prompts = {}
        for prompt in run.prompts:
            for sample, _ in prompt.graded_samples:
                key = (prompt.layout, str(prompt.condition), sample.problem_id)
                prompts[*key, sample.sample_index] = prompt
        for row in rows:
            prompt = prompts[
                row["layout"], row["condition"], row["problem_id"], row["sample_index"]
            ]
            samples.append({**row, "problem_id": prompt.problem_id, "prompt": prompt})
    return samples


def pack(content: Any) -> str:
    """Compress JSON into one word that HTML cannot mistake for markup."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    # without zlib's header, as the browser's `deflate-raw` expects it
    return base64.b64encode(zlib.compress(text, 9, -zlib.MAX_WBITS)).decode()


def pack_samples(
    samples: Sequence[Row], *, baseline: str, conditions: Sequence[Row], rows: Sequence[Row]
) -> tuple[str, list[str]]:
    """The packed list of problems, with the position of each in the blocks, and the packed blocks.

    Samples are grouped: by the number of the setting (model and layout) and the condition.

    Args:
        samples: From `read_samples`.
        baseline: The condition that all others are compared with.
        conditions: Name, label and colour (`slot`) of each condition, in the page's order. Samples
            of other conditions are left out.
        rows: The rows of the comparison, whose flips are next to the list.
    """
    names = {condition["name"] for condition in conditions}
    settings = list(dict.fromkeys((row["model"], row["layout"]) for row in samples))

    def name_group(row: Row) -> str:
        return f"{settings.index((row['model'], row['layout']))} {row['condition']}"

    problems: dict[str, dict[str, list[Row]]] = {}
    for row in samples:
        if row["condition"] in names:
            groups = problems.setdefault(row["problem_id"], {})
            groups.setdefault(name_group(row), []).append(row)
    entries = []
    details = []
    for number, groups in enumerate(problems.values()):
        entries.append(_describe_problem(groups) | {"at": divmod(number, BLOCK_PROBLEMS)})
        details.append(_describe_samples(groups))
    index = {
        "baseline": baseline,
        "conditions": conditions,
        "settings": [{"model": model, "layout": layout} for model, layout in settings],
        "graders": GRADERS,
        "flips": {
            name_group(row): flips(row["wrong_to_right"], row["right_to_wrong"]) for row in rows
        },
        "define_flips": define_flips(max(row["repeats"] for row in rows)),
        "problems": entries,
    }
    starts = range(0, len(details), BLOCK_PROBLEMS)
    return pack(index), [pack(details[start : start + BLOCK_PROBLEMS]) for start in starts]


def _describe_problem(groups: Mapping[str, Sequence[Row]]) -> JsonObject:
    """A problem in the list, with what it is filtered by.

    `right` has the number of correct samples of the first run of each group, and the number of all.
    """
    row = next(iter(groups.values()))[0]
    doc = row["prompt"].doc
    text = str(doc.get("problem", doc.get("question", row["prompt"].prompt)))
    if len(text) > SNIPPET_CHARACTERS:
        text = f"{text[:SNIPPET_CHARACTERS]}\N{HORIZONTAL ELLIPSIS}"
    right = {}
    for group, rows in groups.items():
        correct = [row["correct"] for row in rows if row["replicate"] == 0]
        right[group] = (int(sum(correct)), len(correct))
    return {
        "id": row["problem_id"],
        "subject": row["subject"] or None,
        "level": row["level"] or None,
        "target": row["target"],
        "text": text,
        "right": right,
    }


def _describe_samples(groups: Mapping[str, Sequence[Row]]) -> JsonObject:
    """The prompts and samples of one problem, of each group."""
    prompts: JsonObject = {}
    samples: JsonObject = {}
    for group, rows in groups.items():
        prompts[group] = {"parts": rows[0]["prompt"].parts, "tokens": rows[0]["prompt_tokens"]}
        samples[group] = []
        for row in rows:
            samples[group].append({name: row.get(name) for name in REPORTED_COLUMNS})
    return {"prompts": prompts, "samples": samples}
