"""What the page unpacks only when it is asked for: prompts, completions, grades and curves, compressed into blocks.

A block is JSON, deflated, in base64: letters that no parser of HTML can mistake for markup. Samples of one problem are
in one block, side by side, since they repeat each other.
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
"""Characters of JSON in a block, about; a browser unpacks one in some milliseconds."""
SNIPPET = 90
"""How much of a problem's text the list shows."""
UNIT = 1e-6
"""Of attention weights in a block: integers, rounded to three digits, which compress well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Everything for the browser of samples.

    Attributes:
        index: The packed list of problems, which is unpacked when the page opens.
        blocks: Packed details; the index says which problem is in which.
        left_out: Problems whose details had no room.
        curves: Prompts with attention curves.
        curves_left_out: Problems whose attention curves had no room.
    """

    index: str
    blocks: tuple[str, ...]
    left_out: int
    curves: int
    curves_left_out: int


def pack(value: Any) -> str:
    """Any JSON value as one word without a character that HTML could read."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(squeeze.compress(text) + squeeze.flush()).decode()


def unpack(word: str) -> Any:
    """What was packed."""
    return json.loads(zlib.decompress(base64.b64decode(word), -zlib.MAX_WBITS))


def make_details(
    content: Content,
    *,
    baseline: str,
    conditions: Sequence[Mapping[str, Any]],
    attention: Sequence[AttentionFile],
    room: int,
) -> Details:
    """Pack details, changed problems first, until the room is full.

    Args:
        content: The runs.
        baseline: The condition that the others are compared with.
        conditions: Name, label and colour (`slot`) of each, in the page's order; samples of others are left out.
        attention: Curves; they go to the prompts with their hashes, and come last.
        room: Characters that index and blocks may take together.
    """
    known = {one["name"] for one in conditions}
    by_problem: dict[str, list[Mapping[str, Any]]] = {}
    samples = [row for row in content.samples if row["condition"] in known]
    for row in samples:
        by_problem.setdefault(row["problem_id"], []).append(row)
    settings = list(dict.fromkeys((row["model"], row["layout"]) for row in samples))
    numbers = {setting: number for number, setting in enumerate(settings)}
    right = {name: _count_right(rows, numbers) for name, rows in by_problem.items()}
    curves = _find_curves(content, attention, numbers)
    changed = {name for name, counts in right.items() if _has_changed(counts)}

    listed = {name: _list_entry(content, rows, right[name]) for name, rows in by_problem.items()}
    # what the index takes beside this, places above all, is known only when all places are
    blocks = _Blocks(room - len(pack(list(listed.values()))) - 16 * len(listed) - 4096)
    for name in sorted(by_problem, key=lambda name: name not in changed):  # stable: prompts' order within each
        blocks.add(("detail", name), _detail(content, by_problem[name], numbers))
    blocks.close()
    for name in sorted(curves, key=lambda name: name not in changed):
        blocks.add(("curves", name), curves[name])
    blocks.close()

    problems = [
        one | {"at": blocks.places.get(("detail", name)), "curves": blocks.places.get(("curves", name))}
        for name, one in listed.items()
    ]
    index = {
        "baseline": baseline,
        "conditions": list(conditions),
        "settings": [{"model": model, "layout": layout} for model, layout in settings],
        "graders": ["verdict", *GRADERS],
        "heads": [{"name": one.name, "heads": one.heads, "notes": one.notes} for one in attention],
        "problems": problems,
    }
    return Details(
        index=pack(index),
        blocks=tuple(blocks.words),
        left_out=sum(("detail", name) not in blocks.places for name in by_problem),
        curves=sum(len(found) for found in curves.values()),
        curves_left_out=sum(("curves", name) not in blocks.places for name in curves),
    )


class _Blocks:
    """Packs values one after another until the room is full; remembers in which block, and where in it, each is."""

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


def _count_right(rows: Sequence[Mapping[str, Any]], numbers: Mapping[tuple[str, str], int]) -> dict[str, list[int]]:
    """Right samples and samples of the first replicate, by setting and condition."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        if row["replicate"] == 0:
            count = counts.setdefault(_place(row, numbers), [0, 0])
            count[0] += bool(row["correct"])
            count[1] += 1
    return counts


def _has_changed(counts: Mapping[str, Sequence[int]]) -> bool:
    """Whether two conditions of one setting differ."""
    settings: dict[str, set[int]] = {}
    for place, (right, _) in counts.items():
        settings.setdefault(place.partition(" ")[0], set()).add(right)
    return any(len(found) > 1 for found in settings.values())


def _list_entry(
    content: Content, rows: Sequence[Mapping[str, Any]], right: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """What the list shows and filters by."""
    row = rows[0]
    return (
        {name: row[name] or None for name in ("subject", "level")}
        | {
            "target": row["target"],
            "text": content.prompts[_key(row)].problem[:SNIPPET],
        }
        | {"id": row["problem_id"], "right": right}
    )


def _detail(
    content: Content, rows: Sequence[Mapping[str, Any]], numbers: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    """One problem: its prompts and samples by setting and condition."""
    prompts: dict[str, Any] = {}
    samples: dict[str, list[Any]] = {}
    for row in rows:
        place = _place(row, numbers)
        prompts.setdefault(place, {"parts": content.prompts[_key(row)].parts, "tokens": row["prompt_tokens"]})
        samples.setdefault(place, []).append(
            {
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
        )
    return {"prompts": prompts, "samples": samples}


def _find_curves(
    content: Content, attention: Sequence[AttentionFile], numbers: Mapping[tuple[str, str], int]
) -> dict[str, list[dict[str, Any]]]:
    """Curves by problem, each with the setting and condition of the prompt that has its hash."""
    prompts: dict[tuple[str, str, str], list[str]] = {}
    labels = {(row["run"], row["layout"], row["condition"]): row["model"] for row in content.samples}
    for (run, layout, condition, problem_id), prompt in content.prompts.items():
        setting = (labels.get((run, layout, condition), ""), layout)
        if setting in numbers:
            known = prompts.setdefault((problem_id, prompt.sha256, content.models[run]), [])
            known.append(f"{numbers[setting]} {condition}")
    found: dict[str, list[dict[str, Any]]] = {}
    for number, file in enumerate(attention):
        for one in file.prompts:
            for place in prompts.get((one.problem_id, one.prompt_sha256, file.model), ()):
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


def _place(row: Mapping[str, Any], numbers: Mapping[tuple[str, str], int]) -> str:
    return f"{numbers[row['model'], row['layout']]} {row['condition']}"


def _key(row: Mapping[str, Any]) -> tuple[int, str, str, str]:
    return int(row["run"]), str(row["layout"]), str(row["condition"]), str(row["problem_id"])
