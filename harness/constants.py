"""Values that several modules share, each with its reason, and the words of fixed sets.

What a user may set is a `Field` of the schema instead. The limit of a method stands at the top of
the module that uses it. This file imports nothing of mless, so that all stages and the probe can
import it.
"""

from enum import StrEnum
from typing import Any, Literal

JsonObject = dict[str, Any]
"""An object of JSON: a line of a journal or a log, a receipt, a document."""
Row = dict[str, Any]
"""A row of a table, by column."""

# The study: arXiv 2510.01032
BASELINE = "wo"
"""The condition without a filler, the default baseline."""
STUDY_CONDITION = "mless"
"""The condition with the filler of the study, the default of commands."""
DEFAULT_SEED = 1234
"""The default seed of everything drawn at random: filler tokens, positions, samples, sign flips,
permutations, bootstrap draws."""

SEPARATOR = " \n\n"
"""The text between instruction, filler and problem in the sound layouts, the same in every
condition.

The blank before the line breaks is there on purpose. Byte-level tokenizers join line breaks to the
symbol before them (the Qwen pattern makes one piece of ` /` and a following newline), and the
tekken pattern also joins a slash to the breaks before it. The blank ends the piece on the left, and
the line break starts a new one on the right. So neither filler nor problem is ever merged with its
neighbour.
"""
MAX_GEN_TOKS = 2048
"""The default maximum length of a completion in tokens, as in the authors' code."""

ALPHA = 0.05
"""The significance level of all tests. Intervals have the confidence level 1 - ALPHA, and those of
equivalence 1 - 2 ALPHA."""
POWER = 0.8
"""The conventional power with which a planned run should detect a true difference."""
MARGIN = 1.0
"""The default equivalence margin in points: a gain below it would change no decision on a
prompt."""
ANSWER_LOGPROB = "answer_logprob"
"""The endpoint that scores the gold answer and other answers; also the column of the gold answer's
log-probability."""
GOLD_FIRST = "gold_first"
"""The score of the endpoint `answer_logprob`: the percentage of gold answers that are likelier than
the others."""
ANSWER_SHARE = "answer_share"
"""The column of the logarithm of the gold answer's share of the probability of all its answers."""
OTHER_ANSWER_COUNT = 4
"""The number of other answers that are scored after each prompt."""
CHANCE_PERCENT = 100 / (1 + OTHER_ANSWER_COUNT)
"""The percentage of gold answers that come first by chance."""
NATS_MARGIN = 0.1
"""The equivalence margin of log-probabilities: the gold answer becomes a tenth more likely or less
likely."""
SCORE_COLUMN = "table_score"
"""The column of a table's scores, which may be numbers of any meaning."""
BETTER_OR_WORSE = ("better", "worse")
HIGHER_OR_LOWER = ("higher", "lower")
SIGNIFICANT_VERDICTS = (*BETTER_OR_WORSE, *HIGHER_OR_LOWER)
"""Verdicts that need a significant test; only these are bold. Whether a larger `table_score` is
better is unknown, so such scores are only higher or lower."""
NOT_SHOWN = "not shown"
"""The place of a filler's difference among those of other texts, if it is unknown: the texts are
too few or have no range, or their families disagree."""
FEWEST_DRAWS = 4
"""With fewer draws of examples, results hold for these examples only."""
FEWEST_TEXTS = 8
"""With fewer other texts there is no result for new texts."""

# Literals, so that command lines can list and check the words
DecimalSign = Literal[",", "."]
"""The sign between the whole part of a number and its decimals."""
AnswerKind = Literal["letter", "text", "index0", "index1"]
"""What the answers of data with choices are: letters, texts, or numbers that count from 0 or 1."""
TableFormat = Literal["text", "markdown", "latex", "csv", "json"]
"""Output format of tables."""
CurveDefinition = Literal["common", "published"]
"""Which queries an attention curve averages over. `common`: those that the prompt without filler
has too. `published`: all later ones, filler included, so that instruction tokens fall merely
because filler queries join the average."""
Flip = Literal["wrong_to_right", "right_to_wrong", "both_right", "both_wrong"]
"""The outcome of a problem from one condition to another."""
FlipChoice = Literal[Flip, "changed"]
"""Selected problems: those with one outcome, or those that changed in either direction."""
CurveView = Literal["aligned", "full"]
"""A curve without the filler's positions, or over the full prompt."""
Dtype = Literal["float32", "bfloat16", "float16"]
"""Number type of the probe's layers."""


class SplitColumn(StrEnum):
    """A column that splits a comparison. Typer accepts lists of enumerations, not of literals."""

    SUBJECT = "subject"
    LEVEL = "level"


class FigureKind(StrEnum):
    """A kind of figure of differences."""

    FOREST = "forest"
    DOSE = "dose"
