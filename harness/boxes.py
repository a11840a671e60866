"""The contents of boxes in a text: the answer of a completion, or of a worked solution."""

import re

# Escaped backslashes and braces are matched only so that they are not read as braces.
_BOX_TOKEN = re.compile(
    r"\\{1,2}(?:boxed|fbox)\s*"
    r"(?:\{|(?P<bare>[-+]?(?:\d+(?:[.,/]\d+)*|\.\d+|\\[dt]?frac(?:\{[^{}]*\}|\w){2}))"
    r"(?=[\s.,;:$)]|\\[)\]]|\Z))"
    r"|\\[\\{}]|[{}]"
)
# A box of these alone is skipped, because models quote the prompt's `\boxed{}` or `\boxed{...}`.
# No possessive repetition here: before Python 3.11.5 it lets a lookahead pass that has failed.
_EMPTY_CONTENT = re.compile(
    r"(?:[\s~{}$]|\.{2,}(?!\.)|\\[ ,;:!>]"
    r"|\\(?:quad|qquad|enspace|thinspace|space|[lc]?dots)(?![A-Za-z])"
    r"|\\(?:[hv]space\*?|[hv]?phantom)\{[^{}]*\}"
    r"|\\(?:boxed|fbox|mbox|text(?:bf|it|rm)?|math(?:rm|bf|it|sf))(?=\s*\{))*"
)
_INNER_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{([^{}]*)\}\s*")


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
    for start, end, is_doubled in _find_boxes(text):
        if _EMPTY_CONTENT.fullmatch(text, start, end):
            continue
        content = text[start:end]
        if is_doubled:
            content = content.replace("\\\\", "\\")
        inner_box = _INNER_BOX.fullmatch(content)
        if inner_box:
            content = inner_box[1]
        contents.append(content.strip())
    return contents


def _find_boxes(text: str) -> list[tuple[int, int, bool]]:
    """Find the start and end of each closed box's content, and whether its backslash is doubled.

    One pass with a stack takes linear time, whatever the nesting.
    """
    # For each open brace of a box: where its content starts, and whether the box's backslash is
    # doubled. For any other open brace: None.
    open_braces: list[tuple[int, bool] | None] = []
    spans: list[tuple[int, int, bool]] = []
    first_box = text.find("box")
    if first_box < 0:
        return spans
    # A brace before the first box closes no box. `\\fbox` has three characters before `box`.
    for match in _BOX_TOKEN.finditer(text, max(0, first_box - 3)):
        token = match.group()
        is_doubled = token.startswith("\\\\")
        # `\boxed 5` has no brace that would close it
        if match["bare"]:
            spans.append((*match.span("bare"), is_doubled))
        # only the tokens of \boxed and \fbox have letters
        elif "b" in token:
            open_braces.append((match.end(), is_doubled))
        elif token == "{":
            open_braces.append(None)
        elif token == "}" and open_braces:
            box = open_braces.pop()
            if box is None:
                continue
            start, is_doubled = box
            while spans and spans[-1][0] > start:  # an inner box closes before the outer box
                spans.pop()
            spans.append((start, match.start(), is_doubled))
    return spans
