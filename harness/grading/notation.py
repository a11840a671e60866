"""Write LaTeX in plain notation, which has a single spelling for each meaning."""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from harness.grading.formula import FUNCTIONS
from harness.grading.units_and_words import (
    AND,
    HALF_DAY_BY_LETTER,
    HEDGES,
    OR,
    in_digits,
    rewrite_bases_and_conjunctions,
    rewrite_loose_words,
    rewrite_text_group,
)

TOKEN = re.compile(r"\\[A-Za-z]+ ?|\\.|.", re.DOTALL)
r"""Splits a text, because a command or bracket such as `\frac` or `\{` has several characters."""
ROW_END = "¶"
"""The mark in plain notation for the double backslash that ends a row."""

_ASCII_TABLE = str.maketrans(
    {
        character: command
        for command, characters in {
            "-": "−–‐", "*": "×·⋅", "/": "÷⁄", "'": "’′", '"': "“”", r"\pi ": "π",  # noqa: RUF001
            r"\theta ": "θ", r"\infty ": "∞", r"\le ": "≤", r"\ge ": "≥", r"\ne ": "≠",
            r"\approx ": "≈", r"\ldots ": "…", r"\pm ": "±", r"\mp ": "∓", r"\checkmark ": "✓✔",
            ", ": "、", ".": "。", r"\cup ": "∪", r"\in ": "∈", r"\emptyset ": "∅",  # noqa: RUF001
            r"\degree ": "°", r"\mathbb{R}": "ℝ", r"\setminus ": "∖",  # noqa: RUF001
        }.items()
        for character in characters
    }
)  # fmt: skip
_COMMAND_BY_SYNONYM = {
    command: main_command
    for main_command, commands in {
        r"\frac": "dfrac tfrac cfrac", r"\binom": "dbinom tbinom", r"\le": "leq leqslant",
        r"\ge": "geq geqslant", r"\ne": "neq", "<": "lt", ">": "gt", "*": "times cdot ast",
        "/": "div", ":": "colon", r"\setminus": "backslash", r"\{": "lbrace", r"\}": "rbrace",
        "[": "lbrack", "]": "rbrack", "|": "lvert rvert vert mid", r"\emptyset": "varnothing",
        r"\ldots": "dots cdots dotsc", r"\to": "rightarrow", r"\cup": "bigcup",
        r"\overline": "bar", f" {OR} ": "lor", f" {AND} ": "land",
    }.items()
    for command in commands.split()
}  # fmt: skip
_UNIT_BY_CJK_WORD = {
    "元": "yuan", "円": "yen", "度": "degree", "个": "unit", "人": "people", "小时": "h",
    "分钟": "min", "秒": "s", "毫米": "mm", "厘米": "cm", "千米": "km", "公里": "km", "米": "m",
    "美元": "dollar", "美分": "cent", "种": "unit", "岁": "year", "天": "day",
    "平方": "square ", "立方": "cubic ",
}  # fmt: skip
"""Chinese and Japanese units and their prefixes."""
_CJK_UNIT = rf"(?<=\d) ?(?:\\text\{{ ?)?(平方|立方)?({'|'.join(_UNIT_BY_CJK_WORD)}) ?\}}?(?=\.?\Z)"
"""Matches ` 平方米` after the 5 of `5 平方米`, because models may answer in Chinese."""
_DROPPED_COMMANDS = frozenset(
    """
    left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle
    textstyle scriptstyle limits nolimits bf rm it small normalsize large Large LARGE huge Huge
    """.split()
)
"""Commands that change only the size or the looks: `\\left(`, `\\displaystyle`."""
_FONT_COMMANDS = frozenset("mathrm mathbf mathit mathsf boldsymbol bm vec hat operatorname".split())
"""Commands whose content is a name in another font: `\\mathbf{x}`."""
_TEXT_COMMANDS = frozenset(
    "text textbf textit textrm textsf textnormal mbox hbox emph underline".split()
)
"""Commands whose content is words: `\\textbf{cm}`."""
_COMMAND = re.compile(
    rf"\\(?:({'|'.join(_FONT_COMMANDS | _TEXT_COMMANDS)}) ?\{{([^{{}}]*)\}}|([A-Za-z]+))"
)
r"""Matches a command that `_rename_command` replaces: `\text{cm}`, `\mathbf{x}`, `\left`."""
_SUBSCRIPTS_OR_SUPERSCRIPTS = re.compile("([₀-ₜᵢ-ᵪⱼ]+)|[²³¹ºª⁰-ⁿʰ-ʸˠ-ˤᴬ-ᵡ]+")
"""Matches raised and lowered characters, which are written with `^` or `_`: `²` in `x²`, and as
group 1 `₁` in `a₁`."""
_FULL_STOP = re.compile(r"(?<!\.)\.[ $]*\Z")
"""The last dot of `5.`, which ends the sentence, but not that of `1,2,...`."""
_REWRITING_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # The double backslash that ends a row gets a mark: `1\\2`, `1\\[2pt]2` (with a distance).
        (r"\\\\ ?(?:\[-?[\d.]+ ?[a-z]{2}\])?", ROW_END),
        # `5\ ` has lost its last blank by now. It gets the blank back, so that the next rule can
        # remove its backslash too.
        (r"\\\Z", r"\\ "),
        (
            # All of these print as a blank or as nothing: `5\,cm`, `5~cm`, `5\quad cm`.
            r"\\[,;:> ]|~|\\(?:q?quad|enspace|thinspace|space)(?![A-Za-z])"
            # The length of a space means nothing either: `5\hspace{1mm}cm`, `5  cm`.
            r"|\\[hv](?:space|phantom)\*?\{[^{}]*\}| +",
            " ",
        ),
        # In `\$5` the dollar is a unit. It is renamed, because the next rule removes dollar signs.
        (r"\\\$ ?", r"\\dollar "),
        # The signs around a formula are not part of it: `$5$`, `\(5\)`.
        (r"\$|\\[()]", ""),
        (
            # A check mark and a sign of conclusion do not change an answer: `5\checkmark`,
            # `\therefore 5`.
            r"(?<=[^ ]) *\\checkmark(?![A-Za-z]) ?|\A\\therefore(?![A-Za-z]) *"
            # Nor do the words of `\text{the answer is }5`. But a hedge does, as in `\text{not: }5`,
            # and the letter in `\text{A: }5` names a choice, so these stay.
            rf"|\A\\text\{{(?![^{{}}]*\b(?:{HEDGES})\b|[A-E]:)[^{{}}]*(?: is|:) ?\}}(?=.)",
            "",
        ),
        # A currency moves behind its number, where units are looked for: `€5` is `5\text{€}`.
        (
            r"\A(?:\\text\{ ?)?(USD|EUR|GBP|Rs\.?|[€£₹¥])(?: ?\})? ?(\d.*)",
            r"\2\\text{\1}",
        ),
        # Units have English names: `5平方米` is `5\text{square m}`.
        (
            _CJK_UNIT,
            lambda match: (
                f"\\text{{{_UNIT_BY_CJK_WORD.get(match[1], '')}{_UNIT_BY_CJK_WORD[match[2]]}}}"
            ),
        ),
        # A time of day is compared as a value, so `\text{3:05}` must not stay text.
        (r"\\text\{ ?(\d\d?:\d\d[^{}]*)\}", r"\1"),
        # `3:05 pm`, `3:05\text{ p.m.}` and `3:\!05pm` are `3:05\text{afternoon}`.
        (
            r"(?i)(?<=[:!]\d\d) ?(?:\\text\{ ?([ap])\.? ?m\.? ?\}|([ap])\.? ?m\.?(?![A-Za-z]))",
            lambda match: f"\\text{{{HALF_DAY_BY_LETTER[(match[1] or match[2]).lower()]}}}",
        ),
        # A dot over the last digit repeats it, as a line does: `0.\dot{3}` is `0.\overline{3}`.
        (r"(?<=[\d.])\\dot ?\{(\d)\}", r"\\overline{\1}"),
        # Plain TeX writes the fraction `\frac{1}{2}` as `{1 \over 2}`.
        (
            r"\{([^{}]*(?:\{[^{}]*\}[^{}]*)??)\\over(?![A-Za-z])([^{}]*(?:\{[^{}]*\}[^{}]*)?)\}",
            r"\\frac{\1}{\2}",
        ),
        # ISO 80000-2 also allows outward brackets for open ends: `]3,4]` is `(3,4]`.
        (r"(\A|\\in ?|\\cup ?)\](?=[^\[\]()]*,[^\[\]()]*[\])])", r"\1("),
        # `2^3 5^2` is `2^3*5^2`. Blanks are removed later, and `2^35^2` would be another number.
        (r"(\d ?\^ ?(?:\d|\{-?\d+\})) +(?=\d)", r"\1*"),
        # The backslash of `50\%` and `\|x\|` changes only the looks of the sign.
        (r"\\([%|\[\]])", r"\1"),
        # Models also write operators as in programs: `2**3` is `2^3`, and `x<=5` is `x\le 5`.
        (r"\*\*", "^"),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (
            # The degree sign has many spellings: `30^{\circ}`, `30^\circ`, `30\degree`.
            r"\^ ?(?:\{ ?\\(?:circ|degree) ?\}|\\(?:circ|degree)(?![A-Za-z]))|\\degree(?![A-Za-z])"
            # A raised letter o is typed for it too: `30^o`, `30^{\text{o}}`.
            r"|(?<=\d)\^(?:o|\{o\}|\{?\\(?:text|mathrm)\{o\}\}?)(?![A-Za-z])",
            r"\\degree ",
        ),
        # Programs print 1500 as `1.5e3`. There e is not Euler's number.
        (r"(?<![\w.}])(\d+(?:\.\d+)?)[eE]([-+]?\d+)(?![\w^]|\.\d)", r"\1*10^{\2}"),
        # A power of 1 is 1, even if its exponent is too large to compute: `1^{9^{99}}`.
        (r"(?<![\w.}^])1\^(?:\d+|\{\d+(?:\^(?:\d+|\{\d+\}))?\})", "1"),
        # Units are compared with a slash: `\frac{\text{cm}}{\text{s}}` is `\text{cm/s}`.
        (
            r"\\frac ?\{\\(?:text|mathrm)\{([^{}]*)\}\}\{\\(?:text|mathrm)\{([^{}]*)\}\}",
            r"\\text{\1/\2}",
        ),
        # Plain TeX writes the binomial `\binom{5}{2}` as `{5 \choose 2}`.
        (r"\{?(\w+) ?\\choose ?(\w+)\}?", r"\\binom{\1}{\2}"),
        (
            # Colours and boxes mean nothing: `\textcolor{red}{5}`, `\boxed{5}`.
            r"\\(?:text)?color ?\{[^{}]*\}|\\(?:boxed|fbox) ?(?=\{)"
            # A text command around a formula means nothing: `\text{\frac12}`, `\text{x=5}`.
            rf"|\\(?:{'|'.join(_TEXT_COMMANDS)}) ?(?=\{{(?:[-\d ]*\\(?:frac|sqrt)|[a-z] ?=))"
            # The font of `\mathbf{x+1}` means nothing. That of `\mathrm{cm}` stays, because
            # `_rename_command` reads letters, digits or a unit as a name or as text.
            rf"|\\(?:{'|'.join(_FONT_COMMANDS)}) ?(?=\{{)(?!\{{(?:[A-Za-z ./]*(?:\^.)?|\d*)\}})",
            "",
        ),
    )
)
"""Patterns and their replacements, in the order of application. Later ones rely on earlier ones."""
_DIGIT_GROUP_MARKS = r",\\! ?|\{,\}|\\!| "
r"""What stands between the digits of `58{,}500`, `58\!500`, `58 500`."""
_DIGIT_GROUPS = re.compile(rf"(?<![\d.,])[1-9]\d{{,2}}(?:(?:{_DIGIT_GROUP_MARKS}|,)\d{{3}})+(?!\d)")
"""Matches digits in groups of three, which are a single number: `58,500`, `1 234 567`."""
_REST_OF_ENTRY = re.compile(
    r"(?:[^()\[\]{},;\\]|\\[^}]|[(\[{][^()\[\]{}]*[)\]}])*(,(?! )|[)\]]|\\\})"
)
r"""Finds the mark at the right of a digit group that `_separates_entries` needs, as group 1.

It is the nearest comma without a blank after it, or the nearest closing bracket: `)` in
`(58,500\pi)`, the last comma of `58,500,3`. Nothing matches if a semicolon, a comma with a blank or
the end of the clause comes first. Brackets that open and close before the mark are skipped. A brace
is a mark only as `\}`, because `}` alone ends the argument of a command."""
_REVERSED_BEGINNING_OF_ENTRY = re.compile(
    r"(?:[^()\[\]{},;]|[)\]}][^()\[\]{}]*[(\[{])*((?<! ),|[(\[]|\{\\)"
)
"""Finds the same mark at the left of a digit group: a comma, or an opening bracket.

The text before the group is reversed for it, because `re` cannot match backwards: `(-` before the
group in `(-58,500)` is `-(`."""
_DIGIT_GROUPS_WITHOUT_COMMA = re.compile(
    rf"(?<![\d.])[1-9]\d{{,2}}(?:(?:{_DIGIT_GROUP_MARKS})\d{{3}})+(?!\d)"
)
"""Matches `58 500`, but not `58,500`, for the reading in which a comma separates two numbers."""
_CLAUSE_ENDS = re.compile(rf"([+*/=<>:{OR}{AND}]|(?<=[\w}}) ])-|\b(?:and|or)\b)")
"""Operators and words, such as the `=` of `x=1,2`. No list of numbers extends beyond them."""
_LIST_SEPARATOR = re.compile(r",(?!\d)|;|(?<![A-Za-z])(?:and|or|\\lor|\\land)(?![A-Za-z])")
"""A sign that a text is a list: the comma of `1, 2`, the `or` of `1 or 2`, but not the comma of
`58,500`."""
_TEXT_GROUP = re.compile(r"(\\text\{[^{}]*\})")
r"""Matches `\text{ cm}`, whose blanks separate words and stay."""
_TYPED_FUNCTION = re.compile(rf"(?<![A-Za-z\\])({'|'.join(FUNCTIONS)}|sqrt|pi)(?![A-Za-z])")
r"""Matches a command that was typed without its backslash, `sqrt` in `2sqrt(3)`, but not in
`\sqrt`."""
_MIXED_NUMBER = re.compile(r"(?<![\d./])(\d+) (\d+)/(\d+)(?![\d./])")
"""Matches `3 1/2`, three and a half, which would be 31/2 without its blank."""
_BARE_MATHBB = re.compile(r"\\mathbb ?([A-Z])")
r"""Matches `\mathbb R`, which means the same as `\mathbb{R}`."""
_INNER_BLANK = re.compile(r"(\d (?=\d)|\\[A-Za-z]+ (?=[A-Za-z]))| ")
r"""Matches a blank. Group 1 has a blank that stays: `3 4` is not 34, and `\pi r` is not `\pir`."""
_OPENING_BRACKETS = frozenset(r"( [ { \{ \langle".split())
_CLOSING_BRACKETS = frozenset(r") ] } \} \rangle".split())
# Braces print nothing, and are removed, between two of these: `x={1},y={2}` is `x=1,y=2`.
_AROUND_BRACES = (*rf"= , ; < > & | : \le \ge \ne \approx \cup {ROW_END}".split(), OR, AND)
_BEFORE_BRACES = frozenset(["", "(", "[", "{", "\\{", "\\in", *_AROUND_BRACES])
_AFTER_BRACES = (")", "]", "}", "\\}", "\\setminus", *_AROUND_BRACES)


