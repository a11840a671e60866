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

from harness.display.report.content import Content
from harness.display.words import define_flips, flips
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
        left_out: Problems whose details had no room.
    """

    index: str = ""
    blocks: tuple[str, ...] = ()
    left_out: int = 0


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
    room: int,
) -> Details:
    """Pack details until the room is full, first those of problems that changed.

    Args:
        content: The runs.
        baseline: The condition that the others are compared with.
        conditions: Name, label and colour (`slot`) of each, in the page's order. Samples of others are left out.
        rows: Of the table of comparisons, whose flips are named beside the list.
        room: Characters that index and blocks may take together.
    """
    known = {one["name"] for one in conditions}
    samples = [row for row in content.samples if row["condition"] in known]
    settings = list(dict.fromkeys((row["model"], row["layout"]) for row in samples))
    problems: dict[str, Places] = {}
    for row in samples:
        place = f"{settings.index((row['model'], row['layout']))} {row['condition']}"
        problems.setdefault(row["problem_id"], {}).setdefault(place, []).append(row)
    right = {name: {place: _count_right(rows) for place, rows in places.items()} for name, places in problems.items()}
    # problems that changed come first, otherwise in the prompts' order
    order = sorted(problems, key=lambda name: not _has_changed(right[name]))

    listed = {name: _list_entry(name, places, right[name]) for name, places in problems.items()}
    # what the index takes beside this, places above all, is known only when all places are
    blocks = _Blocks(room - len(pack(list(listed.values()))) - 16 * len(listed) - 4096)
    for name in order:
        blocks.add(name, _detail(problems[name]))
    blocks.close()

    index = {
        "baseline": baseline,
        "conditions": list(conditions),
        "settings": [{"model": model, "layout": layout} for model, layout in settings],
        "graders": ["verdict", *GRADERS],
        "flips": {f"{settings.index((row['model'], row['layout']))} {row['condition']}": flips(row) for row in rows},
        "define_flips": define_flips(max(row["k"] for row in rows)),
        "problems": [entry | {"at": blocks.places.get(name)} for name, entry in listed.items()],
    }
    left_out = sum(name not in blocks.places for name in problems)
    return Details(index=pack(index), blocks=tuple(blocks.words), left_out=left_out)


class _Blocks:
    """Packs values until the room is full, and remembers the block and the place of each."""

    def __init__(self, room: int) -> None:
        self.words: list[str] = []
        self.places: dict[str, tuple[int, int]] = {}
        self._room = room
        self._waiting: list[tuple[str, Any]] = []
        self._size = 0

    def add(self, key: str, value: Any) -> None:
        self._waiting.append((key, value))
        self._size += len(json.dumps(value))
        if self._size >= BLOCK:
            self.close()

    def close(self) -> None:
        word = pack([value for _, value in self._waiting])
        if self._waiting and len(word) <= self._room:
            self.places |= {key: (len(self.words), place) for place, (key, _) in enumerate(self._waiting)}
            self.words.append(word)
            self._room -= len(word)
        self._waiting, self._size = [], 0


def _count_right(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Number of right samples and of all samples, in the first replicate."""
    first = [row["correct"] for row in rows if row["replicate"] == 0]
    return int(sum(first)), len(first)


def _has_changed(right: Mapping[str, tuple[int, int]]) -> bool:
    """Whether two conditions of one setting differ."""
    settings = {place.partition(" ")[0] for place in right}
    return len({(place.partition(" ")[0], count) for place, (count, _) in right.items()}) > len(settings)


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
