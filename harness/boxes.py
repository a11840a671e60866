"""The contents of boxes in a text: the answer of a completion, or of a worked solution."""

import re
from typing import NamedTuple

# The beginning of a box with a brace, as in `\boxed{5}`, or an entire box without braces, as in
# `\boxed 5` (`bare` is its content); else a brace. The last line also matches `\\`, `\{` and `\}`,
# so that no escaped brace counts as a brace.
_BOX_TOKEN = re.compile(
    r"\\{1,2}(?:boxed|fbox)\s*"
    r"(?:\{|(?P<bare>[-+]?(?:\d+(?:[.,/]\d+)*|\.\d+|\\[dt]?frac(?:\{[^{}]*\}|\w){2}))"
    r"(?=[\s.,;:$)]|\\[)\]]|\Z))"
    r"|\\[\\{}]|[{}]"
)
# The content of an empty box, which is skipped: models quote the prompt's `\boxed{}` or
# `\boxed{...}`. The repetition is not possessive, because before Python 3.11.5 a lookahead inside a
# possessive repetition can pass wrongly.
_EMPTY_CONTENT = re.compile(
    r"(?:[\s~{}$]|\.{2,}(?!\.)|\\[ ,;:!>]"
    r"|\\(?:quad|qquad|enspace|thinspace|space|[lc]?dots)(?![A-Za-z])"
    r"|\\(?:[hv]space\*?|[hv]?phantom)\{[^{}]*\}"
    r"|\\(?:boxed|fbox|mbox|text(?:bf|it|rm)?|math(?:rm|bf|it|sf))(?=\s*\{))*"
)
_INNER_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{([^{}]*)\}\s*")
"""The content of a box that contains only a box."""


class _Box(NamedTuple):
    """A box: the match of _BOX_TOKEN that opens it, and where its content starts and ends."""

    match: re.Match[str]
    start: int
    end: int


def read_boxes(text: str) -> list[str]:
    r"""Read the contents of all closed `\boxed{...}` and `\fbox{...}` that are not empty, in order.

    A box inside a closed box is part of its content, and a box that contains only a box counts as
    the inner box. Escaped braces do not nest.

    An unclosed box is skipped, so an earlier closed box still counts. An empty box is skipped too:
    a base model that repeats its prompt ("put your final answer within \boxed{}") has not withdrawn
    its answer. `\boxed 5` and a doubled backslash, as in a text that was escaped twice, are read
    too.
    """
    contents = []
    for box in _find_boxes(text):
        if _EMPTY_CONTENT.fullmatch(text, box.start, box.end):
            continue
        content = text[box.start : box.end]
        # if the backslash of the box is doubled, all backslashes are
        if box.match[0].startswith("\\\\"):
            content = content.replace("\\\\", "\\")
        if inner_box := _INNER_BOX.fullmatch(content):
            content = inner_box[1]
        contents.append(content.strip())
    return contents


def _find_boxes(text: str) -> list[_Box]:
    """Find each closed box that is not inside another closed box.

    Open braces are on a stack, and each closing brace closes the last of them. If that brace opened
    a box, its content ends here. One pass takes linear time, whatever the nesting.
    """
    # for each open brace the match of the box that it opened, or None if it opened no box
    open_braces: list[re.Match[str] | None] = []
    boxes: list[_Box] = []
    first_box_position = text.find("box")
    if first_box_position < 0:
        return boxes
    # The search begins at the first box, because no brace before it belongs to a box. Its token may
    # begin three characters before `box`, as in `\\fbox`.
    for match in _BOX_TOKEN.finditer(text, max(0, first_box_position - 3)):
        token = match[0]
        # a box without braces, as in `\boxed 5`, is complete here
        if match["bare"]:
            boxes.append(_Box(match, *match.span("bare")))
        elif "box" in token:
            open_braces.append(match)
        elif token == "{":
            open_braces.append(None)
        # escaped braces, and a closing brace without an open one, are skipped
        elif token == "}" and open_braces:
            box_match = open_braces.pop()
            if box_match is None:
                continue
            box = _Box(box_match, box_match.end(), match.start())
            # boxes that were closed inside this content are a part of it
            while boxes and boxes[-1].start > box.start:
                boxes.pop()
            boxes.append(box)
    return boxes
