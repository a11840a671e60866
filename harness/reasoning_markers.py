"""Where the reasoning of a completion begins and ends, by the markers of the model's family."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml

Markers = tuple[str, str]
"""The texts with which reasoning begins and ends."""

BARE_START = "analysis"
"""The start of gpt-oss where its control tokens are left out."""
_BARE_START = re.compile(rf"{BARE_START}[A-Za-z]")  # `analysisWe need`, but not `analysis of`


@cache
def family_markers(template: str | None = None) -> tuple[Markers, ...]:
    """The markers of all families, or of those whose end is in a chat template, each pair once."""
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    if template is not None:
        families = {row["family"] for row in rows if row["end"] in template}
        rows = [row for row in rows if row["family"] in families]
    return tuple(dict.fromkeys((row["start"], row["end"]) for row in rows))


def find_opened(prompt: str, markers: Iterable[Markers]) -> Markers | None:
    """The markers whose start is the end of a prompt, so that the completion begins as reasoning.

    Args:
        prompt: The text of the prompt.
        markers: The model's markers; those of all families if there are none.
    """
    text = prompt.rstrip()
    for start, end in markers or family_markers():
        if start != BARE_START and text.endswith(start):
            return start, end
    return None


def skip_reasoning(completion: str, markers: Iterable[Markers] = ()) -> str | None:
    """The text of a completion after its last reasoning; None if reasoning did not end.

    Args:
        completion: The completion, with the start of reasoning that the prompt opened.
        markers: The model's markers; those of all families if there are none.
    """
    markers = markers or family_markers()
    for _, end in markers:
        completion = completion.rpartition(end)[2]
    for start, _ in markers:
        is_bare = start == BARE_START
        if _BARE_START.match(completion) if is_bare else start in completion:
            return None
    return completion


def add_reasoning(text: str, reasoning: str, markers: tuple[Markers, ...]) -> str:
    """A completion with the reasoning that a server returned apart from its text.

    Without a text the reasoning did not end.
    """
    if not reasoning:
        return text
    start, end = (markers or family_markers())[0]
    return f"{start}{reasoning}{end}{text}" if text else start + reasoning
