"""Plain notation: one spelling for what LaTeX lets one write in many, without a change of meaning."""

from __future__ import annotations

import re
from functools import lru_cache

from harness.grading.formula import GREEK

TOKEN = re.compile(r"\\[A-Za-z]+ ?|\\.|.", re.DOTALL)

ROW_END = "¶"
"""What plain notation has for the double backslash that ends a row."""
_OPENING, _CLOSING = frozenset(["(", "[", "{", "\\{", "\\langle"]), frozenset([")", "]", "}", "\\}", "\\rangle"])
_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",  # noqa: RUF001
        "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∈": r"\in ",  # noqa: RUF001
        "∅": r"\emptyset ", "°": r"\degree ", "√": r"\sqrt ", "…": r"\ldots ", "θ": r"\theta ", "²": "^2", "³": "^3",
        "½": r"\frac12", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "’": "'", "′": "'",  # noqa: RUF001
    }
)  # fmt: skip
_SAME_COMMANDS = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "dbinom": r"\binom", "tbinom": r"\binom",
    "leq": r"\le", "leqslant": r"\le", "leqq": r"\le", "geq": r"\ge", "geqslant": r"\ge", "geqq": r"\ge",
    "neq": r"\ne", "lt": "<", "gt": ">", "times": "*", "cdot": "*", "ast": "*", "div": "/", "colon": ":",
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lvert": "|", "rvert": "|", "vert": "|",
    "mid": "|", "varnothing": r"\emptyset", "dots": r"\ldots", "cdots": r"\ldots", "dotsc": r"\ldots",
    "dotsb": r"\ldots", "prime": "'", "longrightarrow": r"\to", "rightarrow": r"\to", "implies": r"\Rightarrow",
    "bigcup": r"\cup", "vee": r"\lor", "imath": "i", "land": ",", "lor": ",", "space": " ",
    "quad": " ", "qquad": " ", "enspace": " ", "thinspace": " ", "hspace": " ", "percent": "%",
}  # fmt: skip
_SIZES = frozenset(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle "
    "scriptstyle limits nolimits bf rm it".split()
)
_FONTS = frozenset("mathrm mathbf mathit mathsf boldsymbol bm vec hat operatorname".split())
_TEXTS = frozenset("text textbf textit textrm textsf textnormal mbox hbox emph underline".split())
_WORD = re.compile(rf"\\(?:({'|'.join(_FONTS | _TEXTS)})\s*\{{([^{{}}]*)\}}|([A-Za-z]+))")
_ELLIPSIS = re.compile(r"\.\s?\.\s?\.")
_DEGREE = re.compile(r"\^\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?|\\degree(?![A-Za-z])")
_TEXT = re.compile(r"(\\text\{[^{}]*\})")
_TEXT_JOIN = re.compile(r" ?,? ?\\text\{,? ?(?:and|or)\} ?,? ?")
_JOIN = re.compile(r" ?,? ?(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]) ?,? ?")
_GROUP_MARKS = r",\\!\s*|\{,\}|\\,|\\!|\\;|\\ |~| "
_GROUPED = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:(?:{_GROUP_MARKS}|,)\d{{3}})+(?!\d)")
_GROUPED_NOT_BY_COMMA = re.compile(rf"(?<![\d.])\d{{1,3}}(?:(?:{_GROUP_MARKS})\d{{3}})+(?!\d)")
_BLANK = re.compile(r"(?:\\[,;:! ]|[\s~])+")
_MIXED = re.compile(r"(?<![\d./])(\d+) (\d+)/(\d+)(?![\d./])")
_INNER_BLANK = re.compile(r"(\\[A-Za-z]+|\d)? (?=([A-Za-z]|\d)?)")
_FUNCTION = re.compile(r"(?<![A-Za-z\\])((?:arc)?(?:sin|cos|tan)|cot|sec|csc|log|ln|sqrt|pi)(?![A-Za-z])")

_ONES = dict(
    zip(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen".split(),
        range(20),
        strict=True,
    )
)
_TENS = dict(zip("twenty thirty forty fifty sixty seventy eighty ninety".split(), range(20, 100, 10), strict=True))


