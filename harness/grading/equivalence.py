"""Are two answers the same? Text first, numbers second, math_verify last, and only where it can be trusted.

math_verify is generous: it takes `(-2,1)` for `1,-2`, `101_3` for `101_2`, `x \\ne 5` for `5`, `x` for `X`. What it
would confuse is told apart before it is asked.
"""

from __future__ import annotations

import logging
import re

FLOAT_ROUNDING = 12

# both say once a process that their timeouts are off, which is what we ask of them
logging.getLogger("math_verify").setLevel(logging.ERROR)

_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,\\!|\{,\}|\\,|\\!|\\ |,|~| )\d{3})+(?![\d])")
_BLANK = re.compile(r"(?:\\[,;:! ]|\\q?quad|[\s~])+")
_INTEGER = re.compile(r"[-+]?\d+")
_BASED = re.compile(r"\(?([0-9A-Z]+)\)?_\{?(\d+)\}?")
_TEXT = re.compile(r"\\(?:text|textbf|mbox|mathrm|operatorname)\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_RELATION = re.compile(
    r"\\(?:ne|neq|le|leq|leqslant|ge|geq|geqslant|approx|equiv|sim|in|to|[Rr]ightarrow|implies)\b|[=<>]"
)
_DEFINITION = re.compile(r"(?:[A-Za-z]|\\[a-z]+)(?:_\{?\w+\}?)?(?:\([a-z]\))?(?:=|\\in(?![a-z]))")
_SHADY = re.compile(r"\\(?:ne|neq|approx|equiv|sim|to|[Rr]ightarrow|implies)\b")
_SEVERAL = re.compile(r"\\(?:pm|mp|cup|cap|infty|setminus)|<|>|\\[lg]eq?|pmatrix")
"""What a single expression must hold to stand for a list or an interval."""
_NAMES = re.compile(r"\\(?:angle|triangle|overline|overrightarrow)")


def same_text(answer: str, target: str) -> bool:
    """Equal but for spacing, size commands, dollar signs, digit grouping and a closing full stop."""
    return _plain(answer) == _plain(target)


def as_integer(text: str) -> int | None:
    """The whole number that a text is, digit groups allowed; None if it is not one or has over 4,000 digits."""
    plain = _plain(text)
    return int(plain) if len(plain) <= 4000 and _INTEGER.fullmatch(plain) else None


def same_mathematics(answer: str, target: str) -> bool:
    """Whether two answers that differ as text are the same mathematics.

    Told apart first: bases (a number without its base is another number), relations that are not a definition of a
    value, units that differ, letters that differ in case, primes, names of points, and brackets: `(1,2)`, `[1,2)` and
    `1,2` all differ, and between brackets order counts. Two bare lists, or two sets in braces, may be reordered but
    must be of one length. The rest is math_verify's.
    """
    answer, target = _defined_value(_plain(answer)), _defined_value(_plain(target))
    if answer == target:
        return True
    if _differ_by_notation(answer, target):
        return False
    answer_kind, answer_parts = _brackets(answer)
    target_kind, target_parts = _brackets(target)
    if (len(answer_parts) > 1) != (len(target_parts) > 1):
        one = target if len(answer_parts) > 1 else answer
        if not _SEVERAL.search(one):
            return False
    if len(answer_parts) > 1 and len(target_parts) > 1:
        same_kind = answer_kind == target_kind or {answer_kind, target_kind} == {"", "{}"}
        if not same_kind or len(answer_parts) != len(target_parts):
            return False
        if answer_kind not in ("", "{}"):
            return all(map(_same_part, answer_parts, target_parts))
        return _same_in_any_order(answer_parts, target_parts)
    return _verify(answer, target)


def _same_part(answer: str, target: str) -> bool:
    return answer == target or (not _differ_by_notation(answer, target) and _verify(answer, target))