@lru_cache(maxsize=4096)
def in_plain_notation(text: str, *, commas_group_digits: bool = True) -> str:
    """Write a text in plain notation.

    Size and font commands, dollar signs, blanks and a final full stop are removed. A blank between
    two digits stays, as `3 4` is not 34. Commands of the same meaning get the same name, digit
    groups are joined, and number words become numbers.

    Args:
        text: An answer, as it stands in a box.
        commas_group_digits: Whether `1,234` is a single number. If not, it is two numbers, and only
            other marks join digit groups.
    """
    # line breaks are blanks, and single blanks keep the patterns of the rules fast
    text = re.sub(r"\s+", " ", _in_ascii(text))
    # `$5$.` is 5, because the formula's signs and the sentence's end are not part of the answer
    text = _FULL_STOP.sub("", text.strip(" $"))
    # number words are read now, because `five thousand` would lose its blank below
    number_text = in_digits(text)
    if number_text != text:
        return number_text
    for pattern, replacement in _REWRITING_RULES:
        text = pattern.sub(replacement, text)
    # `\dfrac` is now `\frac`, and `\text{1 or 2}` a text that can be split at its `or`
    text = rewrite_bases_and_conjunctions(_COMMAND.sub(_rename_command, text))
    digit_group_pattern = _DIGIT_GROUPS if commas_group_digits else _DIGIT_GROUPS_WITHOUT_COMMA
    # `1,000` becomes 1000, clause by clause, because no list of numbers extends beyond a clause
    text = "".join(
        digit_group_pattern.sub(_join_digit_group, clause) for clause in _CLAUSE_ENDS.split(text)
    )
    # every second piece is a `\text{...}`, whose blanks must stay
    pieces = _TEXT_GROUP.split(text)
    pieces[::2] = map(_rewrite_outside_text, pieces[::2])
    # A command that is removed by now may have hidden the full stop, as in `5.\right`. The mark of
    # the last row's end is removed too, because there is no next row.
    text = _FULL_STOP.sub("", "".join(pieces).strip(f" {ROW_END}"))
    # a sign in front, as in `=5` and `\approx5`, only continues the sentence before the box
    text = text.removeprefix("=").removeprefix("\\approx").lstrip(" ")
    # `{5}` prints as 5, and `\{\}` is another sign for the empty set
    text = _without_redundant_braces(text).replace("\\{\\}", "\\emptyset")
    # `\pi(2)` is a product, but without a sign it would be read like `f(2)`, a function's value.
    # Number words are read again, because some were not alone at first: `{\text{five}}`, `=five`.
    return in_digits(text.replace("\\pi(", "\\pi*("))


