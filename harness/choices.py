"""Fixed sets of values that command lines list and check. They stand apart so that `--help` imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

Format = Literal["text", "markdown", "csv", "latex", "json"]
"""How a page of tables is written."""

Definition = Literal["common", "published"]
"""Which queries an attention curve averages over. `common`: those that the prompt without filler has too. `published`:
all later ones, filler included, so that instruction tokens fall merely because filler queries join the average."""

Flip = Literal["wrong_to_right", "right_to_wrong", "both_right", "both_wrong"]
"""What became of a problem from one condition to another."""

Choice = Literal[Flip, "changed"]
"""Which problems are chosen: those with one outcome, or those that changed in either direction."""

Repeats = Literal["share", "first", "majority", "any"]
"""By what of its several samples a problem changes: the share that is right, the first, the majority, or any right one.
"""


class Split(StrEnum):
    """By what a comparison is split. This is an enumeration because typer takes no list of literals."""

    SUBJECT = "subject"
    LEVEL = "level"


class Kind(StrEnum):
    """A kind of figure of accuracies and differences."""

    ACCURACY = "accuracy"
    FOREST = "forest"
    COMPLETION_LENGTHS = "completion-lengths"
    DOSE = "dose"