def _same_in_any_order(answers: list[str], targets: list[str]) -> bool:
    unmatched = list(targets)
    for answer in answers:
        found = next((target for target in unmatched if _same_part(answer, target)), None)
        if found is None:
            return False
        unmatched.remove(found)
    return True


def _differ_by_notation(answer: str, target: str) -> bool:
    both = (answer, target)
    if any("boxed" in side or re.search(r"\d \d", side) or _NAMES.search(side) for side in both):
        return True
    bases = [_BASED.fullmatch(side) for side in both]
    if any(bases):
        return not (bases[0] and bases[1] and bases[0].groups() == bases[1].groups())
    related = [bool(_RELATION.search(side)) for side in both]
    if related[0] != related[1]:
        related_side, other = (answer, target) if related[0] else (target, answer)
        interval = bool(re.search(r"[\[(].*,.*[\])]|\\infty|\\cup", other))
        if not interval or _SHADY.search(related_side) or "=" in related_side:
            return True
    elif bool(_SHADY.search(answer)) != bool(_SHADY.search(target)):
        return True
    units = [{word for text in _TEXT.findall(side) for word in text.split()} for side in both]
    if units[0] and units[1] and units[0] != units[1]:
        return True
    if answer.count("'") + answer.count("\\prime") != target.count("'") + target.count("\\prime"):
        return True
    letters = [set(re.sub(r"[^A-Za-z]", "", _COMMAND.sub("", _TEXT.sub("", side)))) for side in both]
    if letters[0] != letters[1] and {c.lower() for c in letters[0]} == {c.lower() for c in letters[1]}:
        return True
    return all(re.fullmatch(r"[A-Z]{2,}", side) for side in both)


def _verify(answer: str, target: str) -> bool:
    """math_verify on the two contents alone.

    Its own timeouts are off: they rely on signals, which misbehave outside the main thread; the caller owns the clock.

    Source: math_verify 0.9, https://github.com/huggingface/Math-Verify; the options are those that made no error on
    500 golds, 437 equivalent rewrites and 1,333 near misses.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    extraction = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    parsed = [
        parse(f"\\boxed{{{text}}}", extraction_config=extraction, parsing_timeout=None) for text in (target, answer)
    ]
    if not all(parsed):
        return False
    return bool(
        verify(
            parsed[0],
            parsed[1],
            float_rounding=FLOAT_ROUNDING,
            allow_set_relation_comp=True,
            timeout_seconds=None,
        )
    )


def _defined_value(plain: str) -> str:
    """`x=5` and `x\\in[1,2]` as `5` and `[1,2]`: a single symbol set to a value, and nothing else."""
    match = _DEFINITION.match(plain)
    if match and not _RELATION.search(plain, match.end()):
        return plain[match.end() :]
    return plain


def _brackets(plain: str) -> tuple[str, list[str]]:
    """The outer bracket pair ("" if there is none around the whole) and the parts between top-level commas."""
    plain = plain.replace("\\{", "{").replace("\\}", "}")
    kind = plain[:1] + plain[-1:] if plain[:1] in "([{" and plain[-1:] in ")]}" and _encloses(plain) else ""
    inner = plain[1:-1] if kind else plain
    parts, depth, start = [], 0, 0
    for place, character in enumerate(inner):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(inner[start:place])
            start = place + 1
    return kind, [*parts, inner[start:]]


def _encloses(plain: str) -> bool:
    """Whether the first bracket closes at the very end and not before."""
    depth = 0
    for place, character in enumerate(plain):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return place == len(plain) - 1
    return False


def _plain(text: str) -> str:
    """The text without what does not change its meaning. A blank between two digits stays: `3 4` is not 34."""
    bare = text.replace("\\left", "").replace("\\right", "").replace("$", "")
    bare = bare.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    bare = _GROUPED.sub(lambda match: re.sub(r"\D", "", match.group()), bare)
    bare = _BLANK.sub(" ", bare)
    bare = re.sub(r"(?<!\d) | (?!\d)", "", bare.strip())
    return bare.removesuffix(".")
