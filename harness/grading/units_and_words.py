"""English in answers: number words, units and other nouns, `and`, `or`, bases in words, texts that
are only words.

Units stand after a number (or `\\$` before it). A unit is a known one or any noun, as in
`12\\text{ students}`. Nothing is converted. A word that changes what the number says is no unit:
`5\\text{ or more}` is not 5, and `5\\text{ million}` is a product.
"""

from __future__ import annotations

import re

from harness.grading.formula import FUNCTIONS

OR, AND = "¦", "∧"
"""The marks in plain notation for `or` and `and`, which part a list as a comma does."""

_FROM_ZERO = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_FROM_TWENTY = "twenty thirty forty fifty sixty seventy eighty ninety"
ONES = {word: number for number, word in enumerate(_FROM_ZERO.split())}
TENS = {word: 10 * number for number, word in enumerate(_FROM_TWENTY.split(), start=2)}
SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}

_TEXT_JOIN = re.compile(r" ?,? ?\\text\{,? ?(and|or)\} ?,? ?")
_JOIN = re.compile(r" ?,? ?(?<![A-Za-z\\])(and|or)(?![A-Za-z]) ?,? ?")
_LIST = re.compile(r",? (?:and|or|&) |, |(?<=[A-Za-z)]),")
_BASE = re.compile(
    r"(?<=[\dA-F)]) ?(?:_\{? ?)?(?:\\text\{)?\(?(?:in )?base(?:\} ?| |-)(\w+)\)?\}{0,2}(?=\Z|,)"
)
_ORDINAL = re.compile(r"(?<=\d)(?:\^ ?\{? ?)?(?:\\text\{)?(?:st|nd|rd|th)\}{0,2}(?![A-Za-z}^])")
_STRAY = re.compile(
    r"(?<![A-Za-z\\{])(?:(?<=[\w}] )([A-Za-z]{3,})|([A-Za-z]{3,})(?= [\w\\]))(?![A-Za-z])"
)
_NOUNS = re.compile(
    r"(?<=[\d}%]) ((?:[A-Za-z]+[ -])*[A-Za-z]+)((?:\^\{?[23]\}?)?(?=\.?\Z| ?[,;]| (?:and|or) ))"
)
_NO_NOUNS = re.compile(rf"\b(?:and|or|pi|sqrt|[b-zB-Z]|{'|'.join(FUNCTIONS)})\b")
_DOLLARS = r"[-+]?(?:\\dollar ?)?"
_NUMERAL = re.compile(rf"{_DOLLARS}\d[\d.,/:]*(?: \d+/\d+)?%?|[-+\d.,/:()\[\]*=^!% ]*\d[)\]% ]*")
_QUANTITY = re.compile(rf"({_DOLLARS}\d*[.,/:]?\d+%?)(?: +(?=[^\W\d])|(?=[^\W\d]{{2}}))(.*)")


_SYNONYMS = {
    synonym: name
    for name, synonyms in {
        "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
        "in": "inch", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram", "kg": "kilogram", "lb": "pound lbs",
        "s": "second sec", "min": "minute", "h": "hour hr", "l": "liter litre L", "ml": "milliliter millilitre mL",
        "dollar": "usd", "euro": "eur", "cent": "¢", "degree": "deg", "%": "percent percentage pct", "": "unit",
    }.items()
    for synonym in synonyms.split()
}  # fmt: skip
_GLUED = "mm|cm|km|ft|kg|lbs?|ml|mL|min|sec|hrs?|mph|inch|inches|feet|meters|miles|hours|minutes|seconds|days|years"
_SCALE = "(?:" + "|".join(SCALES) + ")s?"
_EXPONENT = r"(?:\^(?:\{[23]\}|[23]))?"
_SET = rf"\\text\{{[^{{}}]*\}}{_EXPONENT}|\\degree ?(?:[CF](?![A-Za-z]))?|\\dollar ?|%|¢"
_UNIT = re.compile(rf"(?P<unit>(?:(?:{_SET})[/*]?)+|(?<=[\d}}])(?:{_GLUED}){_EXPONENT})\Z")

