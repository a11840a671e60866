"""Prompts, completions and grades, compressed into blocks that the page unpacks on demand.

A block is JSON, deflated, in base64, which no parser of HTML can mistake for markup. Samples of one problem are in one
block, since they repeat each other.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.display.numbers import define_flips, flips
from harness.display.report.content import Content
from harness.grading import COLUMNS as GRADERS

BLOCK = 1 << 18
"""A block holds about this many characters of JSON. A browser unpacks one in some milliseconds."""
SNIPPET = 90
"""Characters of a problem's text that the list shows."""

Places = dict[str, list[Mapping[str, Any]]]
"""A problem's samples by setting and condition, such as `0 wo`: 0 is the number of the model and layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """All that the page needs to browse samples.

    Attributes:
        index: The packed list of problems, with the place of each in the blocks. It is unpacked when the page opens.
        blocks: Packed details.
    """

    index: str = ""
    blocks: tuple[str, ...] = ()


def pack(value: Any) -> str:
    """Compress a JSON value into one word that HTML cannot mistake for markup."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(squeeze.compress(text) + squeeze.flush()).decode()


def unpack(word: str) -> Any:
    """The value that was packed."""
    return json.loads(zlib.decompress(base64.b64decode(word), -zlib.MAX_WBITS))


def make_details(
    content: Content,
    *,
    baseline: str,
    conditions: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
) -> Details:
    """Pack the details of every problem.

    Args:
        content: The runs.
        baseline: The condition that the others are compared with.
        conditions: Name, label and colour (`slot`) of each, in the page's order. Samples of others are left out.
        rows: Of the table of comparisons, whose flips are named beside the list.
    """
    known = {one["name"] for one in conditions}
    samples = [row for row in content.samples if row["condition"] in known]
    settings = list(dict.fromkeys((row["model"], row["layout"]) for row in samples))
    problems: dict[str, Places] = {}
    for row in samples:
        place = f"{settings.index((row['model'], row['layout']))} {row['condition']}"
        problems.setdefault(row["problem_id"], {}).setdefault(place, []).append(row)
    right = {name: {place: _count_right(rows) for place, rows in places.items()} for name, places in problems.items()}
    listed = {name: _list_entry(name, places, right[name]) for name, places in problems.items()}
    blocks: list[list[Any]] = []
    places, size = {}, BLOCK
    for name in problems:
        if size >= BLOCK:
            blocks.append([])
            size = 0
        detail = _detail(problems[name])
        size += len(json.dumps(detail))
        places[name] = (len(blocks) - 1, len(blocks[-1]))
        blocks[-1].append(detail)

    index = {
        "baseline": baseline,
        "conditions": list(conditions),
        "settings": [{"model": model, "layout": layout} for model, layout in settings],
        "graders": ["verdict", *GRADERS],
        "flips": {f"{settings.index((row['model'], row['layout']))} {row['condition']}": flips(row) for row in rows},
        "define_flips": define_flips(max(row["k"] for row in rows)),
        "problems": [entry | {"at": places[name]} for name, entry in listed.items()],
    }
    return Details(index=pack(index), blocks=tuple(map(pack, blocks)))


def _count_right(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Number of right samples and of all samples, in the first replicate."""
    first = [row["correct"] for row in rows if row["replicate"] == 0]
    return int(sum(first)), len(first)


def _list_entry(name: str, places: Places, right: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """An entry of the list of problems: what it shows and what it is filtered by."""
    row = next(iter(places.values()))[0]
    prompt = row["prompt"]
    text = next((prompt.doc[field] for field in ("problem", "question") if field in prompt.doc), prompt.text)
    text = str(text)
    return {
        "subject": row["subject"] or None,
        "level": row["level"] or None,
        "target": row["target"],
        "text": text if len(text) <= SNIPPET else f"{text[:SNIPPET]}\N{HORIZONTAL ELLIPSIS}",
        "id": name,
        "right": right,
    }


def _detail(places: Places) -> dict[str, Any]:
    """One problem: its prompts and samples by setting and condition."""
    prompts = {
        place: {"parts": rows[0]["prompt"].parts, "tokens": rows[0]["prompt_tokens"]} for place, rows in places.items()
    }
    return {"prompts": prompts, "samples": {place: [_sample(row) for row in rows] for place, rows in places.items()}}


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
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
