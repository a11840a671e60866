"""Values that the study or a method fixes, each with its reason.

What a user may set is a `Field` of the schema instead. Nothing of mless is imported here, so that every stage and the
probe can import this file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

# The study: what is put before a question, and where
STUDY_COUNT = 55
"""Filler tokens in the study's main setting: that of the authors' code. The paper sweeps 0 to 70."""
DEFAULT_SEED = 1234
"""Of what is drawn at random unless told: sentences, random tokens and places, samples, sign flips."""
SEEDS_APART = 1_000_003
"""Between the seeds of two samples, so that no other condition's seed is one of them."""
RANDOM_DRAWS = 100
"""Draws of random tokens before a tokenizer is said to have none of that count."""
MOST_TOKENS = 100_000
"""More tokens, numbers or repetitions fit in no model's context, and would take hours to build."""

# Prompts: their tokens, documents and sampling
SEPARATOR = " \n\n"
"""The text between instruction, filler and problem in the sound layouts, the same in every condition.

The blank before the line breaks is there on purpose. Byte-level tokenizers join line breaks to the symbol before them
(the Qwen pattern makes one piece of ` /` and a following newline), and the tekken pattern also joins a slash to the
breaks before it. The blank ends the piece on the left, and the line break starts a new one on the right. So neither
filler nor problem is ever merged with its neighbour.
"""
PROMPT_VERSION = 1
"""Goes up when a problem, condition and layout give another prompt than before; older samples then count no more."""
MAX_GEN_TOKS = 2048
"""Tokens generated at most unless told, as in the authors' code."""
GENERATE_TOP_K = 50
"""What transformers' `generate` takes where a sampling model names no top_k."""
PINNED_DATE = (2024, 7, 26)
"""The date that chat templates print instead of today's: that which Llama 3.1's own template falls back to."""

# Engines

# Grading

# Runs: the journal and the stored files
COMPRESSION = 3
"""Preset of xz for a finished run: an eighth of the size in a second for 10 MB; the highest takes three for a tenth."""

# Statistics

# Display: tables, figures, report, progress

# lm-eval and the installation
HUB_SECONDS = 3.0
"""How long `mless doctor` waits for the hub."""

# The probe: model, measures, analysis, figures
GROUP_TOKENS = 1024
"""Tokens in one forward pass, padding included: on a CPU more only take memory, and fall out of the caches."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""From glibc's malloc.h."""
CHECKED_TOKENS = 2048
"""The self-check keeps whole attention matrices, so it takes a prompt no longer than this, if there is one."""
SAMPLED_QUERIES = 64
"""Queries on which the self-check compares the Layer 1 identity."""
EAGER_QUERIES = 64
"""Queries in one block of a whole attention matrix."""
BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""How large a block of weights may get before it takes fewer queries."""
FINGERPRINT_VALUES = 4096
"""Values of each first-layer tensor that are hashed into the fingerprint."""
TRACES_FORMAT = 6
"""Of a folder of traces; another one is not read."""
NEAR_ZERO_FACTORS = (0.1, 0.13, 0.32)
"""The study's values of c on MATH-500: |a| below 1.4826 MAD c is near zero."""
NORMAL_CONSISTENCY = 1.4826
"""Makes the median absolute deviation of normal values their standard deviation."""
ACTIVATION_BINS = 100
"""Equal bins of the histogram of |a|, up to its COVERED quantile: the largest of millions of values is an outlier."""
COVERED = 0.99
BAND_DRAWS = 2000
"""Bootstrap draws of a curve's band."""
BAND = 0.95
"""Level of a curve's band."""
RANKING_DRAWS = 10_000
"""Sign flips or permutations of labels; where there are no more than these, all are taken."""
PROBE_SEED = 1234
"""Of bootstrap draws, flips and permutations."""
HEADS_ALPHA = 0.05
"""Heads with a smaller adjusted p are counted."""
FLIPS_AT_ONCE = 500
"""Rows of flips that are in memory at a time."""
TIE = 1e-9
"""Relative: sums of the same numbers in another order must count as equal."""
GLYPH = 0.56
"""Width of an average letter, in font sizes."""
NUMBERS_LINE = 0.16
"""Height of a line of the numbers below a histogram, in inches."""

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
Repeats = Literal["share", "first", "majority", "any"]
"""By what of its several samples a problem changes: the share that is right, the first, the majority, or any right one.
"""
View = Literal["aligned", "full"]
"""A curve with the filler's positions taken out, or over the prompt as it was."""
Shown = Literal[View, "difference"]
"""Also the paired difference of two conditions, token by token, in the aligned view."""
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