def readings(text: str, compared_text: str) -> list[str]:
    """The plain texts that `text` may mean, compared with another text.

    Usually there is one. If the compared text is a list, `100,200` has two: a number, and a list of
    two numbers. A blank after a comma, `;`, `and` or `or` shows that it is a list. A digit group
    that begins with 0, as in `1,000`, is not a number by itself, so this text has only one meaning.
    """
    if not _LIST_SEPARATOR.search(compared_text) or re.search(r",0\d", text):
        return [in_plain_notation(text)]
    return sorted({in_plain_notation(text), in_plain_notation(text, commas_group_digits=False)})


class SplitText(NamedTuple):
    """The pieces of a text, and the separators between them."""

    pieces: list[str]
    separators: list[str]


def split_outside_brackets(plain_text: str, separators: frozenset[str]) -> SplitText:
    """Split a text at the separators outside all brackets."""
    # Most texts have no separator. This search is much faster than finding all tokens.
    if not any(separator in plain_text for separator in separators):
        return SplitText([plain_text], [])
    pieces = []
    matched_separators = []
    piece_start = 0
    for match in _match_outside_brackets(plain_text):
        token = match.group().rstrip(" ")
        if token in separators:
            pieces.append(plain_text[piece_start : match.start()])
            matched_separators.append(token)
            piece_start = match.end()
    return SplitText([*pieces, plain_text[piece_start:]], matched_separators)


