"""English in answers: number words, nouns after numbers, `and`, `or`, bases in words, texts that are only words."""

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
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_TEXT_JOIN = re.compile(r" ?,? ?\\text\{,? ?(and|or)\} ?,? ?")
_JOIN = re.compile(r" ?,? ?(?<![A-Za-z\\])(and|or)(?![A-Za-z]) ?,? ?")
_LIST = re.compile(r",? (?:and|or|&) |, |(?<=[A-Za-z)]),")
_BASE = re.compile(r"(?<=[\dA-F)]) ?(?:_\{? ?)?(?:\\text\{)?\(?(?:in )?base(?:\} ?| |-)(\w+)\)?\}{0,2}(?=\Z|,)")
_ORDINAL = re.compile(r"(?<=\d)(?:\^ ?\{? ?)?(?:\\text\{)?(?:st|nd|rd|th)\}{0,2}(?![A-Za-z}^])")
_STRAY = re.compile(r"(?<![A-Za-z\\{])(?:(?<=[\w}] )([A-Za-z]{3,})|([A-Za-z]{3,})(?= [\w\\]))(?![A-Za-z])")
_NOUNS = re.compile(r"(?<=[\d}%]) ((?:[A-Za-z]+[ -])*[A-Za-z]+)((?:\^\{?[23]\}?)?(?=\.?\Z| ?[,;]| (?:and|or) ))")
_NO_NOUNS = re.compile(rf"\b(?:and|or|pi|sqrt|[b-zB-Z]|{'|'.join(FUNCTIONS)})\b")
_DOLLARS = r"[-+]?(?:\\dollar ?)?"
_NUMERAL = re.compile(rf"{_DOLLARS}\d[\d.,/:]*(?: \d+/\d+)?%?|[-+\d.,/:()\[\]*=^!% ]*\d[)\]% ]*")
_QUANTITY = re.compile(rf"({_DOLLARS}\d*[.,/:]?\d+%?)(?: +(?=[^\W\d])|(?=[^\W\d]{{2}}))(.*)")


def without_words(text: str) -> str:
    r"""Bases, ordinals, nouns, and a set-apart `and` or `or` in the notation of formulas, with units in `\text`."""
    text = _ORDINAL.sub("", _BASE.sub(r"_{\1}", _TEXT_JOIN.sub(_mark, text)))
    return _NOUNS.sub(_as_text, text)


def without_loose_words(text: str) -> str:
    r"""A text without `\text`, in which `and`, `or` and words beside numbers or letters are set apart."""
    return _STRAY.sub(_as_text, _JOIN.sub(_mark, text))


def text_group(group: str, *, alone: bool, before: str, after: str) -> str:
    r"""What stands for `\text{...}`: the number, function or list in it, or else the words as they are.

    `\text{5}` is 5, `\text{5 cm}` is `5\text{cm}`, and `\text{A, B}` two answers. A number is not taken out where it
    would join a digit beside it.

    Args:
        group: What the braces hold.
        alone: Whether nothing stands beside it.
        before: The character before it, "" at the start.
        after: The character after it.
    """
    if group in FUNCTIONS:
        return f"\\{group} "
    if group in ("%", "\\dollar"):
        return f"{group} "
    if group.endswith((" and", " or")):
        return text_group(group.rpartition(" ")[0], alone=False, before=before, after="") + ", "
    if alone and _LIST.search(group) and not re.search(r"[(\[][^)\]]*,", group):
        return ", ".join(text_group(word, alone=False, before="", after="") for word in _LIST.split(group))
    if _NUMERAL.fullmatch(group) and not before.isdigit() and not after.isdigit():
        return group
    quantity = _QUANTITY.fullmatch(group)
    return f"{quantity[1]}\\text{{{quantity[2]}}}" if quantity and not before.isdigit() else f"\\text{{{group}}}"


def number_word(plain_text: str) -> str:
    """`two`, `\\text{twenty-one}` or `Three hundred` as digits. Any other text as it is."""
    words = re.sub(r"\\text\{([^{}]*)\}", r"\1", plain_text).strip().lower()
    if not words.isascii() or not words.replace("-", "").replace(" ", "").isalpha():
        return plain_text
    total, part, smallest = 0, None, 10**15  # the scales fall, as in two million three thousand five
    for word in re.findall(r"[a-z]+", words):
        if word in TENS and part != 0 and (part or 0) % 100 == 0:
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


def readable_words(plain_text: str) -> str | None:
    """The words of a text that holds only words, in small letters unless it is a single letter. None: other texts.

    `\\text`, quotation marks and a leading article or `Option` make no difference, so that `(B)` and `even` can be
    compared with `\\text{(B)}`, `\\text{Option B}` and `\\text{even}`.
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
