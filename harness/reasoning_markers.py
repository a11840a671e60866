"""Where the reasoning of a completion begins and ends, by the markers of the model's family."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

Markers = tuple[tuple[str, str], ...]
"""Texts with which a model's reasoning begins and ends: a pair for each form that it may have."""

NO_MARKERS_NOTE = (
    "No chat template states the markers of this model's reasoning, so those of all known families "
    "count. Others can be set: `thinking: {start: ..., end: ...}`."
)
"""The note on a model that reasons between unknown markers."""
MOST_MISTAKEN_SHARE = 0.1
"""If more completions than this share end reasoning that they do not begin, the prompts began it.
Fewer may be mistakes of the model."""
_TAGS_IN_TEMPLATE = re.compile(r"<([^<>/\s]+)>[^<>]*(?:reason|think|thought)[^<>]*</\1>")
"""Tags around the variable of a template that holds the reasoning."""


@cache
def family_markers(template: str | None = None) -> Markers:
    """The markers of all families, or of the families of a chat template, each pair once.

    A template is of a family if it contains an end of its reasoning. All pairs of the family count
    then, because a server may write another pair than the template.
    """
    marker_rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    if template is not None:
        families = {row["family"] for row in marker_rows if row["end"] in template}
        marker_rows = [row for row in marker_rows if row["family"] in families]
    return tuple(dict.fromkeys((row["start"], row["end"]) for row in marker_rows))


def read_markers(template: str) -> Markers:
    """The markers in a chat template: those of known families, else tags around the reasoning."""
    tags = dict.fromkeys(_TAGS_IN_TEMPLATE.findall(template))
    return family_markers(template) or tuple((f"<{tag}>", f"</{tag}>") for tag in tags)


def find_open_reasoning(prompt: str, markers: Markers = ()) -> tuple[str, str]:
    """The markers whose start ends a prompt, so that its completion is reasoning; else empty texts.

    Args:
        prompt: The text of the prompt.
        markers: The model's markers; those of all families if there are none.
    """
    stripped_prompt = prompt.rstrip()
    for start_marker, end_marker in markers or family_markers():
        # a start such as `analysis` is also an ordinary word, which may end a prompt
        if stripped_prompt.endswith(start_marker.rstrip()) and not start_marker.isalpha():
            return start_marker, end_marker
    return "", ""


def find_hidden_start(completions: Sequence[str]) -> str:
    """The start of reasoning with which the prompts of completions ended; empty if with none.

    The prompts themselves are not known, as in a table of completions. They ended with a start if
    more than MOST_MISTAKEN_SHARE of the completions end reasoning that they do not start.
    """
    for start_marker, end_marker in family_markers():
        reasoning_texts = [
            text.partition(end_marker)[0] for text in completions if end_marker in text
        ]
        unopened_count = sum(start_marker not in text for text in reasoning_texts)
        # an end of several words may be ordinary text
        if " " not in end_marker and unopened_count > MOST_MISTAKEN_SHARE * len(completions):
            return start_marker
    return ""


def skip_reasoning(completion: str, markers: Markers = ()) -> str | None:
    """The text of a completion after its last reasoning; None if reasoning did not end.

    Args:
        completion: The completion, with the start of reasoning that the prompt opened.
        markers: The model's markers; those of all families if there are none.
    """
    markers = markers or family_markers()
    text = completion
    # what remains is the text after the last end of any pair; a text without an end stays whole
    for _, end_marker in markers:
        text = text.rpartition(end_marker)[2]
    # a start after the last end begins reasoning that did not end
    for start_marker, _ in markers:
        if start_marker.isalpha():
            # Where control tokens were left out, a bare word touches the text after it: `analysisWe
            # need` begins reasoning, but `analysis of` does not.
            is_open = re.match(rf"\s*{start_marker}[\w$\\]", text) is not None
        else:
            # `rfind` takes half the time of `in` if the marker is missing
            is_open = text.rfind(start_marker) >= 0
        if is_open:
            return None
    return text


def add_reasoning(text: str, reasoning: str, markers: Markers) -> str:
    """A completion with the reasoning that a server returned apart from its text.

    Without a text the reasoning did not end.
    """
    if not reasoning:
        return text
    # Without markers of the model those of any family will do, because then `skip_reasoning` skips
    # the reasoning of all families.
    start_marker, end_marker = (markers or family_markers())[0]
    return f"{start_marker}{reasoning}{end_marker}{text}" if text else f"{start_marker}{reasoning}"
