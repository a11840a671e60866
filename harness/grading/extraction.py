"""The answer is the content of the last closed box, found in one pass over the text."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\[\\{}]|[{}]")
THINK_START, THINK_END = "<think>", "</think>"


def visible_answer(completion: str) -> str:
    """What follows the last `</think>`, up to a `<think>` that never ends; everything if there are no tags."""
    return completion.rpartition(THINK_END)[2].partition(THINK_START)[0]


def last_box(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}` (or `\fbox{...}`), None if no box is closed.

    One pass with a stack: linear in the text, whatever the nesting. A box inside a box is part of the outer one, and
    a box that holds nothing but a box is that box. Escaped braces do not nest. An unclosed box is skipped, so an
    earlier closed one still counts.
    """
    stack: list[int | None] = []
    found: tuple[int, int] | None = None
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.startswith(("\\boxed", "\\fbox")):
            stack.append(match.end())
        elif token == "{":
            stack.append(None)
        elif token == "}" and stack:
            start = stack.pop()
            # boxes close inside out, so the last one to close is the outermost of the last nest
            if start is not None:
                found = start, match.start()
    if found is None:
        return None
    content = text[found[0] : found[1]].strip()
    whole = re.fullmatch(r"\\(?:boxed|fbox)\s*\{([^{}]*)\}", content)
    return whole.group(1).strip() if whole else content
