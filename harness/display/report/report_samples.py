"""Samples with their prompts, compressed into blocks that the page unpacks on demand.

A block is JSON, deflated, in base64, which no parser of HTML can mistake for markup. Samples of one problem are in one
block, since they repeat each other.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.result_tables import records
from harness.display.format_table import Row
from harness.display.format_values import define_flips, flips
from harness.grading import GRADERS
from harness.runs.read_runs import Run
from harness.runs.records import prompt_id

REPORT_BLOCK = 10
"""Problems in one block of the report, which a browser unpacks in some milliseconds."""
REPORT_SNIPPET = 90
"""Characters of a problem's text that the report's list shows."""


def read_samples(runs: Sequence[Run]) -> list[Row]:
    """One mapping per sample, with the names of `load_run`'s columns. `prompt` is its `AnsweredPrompt`.

    Each draw of examples makes another prompt, so that its samples stand under an id of their own.

    Raises:
        RunError: a run has not recorded its texts.
    """
    samples = list[Row]()
    for run in runs:
        texts = records(run.read(texts=True))  # first, since it says more of what is missing
        prompts = {(one.layout, str(one.condition), one.problem_id): one for one in run.prompts}
        for row in texts:
            name = prompt_id(row["problem_id"], row.get("draw", 0))
            samples.append(
                {
                    **row,
                    "problem_id": name,
                    "prompt": prompts[row["layout"], row["condition"], name],
                }
            )
    return samples


def pack(value: Any) -> str:
    """Compress a JSON value into one word that HTML cannot mistake for markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(zlib.compress(text, 9, -zlib.MAX_WBITS)).decode()


def pack_samples(
    samples: Sequence[Row], *, baseline: str, conditions: Sequence[Row], rows: Sequence[Row]
) -> tuple[str, list[str]]:
    """The packed list of problems, with the place of each in the blocks, and the packed blocks.

    Args:
        samples: From `read_samples`.
        baseline: The condition that the others are compared with.
        conditions: Name, label and colour (`slot`) of each, in the page's order. Samples of others are left out.
        rows: Of the table of comparisons, whose flips are named beside the list.
    """
    names = {one["name"] for one in conditions}
    settings = list(dict.fromkeys((row["model"], row["layout"]) for row in samples))

    def place(row: Row) -> str:
        return f"{settings.index((row['model'], row['layout']))} {row['condition']}"

    problems: dict[str, dict[str, list[Row]]] = {}
    for row in samples:
        if row["condition"] in names:
            problems.setdefault(row["problem_id"], {}).setdefault(place(row), []).append(row)
    listed = [
        _describe(places) | {"at": divmod(i, REPORT_BLOCK)}
        for i, places in enumerate(problems.values())
    ]
    details = [_detail(places) for places in problems.values()]
    index = {
        "baseline": baseline,
        "conditions": conditions,
        "settings": [{"model": model, "layout": layout} for model, layout in settings],
        "graders": ["verdict", *GRADERS],
        "flips": {place(row): flips(row["wrong_to_right"], row["right_to_wrong"]) for row in rows},
        "define_flips": define_flips(max(row["repeats"] for row in rows)),
        "problems": listed,
    }
    return pack(index), [
        pack(details[i : i + REPORT_BLOCK]) for i in range(0, len(details), REPORT_BLOCK)
    ]


def _describe(places: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """What the list of problems shows of one, and what it is filtered by: right samples of all, first run only."""
    row = next(iter(places.values()))[0]
    doc = row["prompt"].doc
    text = str(doc.get("problem", doc.get("question", row["prompt"].prompt)))
    right = {
        place: [one["correct"] for one in rows if one["replicate"] == 0]
        for place, rows in places.items()
    }
    return {
        "id": row["problem_id"],
        "subject": row["subject"] or None,
        "level": row["level"] or None,
        "target": row["target"],
        "text": text
        if len(text) <= REPORT_SNIPPET
        else f"{text[:REPORT_SNIPPET]}\N{HORIZONTAL ELLIPSIS}",
        "right": {place: (int(sum(correct)), len(correct)) for place, correct in right.items()},
    }


def _detail(places: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """One problem: its prompts and samples by setting and condition."""
    return {
        "prompts": {
            place: {"parts": rows[0]["prompt"].parts, "tokens": rows[0]["prompt_tokens"]}
            for place, rows in places.items()
        },
        "samples": {place: [_sample(row) for row in rows] for place, rows in places.items()},
    }


def _sample(row: Row) -> dict[str, Any]:
    return {
        "replicate": row["replicate"],
        "number": row["sample_index"],
        "completion": row["completion"],
        "answer": row["answer"],
        "grades": [row["verdict"], *(row.get(name) for name in GRADERS)],
        "finish": row["finish_reason"],
        "tokens": row["completion_tokens"],
        "seed": row["seed"],
        "remarks": [text for text in (row.get("reason"), row.get("audit_reason")) if text],
        "boxes": row.get("boxes_after_first"),
    }