@lru_cache(maxsize=4096)
def plain(text: str, *, commas_group: bool = True) -> str:
    """The text without what does not change its meaning.

    Size and font commands, dollar signs, blanks and a closing full stop go; a blank between two digits stays, as `3 4`
    is not 34. Commands with one meaning get one name, digit groups are joined, a number word becomes a number.

    Args:
        text: An answer as it stands in a box.
        commas_group: Whether `1,234` is one number; otherwise it is two, and only other group marks join.
    """
    text = re.sub(r"\s+", " ", text.translate(_UNICODE))  # the patterns below rely on single blanks to be fast
    bare = _ELLIPSIS.sub(r"\\ldots ", text).replace("\\\\", ROW_END)
    for mark, same in (("\\(", ""), ("\\)", ""), ("\\[", "["), ("\\]", "]"), ("\\%", "%"), ("\\$", "\\dollar ")):
        bare = bare.replace(mark, same)
    bare = _DEGREE.sub(r"\\degree ", bare.replace("$", ""))
    bare = _TEXT_JOIN.sub(",", _WORD.sub(_one_name, bare))
    pieces = _TEXT.split(bare)  # what stands in \text keeps its blanks
    pieces[::2] = [_without_blanks(piece, commas_group) for piece in pieces[::2]]
    bare = "".join(pieces).strip().removesuffix(".")
    bare = bare.replace("\\{\\}", "\\emptyset").rstrip(" ")
    return number_word(bare)


def _without_blanks(piece: str, commas_group: bool) -> str:
    piece = _FUNCTION.sub(r"\\\1 ", _JOIN.sub(",", piece))
    grouped = _GROUPED if commas_group else _GROUPED_NOT_BY_COMMA
    piece = _BLANK.sub(" ", grouped.sub(lambda match: re.sub(r"\D", "", match.group()), piece))
    piece = re.sub(r"_(\d) (?=\d)", r"_{\1}", piece.strip(" ") if not piece.strip() else piece)
    piece = _MIXED.sub(r"\1\\frac{\2}{\3}", piece)
    return _INNER_BLANK.sub(_kept_blank, piece)


def _one_name(match: re.Match[str]) -> str:
    setting, group, command = match.groups()
    if command in _SIZES:
        return ""
    if command is not None:
        return _SAME_COMMANDS.get(command, "\\" + command)
    group = " ".join(group.replace("~", " ").split())
    if not group:
        return " "
    if setting in _FONTS and (len(group) == 1 or group.isdigit()):
        return group
    return f"\\text{{{group}}}"


def _kept_blank(match: re.Match[str]) -> str:
    before, after = match[1] or "", match[2] or ""
    parts_digits = before.isdigit() and after.isdigit()
    parts_command = before.startswith("\\") and after.isalpha()
    return before + (" " if parts_digits or parts_command else "")


def number_word(plain_text: str) -> str:
    """`two`, `\\text{twenty-one}` or `Three hundred` as digits, with or without `\\text`; anything else as it is."""
    words = re.sub(r"\\text\{([^{}]*)\}", r"\1", plain_text).strip().lower()
    if not words.replace("-", "").replace(" ", "").isalpha():
        return plain_text
    total, taken = 0, False
    for word in re.findall(r"[a-z]+", words):
        if word in _TENS and total % 100 == 0:
            total += _TENS[word]
        elif word in _ONES and (total % 100 == 0 or (total % 10 == 0 and total % 100 >= 20 and 0 < _ONES[word] < 10)):
            total += _ONES[word]
        elif word == "hundred" and 0 < total < 10:
            total *= 100
        else:
            return plain_text
        taken = True
    return str(total) if taken else plain_text


def parts(plain_text: str, separators: frozenset[str]) -> tuple[list[str], list[str]]:
    """The parts between the separators that stand outside all brackets, and those separators."""
    found: list[str] = []
    between: list[str] = []
    depth, start = 0, 0
    for match in TOKEN.finditer(plain_text):
        token = match.group().rstrip(" ") or " "
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0 and token in separators:
            found.append(plain_text[start : match.start()])
            between.append(token)
            start = match.end()
    return [*found, plain_text[start:]], between


def brackets(plain_text: str) -> tuple[str, str]:
    """The bracket pair around the whole ("" if there is none) and what it holds."""
    opening = re.match(r"[(\[]|\\\{|\\langle ?", plain_text)
    closing = re.search(r"(?:[)\]]|\\\}|\\rangle)\Z", plain_text)
    if not opening or not closing or closing.start() < opening.end():
        return "", plain_text
    depth = 0
    for match in TOKEN.finditer(plain_text):
        token = match.group().rstrip(" ")
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0 and match.end() < len(plain_text):
            return "", plain_text
    if depth:
        return "", plain_text
    return opening.group().strip(" ") + closing.group(), plain_text[opening.end() : closing.start()]


def readable_words(plain_text: str) -> str | None:
    """The words of a text that is nothing but words, in one case unless it is a single letter; None otherwise.

    Without `\\text` only letters count as words, so that `(B)` and `even` can be compared with `\\text{(B)}`.
    """
    words = re.sub(r"\\text\{([^{}]*)\}", r"\1", plain_text)
    words = re.sub(r"[\s().,:]", "", words)
    if not words or not re.fullmatch(r"[A-Za-z'-]+", words) or words in GREEK:
        return None
    return words if len(words) == 1 else words.lower()
