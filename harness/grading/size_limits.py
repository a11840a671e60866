"""What is refused before it is compared: answers that would make a computer algebra system compute.

One pass over the text each, so a gate is never the slow part.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST_ANSWER = 2000
"""Characters of a box that are still read; the longest gold of MATH-500 has 53."""
DEEPEST, LONGEST_DIGITS, MOST_CHOICES, LARGEST_EXPONENT = 24, 400, 4, 9999

_CONSTRUCT = re.compile(
    r"\\(?P<command>(?:i|ii|iii|o)?int|sum|prod|coprod|lim|limsup|liminf|partial|nabla|det|bigoplus|bigotimes|oint"
    r"|begin\{(?:cases|align|tikzpicture)[^}]*|def|newcommand|input|include|write|csname|catcode|href|url"
    r"|operatorname\*?\{(?:lcm|gcd|det|rank|tr|diag|Res|lim|argmax|argmin)\}|lcm|rank)(?![A-Za-z])"
)
_DERIVATIVE = re.compile(
    r"\\[dt]?frac\s?\{\s?(?:\\mathrm\{d\}|d)(?:\^\{?\d\}?)?\s?[A-Za-z]?\s?\}\s?\{\s?(?:\\mathrm\{d\}|d)"
)
_MATRIX_POWER = re.compile(r"\\end\{[a-zA-Z]{0,12}(?:matrix|array)\}\s?(?:\\right)?\s?[\])]?\s?\^")
_CODE = re.compile(
    r"__|`|(?<![\\A-Za-z])(?:lambda|import|exec|eval|getattr|globals|locals|open|print|os|sys|subprocess)"
    r"\s?(?=[.(:]|\s[a-z_]+\s?:)|(?<![\\A-Za-z])import\s|;\s?(?:import|print|exec)"
)
_POWER_TOKEN = re.compile(r"\\[{}]|\\[A-Za-z]+|\d+(?:[,_.]\d+)*|[{}()\[\]^!]|\S")


def refusal(answer: str) -> str | None:
    """Why an answer is not compared, in a few words; None if it may be.

    Args:
        answer: The content of a box.
    """
    if len(answer) > LONGEST_ANSWER:
        return f"longer than {LONGEST_ANSWER} characters"
    if any(unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs") for character in answer if character > "~") or (
        any(character < " " and character not in "\n\t\r" for character in answer)
    ):
        return "control character"
    if _CODE.search(answer):
        return "program code"
    if construct := _CONSTRUCT.search(answer):
        return f"evaluation construct \\{construct['command'][:20]}"
    if _DERIVATIVE.search(answer):
        return "evaluation construct derivative"
    if _MATRIX_POWER.search(answer):
        return "power of a matrix"
    if answer.count("\\pm") + answer.count("\\mp") + answer.count("±") > MOST_CHOICES:
        return f"more than {MOST_CHOICES} choices of sign"
    return _too_large(answer)


def _too_large(answer: str) -> str | None:
    """Depth, digit runs, powers and factorials, in one pass.

    Each open bracket is kept with whether it is inside an exponent and what it has held so far: the deepest power
    and whether a factorial was taken.
    """
    opened: list[bool] = []
    factorials: list[bool] = [False]
    before, digits_before, exponent_next, after_exponent, exponents = "", "", False, False, 0
    closed_factorial = False
    for match in _POWER_TOKEN.finditer(answer):
        token = match.group()
        ends_exponent = False
        if token[0].isdigit():
            if len(token) > LONGEST_DIGITS:
                return f"more than {LONGEST_DIGITS} digits in a row"
            if (exponent_next or exponents) and len(token) > len(str(LARGEST_EXPONENT)):
                return "exponent too large"
            ends_exponent = exponent_next
        elif token == "^":
            if after_exponent or exponents > 1 or (exponents and (before[:1].isdigit() or before in ")]}!")):
                return "tower of powers"
            exponent_next = True
            before, after_exponent = token, False
            continue
        elif token in ("{", "(", "[", "\\{"):
            opened.append(exponent_next)
            exponents += exponent_next
            factorials.append(False)
            if len(opened) > DEEPEST:
                return f"nested deeper than {DEEPEST}"
            exponent_next = False
            before, after_exponent = token, False
            continue
        elif token in ("}", ")", "]", "\\}"):
            if opened:
                ends_exponent = opened.pop()
                exponents -= ends_exponent
                closed_factorial = factorials.pop()
                factorials[-1] = factorials[-1] or closed_factorial
        elif token == "!":
            if before == "!" or (before in ("}", ")", "]") and closed_factorial):
                return "factorial of a factorial"
            if len(digits_before) > 4 or after_exponent:
                return "factorial of a large number"
            factorials[-1] = True
        elif exponent_next and token in "+-":
            continue  # the sign of an exponent
        else:
            ends_exponent = exponent_next
        before, exponent_next, after_exponent = token, False, ends_exponent
        digits_before = token if token[0].isdigit() else (digits_before if token in ")}" else "")
    return None