def _match_outside_brackets(plain_text: str) -> Iterator[re.Match[str]]:
    """Match the tokens outside all brackets, and those that close an outermost bracket."""
    depth = 0
    for match in TOKEN.finditer(plain_text):
        token = match.group().rstrip(" ")
        # brackets of different kinds count alike, as in the interval [0,1)
        depth += (token in _OPENING_BRACKETS) - (token in _CLOSING_BRACKETS)
        if depth == 0:
            yield match


def read_brackets(plain_text: str) -> tuple[str, str]:
    """The pair of brackets around a text, and the text inside: `()` and `1,2` for `(1,2)`.

    The pair is "" if there are no such brackets, and the text is returned as it is.
    """
    opening_match = re.match(r"[(\[]|\\\{|\\langle ?", plain_text)
    closing_match = re.search(r"(?:[)\]]|\\\}|\\rangle)\Z", plain_text)
    if not opening_match or not closing_match:
        return "", plain_text
    # in `(1)+(2)` the first bracket closes before the end, so it and the last one are not a pair
    if any(match.end() < len(plain_text) for match in _match_outside_brackets(plain_text)):
        return "", plain_text
    content = plain_text[opening_match.end() : closing_match.start()]
    return opening_match.group().strip(" ") + closing_match.group(), content


