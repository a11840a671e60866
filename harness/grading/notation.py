"""Plain notation: one spelling for what LaTeX can write in many ways. The meaning does not change."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import groupby

from harness.grading.formula import FUNCTIONS, GREEK

TOKEN = re.compile(r"\\[A-Za-z]+ ?|\\.|.", re.DOTALL)

ROW_END, OR = "¶", "¦"
"""The marks in plain notation for the double backslash that ends a row, and for `or`, which parts lists as a comma does."""
_OPENING, _CLOSING = frozenset(["(", "[", "{", "\\{", "\\langle"]), frozenset([")", "]", "}", "\\}", "\\rangle"])
_AROUND_GROUP = ("=", ",", ";", "<", ">", "&", "|", ":", "\\le", "\\ge", "\\ne", "\\approx", "\\cup", ROW_END, OR)
_STARTS_GROUP = frozenset(["", "(", "[", "{", "\\{", "\\in", *_AROUND_GROUP])
_ENDS_GROUP = (")", "]", "}", "\\}", "\\setminus", *_AROUND_GROUP)
_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",  # noqa: RUF001
        "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∈": r"\in ",  # noqa: RUF001
        "∅": r"\emptyset ", "°": r"\degree ", "…": r"\ldots ", "θ": r"\theta ", "’": "'", "′": "'", "⁄": "/",  # noqa: RUF001
        "‐": "-", "‑": "-", "‒": "-", "ℝ": r"\mathbb{R}", "º": r"\degree ", "˚": r"\degree ",  # noqa: RUF001
        "∖": r"\setminus ", "∩": r"\cap ", "∠": r"\angle ", "“": '"', "”": '"', "‘": "'",  # noqa: RUF001
    }
)  # fmt: skip
_SAME_COMMANDS = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "dbinom": r"\binom", "tbinom": r"\binom",
    "leq": r"\le", "leqslant": r"\le", "leqq": r"\le", "geq": r"\ge", "geqslant": r"\ge", "geqq": r"\ge",
    "neq": r"\ne", "lt": "<", "gt": ">", "times": "*", "cdot": "*", "ast": "*", "div": "/", "colon": ":",
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lvert": "|", "rvert": "|", "vert": "|",
    "mid": "|", "varnothing": r"\emptyset", "dots": r"\ldots", "cdots": r"\ldots", "dotsc": r"\ldots",
    "dotsb": r"\ldots", "prime": "'", "longrightarrow": r"\to", "rightarrow": r"\to", "implies": r"\Rightarrow",
    "bigcup": r"\cup", "imath": "i", "percent": "%", "top": "T", "backslash": r"\setminus", "doteq": r"\approx",
    "vee": f" {OR} ", "lor": f" {OR} ", "wedge": ", ", "land": ", ",
}  # fmt: skip
_SIZES = frozenset(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle "
    "scriptstyle limits nolimits bf rm it".split()
)
_FONTS = frozenset("mathrm mathbf mathit mathsf boldsymbol bm vec hat operatorname".split())
_TEXTS = frozenset("text textbf textit textrm textsf textnormal mbox hbox emph underline".split())
_FONT = re.compile(
    rf"\\(?:{'|'.join(_FONTS)}) ?(?=\{{)(?!\{{(?:[A-Za-z .]*(?:\^.)?|\d*)\}})|\\(?:text)?color ?\{{[^{{}}]*\}}"
)
"""A font around a formula, or a colour. Around letters and digits a font is a `_WORD`."""
_WORD = re.compile(rf"\\(?:({'|'.join(_FONTS | _TEXTS)}) ?\{{([^{{}}]*)\}}|([A-Za-z]+))")
_BLANK_COMMAND = re.compile(
    r"\\[,;:> ]|~|\\(?:q?quad|enspace|thinspace|space)(?![A-Za-z])|\\[hv](?:space|phantom)\*?\{[^{}]*\}| +"
)
_ROW_END = re.compile(r"\\\\ ?(?:\[-?[\d.]+ ?[a-z]{2}\])?")
_ELLIPSIS = re.compile(r"\. ?\. ?\.")
_DEGREE = re.compile(
    r"\^ ?(?:\{ ?\\(?:circ|degree) ?\}|\\(?:circ|degree)(?![A-Za-z]))|\\degree(?![A-Za-z])"
    r"|(?<=\d)\^(?:o|\{o\}|\{?\\(?:text|mathrm)\{o\}\}?)(?![A-Za-z])"
)
_SIGNS = (
    ("\\(", ""), ("\\)", ""), ("\\[", "["), ("\\]", "]"), ("\\%", "%"), ("**", "^"), (">=", "\\ge "), ("<=", "\\le "),
    ("\\lbrace ", "\\{"), ("\\rbrace ", "\\}"),
)  # fmt: skip
_UNEQUAL = re.compile(r"(?<![\d)}\]]) ?!=")  # after a number it is a factorial and an equals sign
_TEXT = re.compile(r"(\\text\{[^{}]*\})")
_WORD_LIST = re.compile(r", (?:and|or) |, ?| (?:and|or|&) ")
_ORDINAL = re.compile(r"(?<=\d)(?:\^ ?\{? ?)?(?:\\text\{)?(?:st|nd|rd|th)\}{0,2}(?![A-Za-z}])")
_IN_BASE = re.compile(r"\(?(?:in )?base[ -](\w+)\)?")
_BASE_OUTSIDE = re.compile(
    r"(?:(?<=[\dA-F)]) ?|_\{? ?)\(?(?:\\text\{\(?(?:in )?base\} ?|(?:in )?base )(\w+)\)?\}?(?=\Z|,)"
)
_NOUNS = re.compile(r"(?<=[\d}%]) ((?:[A-Za-z]+[ -])*[A-Za-z]+)((?:\^\{?[23]\}?)?(?=\.?\Z| ?[,;]| (?:and|or) ))")
_NO_NOUN = re.compile(rf"\b(?:and|or|pi|[b-zB-Z]|{'|'.join(FUNCTIONS)})\b")
_TEXT_JOIN = re.compile(r" ?,? ?\\text\{,? ?(and|or)\} ?,? ?")
_JOIN = re.compile(r" ?,? ?(?<![A-Za-z\\])(and|or)(?![A-Za-z]) ?,? ?")
_GROUP_MARKS = r",\\! ?|\{,\}|\\!| "
_GROUPED = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:(?:{_GROUP_MARKS}|,)\d{{3}})+(?!\d)")
_GROUPED_NOT_BY_COMMA = re.compile(rf"(?<![\d.])\d{{1,3}}(?:(?:{_GROUP_MARKS})\d{{3}})+(?!\d)")
_LISTED = re.compile(r",(?:[\s~]|\\[,;: ])|;|(?<![A-Za-z])(?:and|or|\\lor|\\land|\\vee)(?![A-Za-z])")
_DOLLARS = r"[-+]?(?:\\dollar ?)?"
_NUMERAL = re.compile(rf"{_DOLLARS}\d[\d.,/:]*(?: \d+/\d+)?%?|[-+\d.,/:()\[\]*=^!% ]*\d[)\]% ]*")
_QUANTITY = re.compile(rf"({_DOLLARS}\d*[.,/]?\d+%?)(?: +(?=[^\W\d])|(?=[^\W\d]{{2}}))(.*)")
_ARGUMENT = rf"(\d|[A-Za-z]|\\(?:{'|'.join(sorted(GREEK))})(?![A-Za-z])) ?"
_FIRST_ARGUMENT = re.compile(rf"(\\(?:frac|binom|mathbb|sqrt(?:\[[^\[\]{{}}]*\])?)) ?{_ARGUMENT}")
_ROOT_OF_BRACKET = re.compile(r"\\sqrt ?\(([^()]*)\)")
_SECOND_ARGUMENT = re.compile(rf"(\\(?:frac|binom)\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}) ?{_ARGUMENT}")
_BLANK = re.compile(r"(?:\\!| )+")
_MIXED = re.compile(r"(?<![\d./])(\d+) (\d+)/(\d+)(?![\d./])")
_INNER_BLANK = re.compile(r"(\d (?=\d)|\\[A-Za-z]+ (?=[A-Za-z]))| ")  # group 1 is a blank that parts two things
_SCIENTIFIC = re.compile(r"(?<![\w.}])(\d+(?:\.\d+)?)[eE]([-+]?\d+)(?![\w.^])")
_BARE_FUNCTION = re.compile(rf"(?<![A-Za-z\\])({'|'.join(FUNCTIONS)}|sqrt|pi)(?![A-Za-z])")

_FROM_ZERO = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_FROM_TWENTY = "twenty thirty forty fifty sixty seventy eighty ninety"
ONES = {word: number for number, word in enumerate(_FROM_ZERO.split())}
TENS = {word: 10 * number for number, word in enumerate(_FROM_TWENTY.split(), start=2)}
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


@lru_cache(maxsize=4096)
def plain(text: str, *, commas_group: bool = True) -> str:
    """The text in plain notation.

    Size and font commands, dollar signs, blanks and a closing full stop go. A blank between two digits stays, as `3 4`
    is not 34. Commands of one meaning get one name, digit groups are joined, and number words become numbers.

    Args:
        text: An answer as it stands in a box.
        commas_group: Whether `1,234` is one number. If not, it is two, and only other marks join digit groups.
    """
    text = re.sub(r"\s+", " ", _in_ascii(text))  # the patterns below rely on single blanks to be fast
    words = text.strip(" .$")
    if (number := number_word(words)) != words:
        return number  # before `five thousand` loses its blank
    bare = _ROW_END.sub(ROW_END, text)
    bare = f"{bare} " if bare.endswith("\\") else bare  # the blank of a last `\ ` was stripped
    bare = _BLANK_COMMAND.sub(" ", _ELLIPSIS.sub(r"\\ldots ", bare)).replace("\\$ ", "\\$").replace("\\$", "\\dollar ")
    for sign, same in _SIGNS:
        bare = bare.replace(sign, same)
    bare = _DEGREE.sub(r"\\degree ", _UNEQUAL.sub(r"\\ne ", bare.replace("$", "")))
    bare = _WORD.sub(_one_name, _FONT.sub("", bare))
    bare = _NOUNS.sub(_noun, _ORDINAL.sub("", _BASE_OUTSIDE.sub(r"_{\1}", _TEXT_JOIN.sub(_comma, bare))))
    bare = (_GROUPED if commas_group else _GROUPED_NOT_BY_COMMA).sub(_joined_group, bare)
    pieces = _TEXT.split(bare)  # every second piece is a \text{...}, which keeps its blanks
    pieces[::2] = [_without_blanks(piece) for piece in pieces[::2]]
    bare = "".join(pieces).strip(f" {ROW_END}").removesuffix(".").removeprefix("=")
    bare = _without_groups(bare).replace("\\{\\}", "\\emptyset").rstrip(" ")
    return number_word(bare)


def readings(text: str, other: str) -> set[str]:
    """The plain texts that `text` may stand for, compared with `other`.

    `100,200` is one number. It may also be two if the other text is a list, as a blank after a comma, `;`, `and` or
    `or` shows.
    """
    return {plain(text), plain(text, commas_group=False)} if _LISTED.search(other) else {plain(text)}


def _in_ascii(text: str) -> str:
    """Raised and lowered characters become powers and subscripts, `⅓` a fraction, and others their plain form."""
    if text.isascii():
        return text
    runs = [(kind, "".join(run)) for kind, run in groupby(text.translate(_UNICODE), _form)]
    pieces = []
    for place, (kind, run) in enumerate(runs):
        spelled = "".join(map(_compatible, run))
        if kind in ("<super>", "<sub>"):
            # braces only if needed: within \text they would end it
            braced = len(spelled) > 1 or (place + 1 < len(runs) and runs[place + 1][1][0].isdigit())
            pieces.append("^_"[kind == "<sub>"] + (f"{{{spelled}}}" if braced else spelled))
        elif kind == "<fraction>":
            pieces += [re.sub(r"(\d+)\u2044(\d+)", r"\\frac{\1}{\2}", _compatible(character)) for character in run]
        else:
            pieces.append(spelled)
    spelled = re.sub(r"√ ?(\d+(?:\.\d+)?)", r"\\sqrt{\1}", "".join(pieces))  # no braces are needed in √12
    return spelled.translate(_UNICODE).replace("√", r"\sqrt ")


def _form(character: str) -> str:
    form = "" if character.isascii() else unicodedata.decomposition(character).partition(" ")[0]
    return form if form in ("<super>", "<sub>", "<fraction>") else ""


def _compatible(character: str) -> str:
    spelled = unicodedata.normalize("NFKC", character)
    return spelled if len(spelled) < 5 else character  # some single characters stand for whole sentences


def _joined_group(match: re.Match[str]) -> str:
    group = match.group()
    if re.search(r"\d,\d", group) and _parts_entries(match.string, match.start(), match.end()):
        return group
    return re.sub(r"\D", "", group)


def _parts_entries(text: str, start: int, end: int) -> bool:
    """Whether the commas of text[start:end] part the entries of a list, although they could group digits.

    They do in `(12,345)`, a bracket without another comma, and in `1,234,5`, where another comma is set like them. They
    do not in `(1,000, 2)`, where the other comma has a blank after it.
    """
    enclosed = []
    for places, step_out, step_in in ((range(start - 1, -1, -1), "([{", ")]}"), (range(end, len(text)), ")]}", "([{")):
        depth = 0
        for place in places:
            character = text[place]
            if character in step_in:
                depth += 1
            elif depth == 0 and character in ",;":
                if character == "," and text[place + 1 : place + 2] != " ":
                    return True
                break
            elif character in step_out:
                depth -= 1
                if depth < 0:
                    # the braces of a command, as in \frac{1,000}{3}, hold no list
                    enclosed.append(character not in "{}" or text[place - 1 : place] == "\\")
                    break
    return enclosed == [True, True]


def _without_blanks(piece: str) -> str:
    piece = _BLANK.sub(" ", _BARE_FUNCTION.sub(r"\\\1 ", _JOIN.sub(_comma, piece)))
    if " " in piece:
        piece = re.sub(r"_(\d) (?=\d)", r"_{\1}", piece)
        piece = _MIXED.sub(r"\1\\frac{\2}{\3}", piece)
        piece = _INNER_BLANK.sub(r"\1", piece)
    piece = _SCIENTIFIC.sub(r"\1*10^{\2}", _ROOT_OF_BRACKET.sub(r"\\sqrt{\1}", piece))
    if "\\" in piece:
        piece = _SECOND_ARGUMENT.sub(r"\1{\2}", _FIRST_ARGUMENT.sub(r"\1{\2}", piece))
    return piece


def _without_groups(text: str) -> str:
    """The text without braces that print nothing: those around the whole of it, of an entry, or of a side."""
    opened: list[tuple[int, bool]] = []
    dropped: set[int] = set()
    before = ""
    for match in TOKEN.finditer(text) if "{" in text else ():
        token = match.group()
        if token == "{":
            opened.append((match.start(), before in _STARTS_GROUP))
        elif token == "}" and opened:
            start, may_go = opened.pop()
            if may_go and (text[match.end() :].startswith(_ENDS_GROUP) or match.end() == len(text)):
                dropped |= {start, match.start()}
        before = token.rstrip(" ")
    return "".join(character for place, character in enumerate(text) if place not in dropped) if dropped else text


def _comma(match: re.Match[str]) -> str:
    """What stands for `and` or `or`."""
    return f" {OR} " if match[1] == "or" else ", "


def _noun(match: re.Match[str]) -> str:
    """Words after a number, as `\\text`, unless they are letters or functions."""
    words, power = match.groups()
    if _NO_NOUN.search(words) or max(map(len, re.findall(r"\w+", words))) < 3:
        return match.group()
    return f"\\text{{{words}}}{power}"


def _one_name(match: re.Match[str]) -> str:
    setting, group, command = match.groups()
    if command in _SIZES:
        return ""
    if command is not None:
        return _SAME_COMMANDS.get(command, "\\" + command)
    group = " ".join(group.split())
    if not group:
        return " "
    if setting in _FONTS and (len(group) == 1 or group.isdigit()):
        return group
    if group in FUNCTIONS:
        return f"\\{group} "
    if len(group) + 10 > len(match.string) and not re.search(r"\d", group):  # nothing stands beside it
        return ", ".join(f"\\text{{{word}}}" for word in _WORD_LIST.split(group))
    if group.endswith((" and", " or")):
        return f"\\text{{{group.rpartition(' ')[0]}}}, "
    return _number_in_text(match, group) or f"\\text{{{group}}}"


def _number_in_text(match: re.Match[str], group: str) -> str:
    r"""`\text{5}` as 5, `\text{5 cm}` as `5\text{cm}`; "" without a number, or if it would join a digit beside it."""
    before, after = match.string[max(0, match.start() - 1) : match.start()], match.string[match.end() : match.end() + 1]
    if base := _IN_BASE.fullmatch(group):
        return base[1] if before == "{" else f"{{{base[1]}}}" if before == "_" else f"_{{{base[1]}}}"
    if group in ("%", "\\dollar"):
        return group if group == "%" else f"{group} "
    if _NUMERAL.fullmatch(group):
        if before in ("^", "_"):
            return f"{{{group}}}"
        return "" if before.isdigit() or after.isdigit() else group
    quantity = _QUANTITY.fullmatch(group)
    return f"{quantity[1]}\\text{{{quantity[2]}}}" if quantity and not before.isdigit() else ""


def number_word(plain_text: str) -> str:
    """`two`, `\\text{twenty-one}` or `Three hundred` as digits. Any other text as it is."""
    words = re.sub(r"\\text\{([^{}]*)\}", r"\1", plain_text).strip().lower()
    if not words.isascii() or not words.replace("-", "").replace(" ", "").isalpha():
        return plain_text
    total, part, smallest = 0, None, 10**15  # the scales fall, as in two million three thousand five
    for word in re.findall(r"[a-z]+", words):
        if word in TENS and (part or 0) % 100 == 0 and part != 0:
            part = (part or 0) + TENS[word]
        elif word in ONES and (part is None or (part and ONES[word] and _takes_ones(part, ONES[word]))):
            part = (part or 0) + ONES[word]
        elif word == "hundred" and part and part < 10:
            part *= 100
        elif word in SCALES and word != "hundred" and part and SCALES[word] < smallest:
            total, part, smallest = total + part * SCALES[word], None, SCALES[word]
        else:
            return plain_text
    return str(total + (part or 0))


def _takes_ones(part: int, ones: int) -> bool:
    """Whether `ones` may follow: any after hundreds, a single digit after tens."""
    return part % 100 == 0 or (part % 10 == 0 and part % 100 >= 20 and ones < 10)


def parts(plain_text: str, separators: frozenset[str]) -> tuple[list[str], list[str]]:
    """The parts between the separators outside all brackets, and these separators."""
    found: list[str] = []
    between: list[str] = []
    depth = start = 0
    for match in TOKEN.finditer(plain_text):
        token = match.group().rstrip(" ") or " "
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0 and token in separators:
            found.append(plain_text[start : match.start()])
            between.append(token)
            start = match.end()
    return [*found, plain_text[start:]], between


def brackets(plain_text: str) -> tuple[str, str]:
    """The pair of brackets around the whole text ("" if there is none), and what they hold."""
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
    """The words of a text that holds only words, in small letters unless it is a single letter. None: other texts.

    `\\text`, quotation marks and a leading article or `Option` make no difference, so that `(B)` and `even` can be
    compared with `\\text{(B)}`, `\\text{Option B}` and `\\text{even}`.
    """
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", plain_text)
    words = re.sub(r"[\s().,:;\"`]|''", "", re.sub(r"(?i)\A[\W]*(?:an?|the) ", "", text))
    words = re.sub(r"(?i:option|choice|answer)(?=[A-Z]\Z)", "", words)
    if not words or not re.fullmatch(r"[A-Za-z'-]+", words) or words in GREEK:
        return None
    return words if len(words) == 1 else words.lower()
