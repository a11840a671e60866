"""A filler found by comparing texts, for logs that do not say where theirs stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import PromptMismatchError
from harness.experiment.prompt import Role, Segment

PROBLEM_FIELDS = ("problem", "question", "query", "input")
"""What data sets call the text that is asked; a document with none of them is searched for its longest text."""


def split_plain(text: str, doc: Mapping[str, Any]) -> tuple[Segment, ...]:
    """The segments of a prompt without filler: the problem, what stands before it, and what follows it.

    The problem is the document's own text, found in the prompt. What stands before it counts as instruction (a chat
    template's opening and worked examples included) and what follows it as separator. If no text of the document is
    in the prompt, all of it is the problem.
    """
    others = (value for name, value in doc.items() if name not in PROBLEM_FIELDS and isinstance(value, str))
    named = (doc[name] for name in PROBLEM_FIELDS if isinstance(doc.get(name), str))
    for candidate in (*named, *sorted(others, key=len, reverse=True)):
        wanted = candidate.strip()
        at = text.rfind(wanted) if wanted else -1
        if at >= 0:
            break
    else:
        wanted, at = text, 0
    end = at + len(wanted)
    parts: tuple[tuple[Role, str], ...] = (
        ("instruction", text[:at]),
        ("problem", text[at:end]),
        ("separator", text[end:]),
    )
    return tuple(Segment(role=role, text=part) for role, part in parts if part)


def insert(plain: tuple[Segment, ...], text: str, *, what: str) -> tuple[Segment, ...]:
    """The segments of a prompt that is a prompt without filler with one stretch inserted.

    Where the stretch could begin at several places (a problem that begins like the filler), it stands before the
    problem if it can, else as late as it can: the text and its tokens are the same.

    Args:
        plain: The segments of the prompt without filler.
        text: The prompt with it.
        what: Names the two prompts, for the message.

    Raises:
        PromptMismatchError: the two texts differ by more than one inserted stretch.
    """
    base = "".join(segment.text for segment in plain)
    size = len(text) - len(base)
    prefix = _agreeing(base, text)
    suffix = _agreeing(base[::-1], text[::-1])
    earliest = max(0, len(base) - suffix)
    if size < 0 or earliest > prefix:
        raise PromptMismatchError(
            f"{what}: expected the second prompt to be the first with one stretch inserted, but they differ elsewhere "
            f"too: {base[prefix : prefix + 30]!r} against {text[prefix : prefix + 30]!r}. Name logs of the same "
            "problems that differ by the filler only."
        )
    if size == 0:
        return plain
    edges = [0]
    for segment in plain:
        edges.append(edges[-1] + len(segment.text))
    opening = next((edge for edge, s in zip(edges, plain, strict=False) if s.role == "problem"), len(base))
    start = opening if earliest <= opening <= prefix else prefix
    stretch = text[start : start + size]
    filler = stretch.strip() or stretch
    before, _, after = stretch.partition(filler)
    inserted: list[tuple[Role, str]] = [("separator", before), ("filler", filler), ("separator", after)]
    pieces: list[tuple[Role, str]] = []
    for edge, segment in zip(edges, plain, strict=False):
        cut = start - edge
        if 0 <= cut < len(segment.text):
            pieces += [(segment.role, segment.text[:cut]), *inserted, (segment.role, segment.text[cut:])]
        else:
            pieces.append((segment.role, segment.text))
    if start == len(base):
        pieces += inserted
    return tuple(Segment(role=role, text=part) for role, part in pieces if part)


def _agreeing(first: str, second: str) -> int:
    """How many leading characters are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