def _in_ascii(text: str) -> str:
    """Write superscripts as powers, `⅓` as a fraction, and characters in their compatible form."""
    if text.isascii():
        return text
    # scripts come first, because the compatible form of `x²` is `x2`
    text = _SUBSCRIPTS_OR_SUPERSCRIPTS.sub(_as_script, text.translate(_ASCII_TABLE))
    text = "".join(map(_in_compatible_form, text))
    degree_by_root_sign = {"√": "", "∛": "[3]", "∜": "[4]"}
    # √12 has no braces, so its root ends where the number ends: `\sqrt{12}`
    text = re.sub(
        r"([√∛∜]) ?(\d+(?:\.\d+)?)",
        lambda match: f"\\sqrt{degree_by_root_sign[match[1]]}{{{match[2]}}}",
        text,
    )
    # The table is applied again, because a compatible form may have one of its characters: that of
    # `℃` is `°C`. The signs that are left stand before something else than a number, as in √x.
    return text.translate(_ASCII_TABLE).replace("√", r"\sqrt ")


def _as_script(match: re.Match[str]) -> str:
    """A run of superscripts or subscripts as one exponent or index: `x¹²` is x^{12}."""
    script = unicodedata.normalize("NFKC", match.group())
    # braces only if needed: in `\text{...}` a closing brace would end the text
    if len(script) > 1 or match.string[match.end() :][:1].isdigit():
        script = f"{{{script}}}"
    return ("_" if match[1] else "^") + script


