"""Prompts, completions, grades and curves, compressed into blocks that the page unpacks on demand.

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

from harness.display.report.attention import AttentionFile, PromptCurves
from harness.display.report.content import Content
from harness.grading import COLUMNS as GRADERS

BLOCK = 1 << 18
"""A block holds about this many characters of JSON. A browser unpacks one in some milliseconds."""
SNIPPET = 90
"""Characters of a problem's text that the list shows."""
UNIT = 1e-6
"""Attention weights are stored as integers in this unit, rounded to three digits, which compresses well."""

Places = dict[str, list[Mapping[str, Any]]]
"""A problem's samples by setting and condition, such as `0 wo`: 0 is the number of the model and layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """All that the page needs to browse samples.

    Attributes:
        index: The packed list of problems, with the place of each in the blocks. It is unpacked when the page opens.
        blocks: Packed details.
        left_out: Problems whose details had no room.
        curves: Prompts with attention curves.
        curves_left_out: Problems whose attention curves had no room.
    """

    index: str = ""
    blocks: tuple[str, ...] = ()
    left_out: int = 0
    curves: int = 0
    curves_left_out: int = 0


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
    attention: Sequence[AttentionFile],
    room: int,
) -> Details:
    """Pack details until the room is full, first those of problems that changed.

    Args:
        content: The runs.
        baseline: The condition that the others are compared with.
        conditions: Name, label and colour (`slot`) of each, in the page's order. Samples of others are left out.
        attention: Curves, packed last. Each goes to the prompt that has its hash.
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
    curves = _find_curves(problems, attention)
    # problems that changed come first, otherwise in the prompts' order
    order = sorted(problems, key=lambda name: not _has_changed(right[name]))

    listed = {name: _list_entry(name, places, right[name]) for name, places in problems.items()}
    # what the index takes beside this, places above all, is known only when all places are
    blocks = _Blocks(room - len(pack(list(listed.values()))) - 16 * len(listed) - 4096)
    for name in order:
        blocks.add(("detail", name), _detail(problems[name]))
    blocks.close()
    for name in order:
        if name in curves:
            blocks.add(("curves", name), curves[name])
    blocks.close()

    index = {
        "baseline": baseline,
        "conditions": list(conditions),
        "settings": [{"model": model, "layout": layout} for model, layout in settings],
        "graders": ["verdict", *GRADERS],
        "heads": [{"name": one.name, "heads": one.heads, "notes": one.notes} for one in attention],
        "problems": [
            entry | {"at": blocks.places.get(("detail", name)), "curves": blocks.places.get(("curves", name))}
            for name, entry in listed.items()
        ],
    }
    return Details(
        index=pack(index),
        blocks=tuple(blocks.words),
        left_out=sum(("detail", name) not in blocks.places for name in problems),
        curves=sum(len(found) for found in curves.values()),
        curves_left_out=sum(("curves", name) not in blocks.places for name in curves),
    )


class _Blocks:
    """Packs values until the room is full, and remembers the block and the place of each."""

    def __init__(self, room: int) -> None:
        self.words: list[str] = []
        self.places: dict[tuple[str, str], tuple[int, int]] = {}
        self._room = room
        self._waiting: list[tuple[tuple[str, str], Any]] = []
        self._size = 0

    def add(self, key: tuple[str, str], value: Any) -> None:
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
    return {
        "subject": row["subject"] or None,
        "level": row["level"] or None,
        "target": row["target"],
        "text": str(text)[:SNIPPET],
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


def _find_curves(problems: Mapping[str, Places], attention: Sequence[AttentionFile]) -> dict[str, list[dict[str, Any]]]:
    """Curves by problem, each with the setting and condition of its prompt, which is found by hash."""
    known: dict[tuple[str, str, str], list[str]] = {}
    for name, places in problems.items():
        for place, rows in places.items():
            known.setdefault((name, rows[0]["prompt"].sha256, rows[0]["loaded"]), []).append(place)
    found: dict[str, list[dict[str, Any]]] = {}
    for number, file in enumerate(attention):
        for one in file.prompts:
            for place in known.get((one.problem_id, one.prompt_sha256, file.model), ()):
                found.setdefault(one.problem_id, []).append({"file": number, "place": place, **_numbers(one)})
    return found


def _numbers(one: PromptCurves) -> dict[str, Any]:
    def whole(value: float | None) -> int | None:
        return None if value is None else round(float(f"{value:.3g}") / UNIT)

    return {
        "tokens": one.tokens,
        "roles": one.roles,
        "pos": one.original_pos,
        "values": [[whole(value) for value in head] for head in one.values],
    }
