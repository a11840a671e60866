"""Numbers with a decimal comma, as in `2,5` or `1.234,5`, which are otherwise read as lists."""

import re

_GROUPED_NUMBER = re.compile(
    r"(?<![\d.,])(?:[1-9]\d{0,2}(?:[.']\d{3})+|\d+)(?:(?:,|\{,\})\d+)?(?!\.?\d|,\d)"
)
"""A whole number or one with a decimal comma, as in `7`, `2,5` or LaTeX's `2{,}5`.

Dots or apostrophes may stand between groups of three digits, as in `1.234,5`. A number with a
decimal point, as in `1.5`, and a list, as in `1,2,3`, do not match.
"""
DECIMAL_COMMA_NUMBER = re.compile(
    r"(?!\D*[1-9]\d{0,2},\d{3}(?!\d))[^\d,()\[\]]*[\d.]*\d(?:,|\{,\})\d+[^\d,()\[\]]*"
)
"""A text with a single number, which has a decimal comma, as in `2,5` or `x = 1.234,5`.

`1,234` does not match, because it can be a number of thousands. Nor does a text with brackets,
because `(1,5)` can be a point with two coordinates.
"""


def with_decimal_points(text: str) -> str:
    """A text with decimal commas in English notation: `1.234,5` becomes `1234.5`."""
    # The signs between groups go, and so do the braces of LaTeX, where `2{,}5` has no blank after
    # the comma.
    return _GROUPED_NUMBER.sub(lambda match: re.sub("[{}.']", "", match[0]).replace(",", "."), text)