_NO_UNIT = frozenset(
    "a about above absolute after all almost also although and another any approx approximately are around as at away "
    "be because before behind below beneath besides between beyond both but by can cannot circa correct cos could "
    "cubed decreased divided double doubled e either equal equals exactly except excluded exclusive exp extraneous "
    "factorial fails false few fewer fewest for from greater greatest gross half halved halves if impossible "
    "inclusive incorrect increased infinity into invalid is isn it its just larger largest least less lesser ln log "
    "lower many may maybe mean might minus mod modulo more most multiplied must near nearly negative neither never "
    "nil no none nope nor not nothing null off on only onto or other otherwise out over percentile perhaps pi plus "
    "positive possibly power prime probably raised reciprocal rejected root roughly same score sin since smaller "
    "smallest so some sqrt squared still subtracted tan tens than that then this those thrice through till times to "
    "too triple true twice undefined under unknown unless until up upper upto versus vs was were when whereas whether "
    "which while will with within without wrong yes yet".split()
) | {*ONES, *TENS, *SCALES, *(f"{scale}s" for scale in SCALES)}
_FRACTION_WORD = re.compile(
    r"(?:third|quarter|\w*(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|teen|tie|hundred|thousand|million|billion)th)s?"
)
_LETTERS = frozenset(
    "mgshlLAVNJWKCF"
)  # single letters that are units; `5\text{x}` and `5\text{i}` are products
_NO_WORDS = re.compile(r"(?<![A-Za-z^])\d|[^\w ./()*^¢%'\\-]|_|(?<![A-Za-z])-|-(?![A-Za-z])")
_ANGLED = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")


def without_words(text: str) -> str:
    r"""Bases, ordinals, nouns, and a set-apart `and` or `or` in the notation of formulas, with
    units in `\text`."""
    text = _ORDINAL.sub("", _BASE.sub(r"_{\1}", _TEXT_JOIN.sub(_mark, text)))
    return _NOUNS.sub(_as_text, text)


def without_loose_words(text: str) -> str:
    r"""A text without `\text`, in which `and`, `or` and words beside numbers or letters are set
    apart."""
    return _STRAY.sub(_as_text, _JOIN.sub(_mark, text))


def text_group(group: str, *, alone: bool, before: str, after: str) -> str:
    r"""What stands for `\text{...}`: the number, function or list in it, or else the words as they
    are.

    `\text{5}` is 5, `\text{5 cm}` is `5\text{cm}`, and `\text{A, B}` two answers. A number is not
    taken out where it would join a digit beside it.

    Args:
        group: What the braces hold.
        alone: Whether nothing stands beside it.
        before: The character before it, "" at the start.
        after: The character after it.
    """
    if group in FUNCTIONS:
        return f"\\{group} "
    if group in (",", ";"):
        return ", "
    if group in ("%", "\\dollar"):
        return f"{group} "
    if group.lstrip(", ") in ("and", "or"):
        return f"\\text{{{group}}}"
    if group.endswith((" and", " or")):
        return text_group(group.rpartition(" ")[0], alone=False, before=before, after="") + ", "
    if alone and _LIST.search(group) and not re.search(r"[(\[][^)\]]*,", group):
        return ", ".join(
            text_group(word, alone=False, before="", after="") for word in _LIST.split(group)
        )
    if _NUMERAL.fullmatch(group) and not before.isdigit() and not after.isdigit():
        return group
    quantity = _QUANTITY.fullmatch(group)
    return (
        f"{quantity[1]}\\text{{{quantity[2]}}}"
        if quantity and not before.isdigit()
        else f"\\text{{{group}}}"
    )


def number_word(plain_text: str) -> str:
    """`two`, `\\text{twenty-one}` or `Three hundred` as digits. Any other text as it is."""
    words = re.sub(r"\\text\{([^{}]*)\}", r"\1", plain_text).strip().lower()
    if not words.isascii() or not words.replace("-", "").replace(" ", "").isalpha():
        return plain_text
    total, part, smallest = (
        0,
        None,
        10**15,
    )  # the scales fall, as in two million three thousand five
    for word in re.findall(r"[a-z]+", words):
        if word in TENS and part != 0 and (part or 0) % 100 == 0:
            part = (part or 0) + TENS[word]
        elif word in ONES and (
            part is None or (part and ONES[word] and _takes_ones(part, ONES[word]))
        ):
            part = (part or 0) + ONES[word]
        elif word == "hundred" and part and part < 10:
            part *= 100
        elif word in SCALES and word != "hundred" and part and SCALES[word] < smallest:
            total, part, smallest = total + part * SCALES[word], None, SCALES[word]
        else:
            return plain_text
    return str(total + (part or 0))


