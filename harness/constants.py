"""Values that several modules share and that a reader may question, each with its reason, and the words of fixed sets.

What a user may set is a `Field` of the schema instead. The limit of a method stands at the top of the module that uses
it. Nothing of mless is imported here, so that every stage and the probe can import this file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

# The study: what is put before a question, and where
BASELINE = "wo"
"""The condition that all others are compared with."""
STUDIED = "mless"
"""The condition that the study is about, and the one that is shown unless told."""
DEFAULT_SEED = 1234
"""Of what is drawn at random unless told: tokens and places, samples, flips, permutations, bootstrap draws."""

# Prompts: their tokens, documents and sampling
SEPARATOR = " \n\n"
"""The text between instruction, filler and problem in the sound layouts, the same in every condition.

The blank before the line breaks is there on purpose. Byte-level tokenizers join line breaks to the symbol before them
(the Qwen pattern makes one piece of ` /` and a following newline), and the tekken pattern also joins a slash to the
breaks before it. The blank ends the piece on the left, and the line break starts a new one on the right. So neither
filler nor problem is ever merged with its neighbour.
"""
MAX_GEN_TOKS = 2048
"""Tokens generated at most unless told, as in the authors' code."""

# Statistics
ALPHA = 0.05
"""Level of all tests; intervals are of level 1 - ALPHA, those of equivalence of 1 - 2 ALPHA."""
POWER = 0.8
"""With which a planned run should find a true difference: the usual one."""
MARGIN = 1.0
"""Equivalence margin in points, unless told: a gain below it would change no decision on a prompt."""
PASSED = ("better", "worse")
"""Verdicts that need a significant test. Only these are bold."""
FEWEST_MODELS = 4
"""Fewer models say nothing about new ones."""
FEWEST_TEXTS = 8
"""Fewer other texts say little of new ones of their kind."""
FEWEST_INSTRUCTIONS = FEWEST_MODELS
"""Fewer instructions say nothing about new ones, by the same arithmetic."""

# Words out of fixed sets, which command lines list and check
Format = Literal["text", "markdown", "csv", "latex", "json"]
"""How a page of tables is written."""
Definition = Literal["common", "published"]
"""Which queries an attention curve averages over. `common`: those that the prompt without filler has too. `published`:
all later ones, filler included, so that instruction tokens fall merely because filler queries join the average."""
Flip = Literal["wrong_to_right", "right_to_wrong", "both_right", "both_wrong"]
"""What became of a problem from one condition to another."""
Choice = Literal[Flip, "changed"]
"""Which problems are chosen: those with one outcome, or those that changed in either direction."""
View = Literal["aligned", "full"]
"""A curve with the filler's positions taken out, or over the prompt as it was."""
Dtype = Literal["float32", "bfloat16", "float16"]
"""What the probe's layers are computed in."""


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
    INSTRUCTIONS = "instructions"
    CAUSES = "causes"
