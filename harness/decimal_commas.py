"""Numbers with a decimal comma, as in `2,5` or `1.234,5`, which are otherwise read as lists."""

import re

_GROUPED_NUMBER = re.compile(
    r"(?<![\d.,])(?:[1-9]\d{0,2}(?:[.']\d{3})+|\d+)(?:(?:,|\{,\})\d+)?(?!\.?\d|,\d)"
)
"""A number whose digits may be grouped by dots or apostrophes."""
DECIMAL_COMMA_NUMBER = re.compile(
    r"(?!\D*[1-9]\d{0,2},\d{3}(?!\d))[^\d,()\[\]]*[\d.]*\d(?:,|\{,\})\d+[^\d,()\[\]]*"
)
"""A text that looks like one number with a decimal comma.

In other notations 1,234 is a thousand and (1,5) a point.
"""


def with_decimal_points(text: str) -> str:
    """A text with decimal commas in English notation: `1.234,5` becomes `1234.5`."""
    # in LaTeX a decimal comma has braces, as in `2{,}5`, to avoid a blank after it
    return _GROUPED_NUMBER.sub(lambda match: re.sub("[{}.']", "", match[0]).replace(",", "."), text)
