"""Read English in answers: number words, units and other nouns, `and`, `or`, bases in words.

A unit follows a number, or precedes it as `\\$` does. It is a known unit or any noun, as in
`12\\text{ students}`. Units are not converted. A word that changes the meaning of the number is not
a unit: `5\\text{ or more}` is not 5, and `5\\text{ million}` is a product.
"""

import re

from harness.grading.formula import FUNCTIONS

OR = "¦"
"""The mark for `or` in plain notation. Like a comma, it separates list elements."""
AND = "∧"
"""The mark for `and` in plain notation, which separates list elements too."""

_NUMBER_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
"""
NUMBER_BY_WORD = dict(zip(_NUMBER_WORDS.split(), (*range(20), *range(20, 100, 10)), strict=True))
SCALE_BY_WORD = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}

LONGEST_UNIT = 200
"""Most characters of a unit. A search in an entire long text could be slow."""
HALF_DAY_BY_LETTER = {"a": "morning", "p": "afternoon"}
"""The words in plain notation for `am` and `pm` after a time. After a number neither is a unit."""
HEDGES = "not|no|never|less|more|least|most|about|approximately|nearly|almost|wrong|incorrect"
"""Words that make another statement of an answer, such as `x is not 5` instead of `x is 5`."""

_AND_OR_AS_TEXT = re.compile(r" ?,? ?\\text\{,? ?(and|or)\} ?,? ?")
r"""A separator of a list as text, which gets a mark: `, \text{and} ` in `1, \text{and} 2`."""
_AND_OR = re.compile(r" ?,? ?(?<![A-Za-z\\])(and|or)(?![A-Za-z]) ?,? ?")
"""A separator of a list without `\\text`: ` or ` in `1 or 2`."""
_LIST_SEPARATOR = re.compile(r",? (?:and|or|&) |, |(?<=[A-Za-z)]),")
"""A separator of a list of words inside of `\\text`: `, ` and ` and ` in `A, B and C`."""
_BASE_IN_WORDS = re.compile(
    r"(?<=[\dA-F)]) ?(?:_\{? ?)?(?:\\text\{)?\(?(?:in )?base(?:\} ?| |-)(\w+)\)?\}{0,2}(?=\Z|,)"
)
r"""A base in words, which becomes a subscript: `\text{base 2}` or `_{base two}` after `101`."""
_WORD = rf"(?!(?:{'|'.join(FUNCTIONS)})(?![A-Za-z]))[A-Za-z](?=[A-Za-z]*[aeiouAEIOU])[A-Za-z]{{2,}}"
"""A word has a vowel after its first letter, which a product of letters seldom has."""
_LOOSE_WORD = re.compile(
    rf"(?<![A-Za-z\\{{])(?:(?<=[\w}}] ){_WORD}(?: (?:of|an?) {_WORD})?|{_WORD}(?= [\w\\]))"
    "(?![A-Za-z])"
)
"""Words without `\\text`: `students` in `12 students`, `cups of water` in `5 cups of water`."""
_NUMBER_IN_WORDS = re.compile(r"(- ?|minus |negative )?([a-z]+(?:[ -][a-z]+)*)")
"""A sign, and words with a blank or a hyphen between them: `-\\text{twenty-five}`."""
_DOLLAR_PREFIX = r"[-+]?(?:\\dollar ?)?"
r"""A sign and a dollar sign before a number: `-\dollar `."""
_NUMERAL = re.compile(
    rf"{_DOLLAR_PREFIX}\d[\d.,/:]*(?: \d+/\d+)?%?|[-+\d.,/:()\[\]*=^!% ]*\d[)\]% ]*"
)
"""A content of `\\text` that is a formula, without words: `5`, `1,234.5`, `50%`, `(1,2)`."""
_QUANTITY = re.compile(rf"({_DOLLAR_PREFIX}\d*[.,/:]?\d+%?)(?: +(?=[^\W\d])|(?=[^\W\d]{{2}}))(.*)")
"""A content of `\\text` that is a number before words: `5 cm`, `50% off`, `5cm`."""

_UNIT_BY_SYNONYM = {
    synonym: name
    for name, synonyms in {
        "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre",
        "km": "kilometer kilometre", "in": "inch", "ft": "foot feet", "yd": "yard", "mi": "mile",
        "g": "gram", "kg": "kilogram", "lb": "pound lbs", "s": "second sec", "min": "minute",
        "h": "hour hr", "l": "liter litre L", "ml": "milliliter millilitre mL", "dollar": "usd",
        "euro": "eur €", "sterling": "gbp £", "rupee": "rs ₹", "yen": "¥", "cent": "¢",
        "degree": "deg", "%": "percent percentage pct", "": "unit",
    }.items()
    for synonym in synonyms.split()
}  # fmt: skip
_GLUED_UNIT = (
    "pct|USD|EUR|[€£]|mm|cm|km|in|ft|yd|mi|kg|oz|lbs?|ml|mL|min|sec|hrs?|mph|inch|inches|feet"
    "|meters|miles|hours|minutes|seconds|days|years"
)
"""Units that may follow a number without a blank: `5cm`."""
_SCALE_WORD = "(?:" + "|".join(SCALE_BY_WORD) + ")s?"
"""A word that multiplies the number before it: `million`, `hundreds`."""
_EXPONENT = r"(?:\^(?:\{[23]\}|[23]))?"
"""The power of a unit: `^2` in `cm^2`."""
_TYPESET_UNIT = rf"\\text\{{[^{{}}]*\}}{_EXPONENT}|\\degree ?(?:[CF](?![A-Za-z]))?|\\dollar ?|%|¢"
r"""A unit that is set as text or as a sign: `\text{cm}^2`, `\degree C`, `\dollar`, `%`."""
_UNIT = re.compile(
    rf"(?P<unit>(?:(?:{_TYPESET_UNIT})[/*]?)+|(?<=[\d}}])(?:{_GLUED_UNIT}){_EXPONENT})\Z"
)
r"""The unit at the end of a value: of `5\text{cm}^2`, `5cm`, `50%`, `5\text{km}/\text{h}`."""

_WORDS_OTHER_THAN_UNITS = frozenset(
    """
    a about above absolute after all almost also although am and another any approx
    approximately are around as at away bc be because before behind below beneath besides
    between beyond both but by can cannot circa correct cos could cubed debt decreased deficit
    divided double doubled e either equal equals exactly except excluded exclusive exp
    extraneous factorial fails false few fewer fewest for from greater greatest gross half
    halved halves if impossible inclusive incorrect increased infinity into invalid is isn it
    its just larger largest least less lesser ln log loss losses lower many may maybe mean might
    minus mod modulo more most multiplied must near nearly negative neither never nil no none
    nope nor not nothing null off on only onto or other otherwise out over percentile perhaps pi
    plus pm positive possibly power prime probably raised reciprocal rejected root roughly same
    score sin since smaller smallest so some sqrt squared still subtracted tan tens than that
    then this those thrice through till times to too triple true twice undefined under unknown
    unless until up upper upto versus vs was were when whereas whether which while will with
    within without wrong yes yet
    """.split()
) | {
    *NUMBER_BY_WORD,
    *SCALE_BY_WORD,
    *(f"{scale}s" for scale in SCALE_BY_WORD),
}
_FRACTION_WORD = re.compile(
    r"(?:third|quarter|\w*(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|teen|tie"
    r"|hundred|thousand|million|billion)th)s?"
)
"""A word that divides the number before it, and is not a unit: `third`, `quarters`, `fiftieth`."""
_UNIT_LETTERS = "mgshlLAVNJWKCF"
"""Single letters that are units. `5\\text{x}` and `5\\text{i}` are products."""
_NOT_IN_UNITS = re.compile(
    r"(?<![A-Za-z^])\d|[^\w ./()*^¢€£₹¥%'\\-]|_|(?<![A-Za-z])-|-(?![A-Za-z])"
)
"""Matches what shows that words after a number are not a unit: the `5` or the `=` of `x=5`, but not
the `2` of `cm^2`."""
_PLAIN_SYMBOL_BY_CONTENT = {
    ",": ", ",
    ";": ", ",
    "%": "% ",
    "\\dollar": "\\dollar ",
    **{name: f"\\{name} " for name in FUNCTIONS},
}
r"""What `\text{;}`, `\text{%}` or `\text{sin}` is without its command."""
_TRIGONOMETRIC_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
r"""Matches `\sin` in `\sin 30\degree`, where the degrees are not the unit of the value."""


def rewrite_bases_and_conjunctions(text: str) -> str:
    r"""Write bases as subscripts, and `\text{and}` and `\text{or}` as their marks."""
    return _BASE_IN_WORDS.sub(r"_{\1}", _AND_OR_AS_TEXT.sub(_mark_and_or, text))


def rewrite_loose_words(text: str) -> str:
    r"""Write `and` and `or` as their marks, and words beside numbers or letters as `\text{...}`."""
    return _LOOSE_WORD.sub(r"\\text{\g<0>}", _AND_OR.sub(_mark_and_or, text))


def rewrite_text_group(
    content: str, *, is_alone: bool = False, left_character: str = "", right_character: str = ""
) -> str:
    r"""Rewrite `\text{...}`, so that the command contains only words.

    The first of these rules that applies decides:

    - A sign or function loses the command: `\text{sin}` is `\sin`.
    - `\text{and}` and `\text{or}` keep it. After other words `and` or `or` becomes a comma:
      `\text{5 and}` is `5, `.
    - A list that is the entire answer is split: `\text{A, B}` is two answers.
    - After a digit the command stays, because `5\text{6}` would become 56.
    - A number loses it, unless a digit follows: `\text{5}` is 5.
    - A number with a unit loses it, and the unit keeps it: `\text{5 cm}` is `5\text{cm}`.
    - Other words keep it.

    Args:
        content: The content of the braces.
        is_alone: Whether the answer has no other text.
        left_character: The character before the group, "" at the start.
        right_character: The character after the group, "" at the end.
    """
    if content in _PLAIN_SYMBOL_BY_CONTENT:
        return _PLAIN_SYMBOL_BY_CONTENT[content]
    text_group = f"\\text{{{content}}}"
    # these words stay as text until `rewrite_bases_and_conjunctions` replaces them
    if content.lstrip(", ") in ("and", "or"):
        return text_group
    if content.endswith((" and", " or")):
        # in `\text{5 and} 6` the comma replaces `and`
        entry = content.rpartition(" ")[0]
        return rewrite_text_group(entry, left_character=left_character) + ", "
    # `\text{(1, 2)}` is one answer, so a comma inside of brackets does not separate answers
    if is_alone and _LIST_SEPARATOR.search(content) and not re.search(r"[(\[][^)\]]*,", content):
        return ", ".join(map(rewrite_text_group, _LIST_SEPARATOR.split(content)))
    if left_character.isdigit():
        return text_group
    if _NUMERAL.fullmatch(content) and not right_character.isdigit():
        return content
    quantity = _QUANTITY.fullmatch(content)
    return f"{quantity[1]}\\text{{{quantity[2]}}}" if quantity else text_group


def in_digits(plain_text: str) -> str:
    """Write `two`, `\\text{twenty-one}` or `minus three` in digits; keep any other text.

    `two thousand five` has two groups. Each is multiplied by the scale after it, if there is one,
    and they are added: 2 * 1000 + 5. Every word must extend its group or be a scale that ends it.
    Otherwise the words are not a number, and the text is kept.
    """
    match = _NUMBER_IN_WORDS.fullmatch(_without_text_command(plain_text).strip().lower())
    if not match:
        return plain_text
    sign, number_words = match.groups()
    # the sum of the groups that are complete
    total = 0
    # the value of the group so far, None before its first word
    group_value = None
    # each scale must be smaller than the one before, as in `two million three thousand`; the first
    # may be any, and no word has a scale as large as this
    last_scale = 10**15
    for word in re.findall(r"[a-z]+", number_words):
        new_group_value = _extend_group(group_value, word)
        scale = SCALE_BY_WORD.get(word)
        if new_group_value is not None:
            group_value = new_group_value
        # a scale ends its group; `hundred` is a part of a group, as in `two hundred five thousand`
        elif word != "hundred" and group_value and scale and scale < last_scale:
            total += group_value * scale
            group_value = None
            last_scale = scale
        else:
            # the words are not a number, as in `two five`
            return plain_text
    return f"{'-' if sign else ''}{total + (group_value or 0)}"


def readable_words(plain_text: str) -> str | None:
    """The words of a text that contains only words, joined without blanks; None for other texts.

    They are in lower case, except a single letter, and the last one is in the singular. `\\text`,
    quotation marks and a leading article or `Option` are left out, so `(B)` and `even` can be
    compared with `\\text{(B)}`, `\\text{Option B}` and `\\text{even}`.
    """
    # a leading article: `the circle` is `circle`
    text = re.sub(r"(?i)\A\W*(?:an?|the) ", "", _without_text_command(plain_text))
    # blanks, brackets, punctuation and quotation marks: `(B)` is B
    joined_words = re.sub(r"[\s().,:;\"`]|''", "", text)
    # the word before the letter of a choice: `Option B` is B
    joined_words = re.sub(r"(?i:option|choice|answer)(?=[A-Z]\Z)", "", joined_words)
    if not re.fullmatch(r"[A-Za-z'-]+", joined_words):
        return None
    # `b` may be a variable, and B a choice
    if len(joined_words) == 1:
        return joined_words
    # the plural of a word of three letters or more: `circles` is `circle`
    return re.sub(r"(?<=\w{3})s\Z", "", joined_words.lower())


def numbered_name(plain_text: str) -> str | None:
    r"""A word of three letters or more with its number, such as `\text{Room 101}`, in lower case.

    None for other texts.
    """
    name = re.sub(r"[\s.]", "", _without_text_command(plain_text))
    return name.lower() if re.fullmatch(r"[A-Za-z]{3,}\d+", name) else None


def _without_text_command(text: str) -> str:
    r"""The words of `\text{...}` without the command."""
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", text)


def _mark_and_or(match: re.Match[str]) -> str:
    """The mark for the `and` or `or` that was matched, between blanks."""
    return f" {OR if match[1] == 'or' else AND} "


def _extend_group(group_value: int | None, word: str) -> int | None:
    """The value of a group of number words after one more word; None if the word cannot follow.

    A group is a number below a thousand, such as `two hundred five`. Any number word may begin a
    group or follow hundreds. A digit from one to nine may also follow tens, as in `twenty five`.
    `hundred` may follow such a digit.
    """
    if word == "hundred":
        return group_value * 100 if group_value and group_value < 10 else None
    addend = NUMBER_BY_WORD.get(word)
    if group_value is None or addend is None:
        return addend
    # `zero` stands alone: nothing follows it, and it follows nothing
    if 0 in (group_value, addend):
        return None
    follows_hundreds = group_value % 100 == 0
    # `twenty` may be followed by `five`, but `ten` may not
    follows_tens = group_value % 10 == 0 and group_value % 100 >= 20 and addend < 10
    return group_value + addend if follows_hundreds or follows_tens else None


def split_unit(text: str) -> tuple[str, str]:
    r"""Split a text in plain notation into its value and its unit, "" if there is none.

    - An angle is in degrees as a whole: `30\degree+5\degree` is `30+5` and `degree`.
    - A dollar sign before a value is its unit: `\dollar 5` is 5 and `dollar`.
    - At the end of a value, units and scales are split off: `5\text{cm}` is 5 and `cm`, and
      `5\text{ million}` is `(5)*1000000` without a unit.
    - All else stays with the value: words that are not a unit, as in `5\text{ or more}`, and the
      degrees of an argument, as in `\sin 30\degree`.
    """
    function_match = _TRIGONOMETRIC_FUNCTION.search(text)
    # `30\degree C` and `30\degree\text{ north}` are not angles
    other_unit_match = re.search(r"\\degree ?[CF](?![A-Za-z])|\\text", text)
    if "\\degree" in text and not function_match and not other_unit_match:
        # in a sum or a fraction the sign may stand anywhere
        return re.sub(r"\\degree ?", "", text), "degree"
    unit_before = ""
    # a minus sign before the dollar sign belongs to the value
    dollar_sign = re.match(r"(-?)\\dollar *", text)
    if dollar_sign:
        unit_before = "dollar"
        text = dollar_sign[1] + text[dollar_sign.end() :]
    unit_match = _UNIT.search(text[-LONGEST_UNIT:])
    if unit_match is None:
        return text, unit_before
    value = text.removesuffix(unit_match.group())
    factor, unit_words = _split_scale(unit_match["unit"])
    # the degrees of `\sin 30\degree` are the unit of its argument
    if not value or not _is_unit(unit_words) or (function_match and "\\degree" in unit_words):
        return text, unit_before
    # in `5\text{ million dollars}` the value is 5 times a million
    if factor > 1:
        value = f"({value})*{factor}"
    # in `\dollar 5\text{ million}` only the dollar is a unit
    return value, _spell_unit(unit_words) or unit_before


def units_agree(unit: str, target_unit: str) -> bool:
    """Whether units are equal, or one is missing, or one is a square or cube without a name.

    `square units` has the power 2 and no name, and agrees with `cm^2`.
    """
    if not unit or not target_unit or unit == target_unit:
        return True
    name, _, power = unit.partition("^")
    target_name, _, target_power = target_unit.partition("^")
    return power == target_power and not (name and target_name)


def _split_scale(unit: str) -> tuple[int, str]:
    """The product of the scale words before a unit (`million`), and the words of the unit."""
    unit_words = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", unit).lstrip(" ")
    factor = 1
    while scale_match := re.match(rf"({_SCALE_WORD})(?![A-Za-z])[ -]*", unit_words):
        factor *= SCALE_BY_WORD[scale_match[1].removesuffix("s")]
        unit_words = unit_words[scale_match.end() :]
    return factor, unit_words


def _is_unit(unit_words: str) -> bool:
    """Whether words after a number are a unit, and not words that change its meaning."""
    # the braces of `cm^{2}` would not be a sign of a unit
    if _NOT_IN_UNITS.search(re.sub(r"\^\{(\d)\}", r"^\1", unit_words)):
        return False
    for word in re.findall(r"[^\W\d]+", unit_words.replace(".", "")):
        # another single letter is a factor, as in `5\text{x}`
        if len(word) == 1 and word not in _UNIT_LETTERS:
            return False
        if len(word) > 1 and (
            word.lower() in _WORDS_OTHER_THAN_UNITS or _FRACTION_WORD.fullmatch(word.lower())
        ):
            return False
    return True


def _spell_unit(unit: str) -> str:
    """A single spelling for each unit: singular, abbreviated, with a power at the end.

    `square centimeters` and `cm^2` are `cm^2`, and `miles per hour` is `mph`.
    """
    # commands become words, abbreviations lose their points, and `per` becomes a slash
    spelling = re.sub(r"\\(degree|dollar)", r" \1 ", unit.replace(".", "")).replace(" per ", " / ")
    name_words = []
    power = 1
    # words, powers such as `^2` or `^{2`, and signs
    for word in re.findall(r"[^\W\d]+|\^\{?\d|[/¢€£₹¥%]", spelling):
        if word in ("square", "sq", "cubic", "cu"):
            power = 2 if word[0] == "s" else 3
        elif word[0] == "^":
            power = int(word[-1])
        else:
            name_words.append(_singular(word))
    # the word `unit` has become "", which is left out
    unit_name = " ".join(filter(None, name_words)).replace(" / ", "/").replace("mi/h", "mph")
    return unit_name + (f"^{power}" if power > 1 else "")


def _singular(word: str) -> str:
    """A word in the singular, as the abbreviation if it is a unit that has one."""
    if word in _UNIT_BY_SYNONYM:
        return _UNIT_BY_SYNONYM[word]
    # lower case would make Mg the unit mg
    if len(word) <= 2:
        return word
    # `es` after x, s, ch or sh, as in `inches`, and `s` elsewhere, but not that of `glass`
    stem = re.sub(r"(?:(?<=[xs])|(?<=[cs]h))es\Z|(?<!s)s\Z", "", word.lower())
    return _UNIT_BY_SYNONYM.get(word.lower(), _UNIT_BY_SYNONYM.get(stem, stem))
