"""Units after a number (or `\\$` before it), in one spelling. Nothing is converted.

A unit is a known one or any noun, as in `12\\text{ students}`. A word that changes what the number says is no unit:
`5\\text{ or more}` and `5\\text{ below zero}` are not 5, and `5\\text{ million}` is a product.
"""

from __future__ import annotations

import re

from harness.grading.english import ONES, SCALES, TENS

_SYNONYMS = {
    synonym: name
    for name, synonyms in {
        "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
        "in": "inch", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram", "kg": "kilogram", "lb": "pound lbs",
        "s": "second sec", "min": "minute", "h": "hour hr", "l": "liter litre L", "ml": "milliliter millilitre mL",
        "dollar": "usd", "cent": "¢", "degree": "deg", "%": "percent percentage pct", "": "unit",
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
_LETTERS = frozenset("mgshlLAVNJWKCF")  # single letters that are units; `5\text{x}` and `5\text{i}` are products
_NO_WORDS = re.compile(r"(?<![A-Za-z^])\d|[^\w ./()*^¢%'\\-]|_|(?<![A-Za-z])-|-(?![A-Za-z])")
_ANGLED = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")


def without_unit(plain: str) -> tuple[str, str]:
    """The value and its unit, which is "" if there is none. Words before the value are no unit."""
    unit = ""
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
    """Whether one value may have both: one is left out, they are the same, or one is a nameless square or cube."""
    nameless = "^" in (unit[:1], other[:1]) and unit.partition("^")[2] == other.partition("^")[2]
    return not unit or not other or unit == other or nameless


def _scale(unit: str) -> tuple[int, str]:
    """The product of the scale words in front of a unit (`million`), and the words of the unit itself."""
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
    text = unit.replace(".", "").replace("\\degree", " degree ").replace("\\dollar", " dollar ").replace(" per ", " / ")
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