def _in_compatible_form(character: str) -> str:
    """Write a character in the form that Unicode calls compatible: `ﬁ` as fi, `½` as a fraction.

    It stays as it is if that form has more than four characters.
    """
    compatible_text = unicodedata.normalize("NFKC", character)
    # some characters stand for sentences, such as U+FDFA
    if len(compatible_text) > 4:
        return character
    # the compatible form of `½` has a fraction slash, U+2044, between its digits
    return re.sub(r"(\d+)\u2044(\d+)", r"\\frac{\1}{\2}", compatible_text)


def _rename_command(match: re.Match[str]) -> str:
    r"""The replacement of a command, which `_COMMAND` has matched.

    - A command about size is dropped: `\left`.
    - Another command gets its main name: `\dfrac` is `\frac`.
    - A single letter loses its font: `\mathbf{x}` is x. But in `5\mathrm{m}` it is a unit.
    - All other fonts are `\text`, which may contain a number or a list: `\textbf{cm}` is
      `\text{cm}`, and `\text{5}` is 5.
    """
    font_command, content, command = match.groups()
    if command in _DROPPED_COMMANDS:
        return ""
    if command is not None:
        return _COMMAND_BY_SYNONYM.get(command, "\\" + command)
    content = " ".join(content.split())
    text_before = match.string[: match.start()]
    text_after = match.string[match.end() :]
    # m, g, s and h after a number are metres, grams, seconds and hours
    is_unit = (
        font_command == "mathrm" and content in "mgsh" and text_before.rstrip()[-1:].isdecimal()
    )
    if font_command in _FONT_COMMANDS and len(content) == 1 and not is_unit:
        return content
    return rewrite_text_group(
        content,
        is_alone=not text_before.strip() and not text_after.strip(" ."),
        left_character=text_before[-1:],
        right_character=text_after[:1],
    )


