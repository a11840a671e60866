"""The answer is the content of the last closed box that holds something, found in one pass over the text."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\[\\{}]|[{}]")
_NOTHING = re.compile(  # blanks, TeX's spaces, dots that stand for an answer, and braces and fonts around them
    r"(?:[\s~{}$]|\.{2,}+|\\[ ,;:!>]|\\(?:quad|qquad|enspace|thinspace|space|[lc]?dots)(?![A-Za-z])"
    r"|\\(?:[hv]space\*?|[hv]?phantom)\{[^{}]*\}"
    r"|\\(?:boxed|fbox|mbox|text(?:bf|it|rm)?|math(?:rm|bf|it|sf))(?=\s*\{))*+"
)
_WHOLE = re.compile(r"\\(?:boxed|fbox)\s*\{([^{}]*)\}")
THINK_START, THINK_END = "<think>", "</think>"


def visible_answer(completion: str) -> str:
    """What follows the last `</think>`, up to a `<think>` that never ends; everything if there are no tags."""
    return completion.rpartition(THINK_END)[2].partition(THINK_START)[0]


def last_box(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}` (or `\fbox{...}`) that holds something, None if there is none.

    A box inside a closed box is part of it, and a box that holds nothing but a box is that box. Escaped braces do not
    nest. An unclosed box is skipped, so an earlier closed one still counts. So is an empty one: a base model that
    repeats its prompt ("put your final answer within \boxed{}") has not taken its answer back.
    """
    spans = _closed_boxes(text)
    return _content(text, spans[-1]) if spans else None


def first_box(text: str) -> str | None:
    r"""The content of the first closed box that holds something, None if there is none."""
    spans = _closed_boxes(text)
    return _content(text, spans[0]) if spans else None


def boxes_after_first(text: str) -> int:
    """How many closed boxes follow the first one; neither empty ones nor those inside another one are counted."""
    return max(0, len(_closed_boxes(text)) - 1)


def _closed_boxes(text: str) -> list[tuple[int, int]]:
    """Where the contents of the closed boxes start and end, without empty ones and those inside another closed box.

    One pass with a stack: linear in the text, whatever the nesting.
    """
    stack: list[int | None] = []
    found: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.startswith(("\\boxed", "\\fbox")):
            stack.append(match.end())
        elif token == "{":
            stack.append(None)
        elif token == "}" and stack:
            start = stack.pop()
            if start is not None:
                while found and found[-1][0] > start:  # boxes close inside out: those were inside this one
                    found.pop()
                found.append((start, match.start()))
    return [span for span in found if not _NOTHING.fullmatch(text, *span)]


def _content(text: str, span: tuple[int, int]) -> str:
    content = text[span[0] : span[1]].strip()
    whole = _WHOLE.fullmatch(content)
    return whole.group(1).strip() if whole else content