def readable_words(plain_text: str) -> str | None:
    """The words of a text that holds only words, in small letters unless it is a single letter.
    None: other texts.

    `\\text`, quotation marks and a leading article or `Option` make no difference, so that `(B)`
    and `even` can be compared with `\\text{(B)}`, `\\text{Option B}` and `\\text{even}`.
    """
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", plain_text)
    words = re.sub(r"[\s().,:;\"`]|''", "", re.sub(r"(?i)\A\W*(?:an?|the) ", "", text))
    words = re.sub(r"(?i:option|choice|answer)(?=[A-Z]\Z)", "", words)
    if not re.fullmatch(r"[A-Za-z'-]+", words):
        return None
    return words if len(words) == 1 else words.lower()


def _mark(match: re.Match[str]) -> str:
    return f" {OR if match[1] == 'or' else AND} "


def _as_text(match: re.Match[str]) -> str:
    words, power = (match.group(), "") if match.re is _STRAY else match.groups()
    return match.group() if _NO_NOUNS.search(words) else f"\\text{{{words}}}{power}"


def _takes_ones(part: int, ones: int) -> bool:
    """Whether `ones` may follow: any after hundreds, a single digit after tens."""
    return part % 100 == 0 or (part % 10 == 0 and part % 100 >= 20 and ones < 10)


def without_unit(plain: str) -> tuple[str, str]:
    """The value and its unit, which is "" if there is none. Words before the value are no unit."""
    unit = ""
    if (
        "\\degree" in plain
        and not _ANGLED.search(plain)
        and not re.search(r"\\degree ?[CF](?![A-Za-z])|\\text", plain)
    ):
        return re.sub(r"\\degree ?", "", plain), "degree"  # of a sum, or of a fraction of degrees
    if dollars := re.match(r"(-?)\\dollar *", plain):
        plain, unit = dollars[1] + plain[dollars.end() :], "dollar"
    # the last 200 characters hold any unit; a search over all of a long text could be slow
    head, tail = plain[:-200], plain[-200:]
    match = _UNIT.search(tail)
    if match is None or not (head + tail[: match.start()]):
        return plain, unit
    factor, words = _scale(match["unit"])
    if not _is_unit(words) or ("\\degree" in words and _ANGLED.search(plain)):
        return plain, unit
    value = head + tail[: match.start()]
    return f"({value})*{factor}" if factor > 1 else value, _spelling(words) or unit


def agree(unit: str, other: str) -> bool:
    """Whether one value may have both: one is left out, they are the same, or one is a nameless
    square or cube."""
    nameless = "^" in (unit[:1], other[:1]) and unit.partition("^")[2] == other.partition("^")[2]
    return not unit or not other or unit == other or nameless


def _scale(unit: str) -> tuple[int, str]:
    """The product of the scale words in front of a unit (`million`), and the words of the unit
    itself."""
    words = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", unit)
    words, factor = words.lstrip(" "), 1
    while match := re.match(rf"({_SCALE})(?![A-Za-z])[ -]*", words):
        factor *= SCALES[match[1].removesuffix("s")]
        words = words[match.end() :]
    return factor, words


def _is_unit(words: str) -> bool:
    if _NO_WORDS.search(re.sub(r"\^\{(\d)\}", r"^\1", words)):
        return False
    for word in re.findall(r"[^\W\d]+", words.replace(".", "")):
        if len(word) == 1 and word not in _LETTERS:
            return False
        if len(word) > 1 and (word.lower() in _NO_UNIT or _FRACTION_WORD.fullmatch(word.lower())):
            return False
    return True


def _spelling(unit: str) -> str:
    text = (
        unit.replace(".", "")
        .replace("\\degree", " degree ")
        .replace("\\dollar", " dollar ")
        .replace(" per ", " / ")
    )
    words, power = [], 1
    for word in re.findall(r"[^\W\d]+|\^\{?\d|/|¢|%", text):
        if word in ("square", "sq", "cubic", "cu"):
            power = 2 if word[0] == "s" else 3
        elif word[0] == "^":
            power = int(word[-1])
        else:
            words.append(_singular(word))
    named = " ".join(word for word in words if word).replace(" / ", "/").replace("mi/h", "mph")
    return named + (f"^{power}" if power > 1 else "")


def _singular(word: str) -> str:
    if word in _SYNONYMS:
        return _SYNONYMS[word]
    if len(word) <= 2:
        return word  # Mg is not mg
    stem = re.sub(r"(?:(?<=[xs])|(?<=[cs]h))es\Z|(?<!s)s\Z", "", word.lower())
    return _SYNONYMS.get(word.lower(), _SYNONYMS.get(stem, stem))