def _join_digit_group(match: re.Match[str]) -> str:
    """Write `58,500` as 58500, unless its comma separates the entries of a list."""
    group = match.group()
    # only a bare comma can separate entries, not the marks of `58\,500` and `58{,}500`
    if re.search(r"\d,\d", group) and _separates_entries(match):
        return group
    return re.sub(r"\D", "", group)


def _separates_entries(digit_group_match: re.Match[str]) -> bool:
    """Whether the commas of a digit group separate the entries of a list.

    The nearest mark outside the group decides, on its left and on its right; a mark is a comma, a
    semicolon or a bracket. The commas separate entries in two cases:

    - One of the two marks is a comma without a blank after it, as in `1,234,5`. The commas of the
      group are written in the same way, so they mean the same.
    - Both marks are brackets, as in `(12,345)`. A pair of brackets usually holds several entries.

    Otherwise they group digits, as in `1,000` and `(1,000, 2)`.
    """
    text = digit_group_match.string
    matches = (
        _REVERSED_BEGINNING_OF_ENTRY.match(text[: digit_group_match.start()][::-1]),
        _REST_OF_ENTRY.match(text, digit_group_match.end()),
    )
    # A side matches only if its nearest mark is a comma without a blank after it, or a bracket that
    # encloses the group. Any other side says nothing about the group's commas, and is left out.
    nearest_marks = [match[1] for match in matches if match]
    # without a comma, two marks are the brackets around the group
    return "," in nearest_marks or len(nearest_marks) == 2


def _rewrite_outside_text(piece: str) -> str:
    r"""Write loose words of a piece as `\text{...}`, `sqrt` as `\sqrt`, and remove blanks.

    A blank stays where its neighbours would join: see `_INNER_BLANK`.
    """
    # `\!` prints nothing. It stayed until here because it may stand between digit groups.
    piece = _TYPED_FUNCTION.sub(r"\\\1 ", rewrite_loose_words(piece)).replace("\\!", "")
    # a mixed number such as `3 1/2` is recognised by its blank, so it is rewritten first
    piece = _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", re.sub(" +", " ", piece))
    return _BARE_MATHBB.sub(r"\\mathbb{\1}", _INNER_BLANK.sub(r"\1", piece))


def _without_redundant_braces(text: str) -> str:
    """Remove braces that print nothing: around the text, an entry, or a side of a relation.

    A pair is removed if one of `_BEFORE_BRACES` stands before it, and one of `_AFTER_BRACES` or the
    end of the text behind it. Other braces, as in `x^{2}`, enclose the argument of a command.
    """
    # most texts have no braces, and this is much faster than finding all tokens
    if "{" not in text:
        return text
    # of each brace that is still open, its position, and whether the token before it allows removal
    open_braces = []
    dropped_positions: set[int] = set()
    previous_token = ""
    for match in TOKEN.finditer(text):
        token = match.group()
        if token == "{":
            open_braces.append((match.start(), previous_token in _BEFORE_BRACES))
        elif token == "}" and open_braces:
            opening_position, is_removable = open_braces.pop()
            is_last = match.end() == len(text)
            if is_removable and (is_last or text.startswith(_AFTER_BRACES, match.end())):
                dropped_positions |= {opening_position, match.start()}
        previous_token = token.rstrip(" ")
    return "".join(
        character for index, character in enumerate(text) if index not in dropped_positions
    )
