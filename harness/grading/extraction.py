"""The answer is the content of the last closed box, found in one pass over the text."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\[\\{}]|\\boxed (?=[^\s{}])|[{}]")
THINK_END = "</think>"


def visible_answer(completion: str) -> str:
    """What follows the last `</think>`; everything if there is none."""
    return completion.rpartition(THINK_END)[2]


def last_box(text: str) -> str | None:
    """The content of the last closed `\\boxed{...}` (or `\\fbox{...}`), None if no box is closed.

    One pass with a stack: linear in the text, whatever the nesting. A box inside a box counts as part of the outer
    one. Escaped braces do not nest. An unclosed box is skipped, so an earlier closed one still counts.
    """
    stack: list[int | None] = []
    boxes: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.startswith(("\\boxed", "\\fbox")) and token.endswith("{"):
            stack.append(match.end())
        elif token == "{":
            stack.append(None)
        elif token == "}" and stack:
            start = stack.pop()
            if start is not None:
                boxes.append((start, match.start()))
    if not boxes:
        return None
    last_end = boxes[-1][1]
    start, end = min(box for box in boxes if box[1] == last_end)
    return text[start:end].strip()
