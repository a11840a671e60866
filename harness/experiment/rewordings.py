"""The prompt null: harmless edits of the prompt without a filler, to see how far any edit moves the accuracy."""

from __future__ import annotations

from functools import cache

import yaml

from harness import resources
from harness.errors import ConfigError
from harness.experiment.conditions import Condition, Edit


@cache
def all_edits() -> tuple[Condition, ...]:
    """Every edit as a condition, in the order in which `prompt_null` takes them: `edit-01`, `edit-02`, ..."""
    entries = yaml.safe_load(resources.rewordings().read_text(encoding="utf-8"))
    return tuple(
        Condition(name=f"edit-{number:02}", edit=Edit(**entry)) for number, entry in enumerate(entries, start=1)
    )


def first_edits(count: int) -> tuple[Condition, ...]:
    """The first so many edits.

    Raises:
        ConfigError: there are not so many.
    """
    edits = all_edits()
    if not 0 <= count <= len(edits):
        raise ConfigError(f"prompt_null: expected 0 to {len(edits)} edits (experiment/rewordings.yaml), got {count}.")
    return edits[:count]


def is_edit(condition: str) -> bool:
    """Whether a condition is no condition but an edit of the prompt null."""
    return condition in {edit.name for edit in all_edits()}
