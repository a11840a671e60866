"""Units: what may stand behind a number (or `\\$` before it), in one spelling. Nothing is converted."""

from __future__ import annotations

import re

_SYNONYMS = {
    synonym: name
    for name, synonyms in {
        "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
        "in": "inch", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram", "kg": "kilogram", "lb": "pound lbs",
        "s": "second sec", "min": "minute", "h": "hour hr", "l": "liter litre L", "ml": "milliliter millilitre mL",
        "dollar": "usd", "cent": "¢", "degree": "deg", "%": "percent percentage", "": "unit",
    }.items()
    for synonym in synonyms.split()
}  # fmt: skip
_BARE = "mm|cm|km|ft|kg|lb|lbs|ml|mL|min|sec|hr|hrs|mph|inch|inches|feet|meters?|miles?|hours?|minutes?|seconds?|days?"
_BARE += "|years?|cents?|dollars?|degrees?|units?|(?:square|cubic)(?:units|inches|feet|cm|centimeters|meters|miles)"
_EXPONENT = r"(?:\^(?:\{[23]\}|[23]))?"
_SET = rf"\\text\{{[^{{}}]*\}}{_EXPONENT}|\\degree ?|\\dollar ?|%"
_UNIT = re.compile(rf"(?P<unit>(?:(?:{_SET})[/*]?)+|(?<=[\d}}])(?:{_BARE}){_EXPONENT})\Z")


def without_unit(plain: str) -> tuple[str, str]:
    """The value and its unit, "" if there is none. Words that stand in front of the value are no unit."""
    unit = ""
    if plain.startswith("\\dollar"):
        plain, unit = plain.removeprefix("\\dollar").lstrip(" "), "dollar"
    elif plain.startswith("-\\dollar"):
        plain, unit = "-" + plain.removeprefix("-\\dollar").lstrip(" "), "dollar"
    # the last 200 characters hold any unit; a search over all of a long text could be slow
    head, tail = plain[:-200], plain[-200:]
    match = _UNIT.search(tail)
    if match is None or not (head + tail[: match.start()]):
        return plain, unit
    named = _spelling(match["unit"])
    if unit and named and unit != named:
        named = f"{unit} {named}"
    return (head + tail[: match.start()]).rstrip(" "), named or unit


def _spelling(unit: str) -> str:
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", unit)
    text = text.replace("\\degree", " degree ").replace("\\dollar", " dollar ").replace(" per ", " / ")
    text = re.sub(r"(square|cubic)(?=[a-z])", r"\1 ", text)  # outside \text the blank is gone
    words, power = [], 1
    for word in re.findall(r"[^\W\d]+|\^\{?\d|/|¢|%", text):
        if word in ("square", "sq", "cubic", "cu"):
            power = 2 if word[0] == "s" else 3
        elif word[0] == "^":
            power = int(word[-1])
        elif word == "of":
            continue
        else:
            words.append(_singular(word))
    named = " ".join(word for word in words if word).replace(" / ", "/").replace("mi/h", "mph")
    # square units without a name are not told apart from a bare number: the question named them
    return named + (f"^{power}" if power > 1 and named else "")


def _singular(word: str) -> str:
    if word in _SYNONYMS:
        return _SYNONYMS[word]
    if len(word) <= 2:
        return word
    word = word.lower()
    for ending in ("", "es", "s"):
        stem = word.removesuffix(ending) if ending else word
        if stem in _SYNONYMS:
            return _SYNONYMS[stem]
    if word.endswith("s") and not word.endswith("ss") and len(word) > 3:
        return word[:-1]
    return word
