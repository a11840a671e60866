"""Which heads differ between two conditions: every head of every recorded layer, none chosen.

The prompt is the unit: a measure's paired difference between two conditions, averaged over prompts. If the conditions
were exchangeable, each prompt's difference would be as likely with the other sign, in all heads at once. So the signs
are flipped prompt by prompt, and each head's |t| is held against the largest |t| of *all* heads under the flips: the
p-values are adjusted for having looked at every head, with the heads' dependence kept.

Source: Westfall and Young, "Resampling-Based Multiple Testing", 1993 (single-step max-T); Nichols and Holmes, 2002.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas
from numpy.typing import NDArray

from attention_probe.analysis.averaging import chosen_problems, has_one_filler
from attention_probe.measure.definitions import FILLER_ONLY, GUARANTEED, MEASURES
from attention_probe.traces import AttentionTraces
from harness.errors import ConfigError

DRAWS, SEED = 10_000, 1234
_CHUNK = 500
_TIE = 1e-9
"""Relative: sums of the same numbers in another order must count as equal."""


def rank_heads(
    traces: AttentionTraces,
    measure: str,
    baseline: str,
    condition: str,
    *,
    problem_ids: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
) -> pandas.DataFrame:
    """All heads by how far a measure differs between two conditions, `condition` minus `baseline`.

    Args:
        traces: Where from.
        measure: A name of `definitions.MEASURES`.
        baseline: The condition that is subtracted, usually another filler.
        condition: The condition that it is subtracted from.
        problem_ids: Which prompts. By default all that were traced under both conditions, without controls.
        draws: How many sign flips are drawn. If there are no more than that, all 2^(n-1) distinct ones are taken.
        seed: Seed of the flips.

    Returns:
        One row per head, the most different first: rank, layer and head (from 0), label (from 1), n (prompts), the mean
        difference, its standard error, t, p_adjusted, and `guaranteed`. The last is true if one of the two conditions
        has no filler and the measure is one of GUARANTEED. The contrast is no finding then: t and p_adjusted are
        missing, and heads are ordered by the size of the mean difference. `attrs` has the number of heads and flips,
        whether the flips are all there are (`exact`), and a note for readers.

    Raises:
        ConfigError: there is no such measure, it was not recorded, no prompt has both conditions, or fewer than two.
    """
    if measure not in MEASURES:
        raise ConfigError(f"there is no measure {measure!r}. Choose one of {', '.join(MEASURES)}.")
    if baseline == condition:
        raise ConfigError(f"{condition} cannot be contrasted with itself. Choose two conditions.")
    chosen = list(chosen_problems(traces, (baseline, condition)) if problem_ids is None else problem_ids)
    if len(chosen) < 2:
        raise ConfigError(f"{len(chosen)} prompt cannot rank heads: the prompt is the unit. Probe at least two.")
    lone = has_one_filler(traces, condition, baseline)
    if lone and measure.startswith(FILLER_ONLY):
        filled = {entry.condition for entry in traces.entries() if entry.filler_span}
        raise ConfigError(
            f"{measure} means nothing without a filler, and {baseline if condition in filled else condition} has none. "
            f"Contrast two of {', '.join(name for name in traces.conditions if name in filled)}."
        )
    guaranteed = lone and measure in GUARANTEED
    _, with_it = traces.measure(measure, condition, chosen)
    _, without = traces.measure(measure, baseline, chosen)
    differences = (with_it - without).reshape(len(chosen), -1)
    if not np.isfinite(differences).any():
        raise ConfigError(
            f"{measure} has no value in any prompt under {condition} and {baseline} both: without a filler it means "
            "nothing. Contrast two conditions that have one."
        )
    header, table = traces.header, pandas.DataFrame(differences)
    frame = pandas.MultiIndex.from_product([header.layers, range(header.head_count)]).to_frame(False, ["layer", "head"])
    frame["label"] = [f"Layer {layer + 1} Head {head + 1}" for layer, head in frame.itertuples(index=False)]
    frame["n"] = table.count()
    frame["mean_difference"] = table.mean()
    frame["standard_error"] = table.sem()
    frame["t"] = np.nan if guaranteed else t_values(differences)
    frame["p_adjusted"] = np.nan if guaranteed else max_t(differences, draws=draws, seed=seed)
    frame["guaranteed"] = guaranteed
    size = "mean_difference" if guaranteed else "t"
    frame = frame.sort_values(size, key=np.abs, ascending=False, kind="stable", ignore_index=True)
    frame.insert(0, "rank", range(1, len(frame) + 1))
    count, exact = _flip_count(len(chosen), draws)
    if guaranteed:
        note = (
            f"{measure} of {condition} against {baseline} is no finding: one of the two has no filler, and softmax and "
            "the shift of positions change it whatever is inserted. Contrast two fillers."
        )
    else:
        note = f"{len(chosen)} prompts, {'all ' if exact else ''}{count} sign flips; p adjusted for all heads (max-T)"
        if exact and count < 20:
            note += f"; no p below {1 / count:.2g} is possible, probe at least 6"
    frame.attrs = {
        "heads": len(frame),
        "flips": 0 if guaranteed else count,
        "exact": exact,
        "note": "; ".join([note, *header.stamps]),
    }
    return frame


def t_values(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """One-sample t of each column [head] of a [prompt, head] array, NaN left out.

    Infinite where all differences are the same, 0 where all are 0 or fewer than two are there.
    """
    there = np.nan_to_num(differences)
    return _t(there.sum(axis=0), np.square(there).sum(axis=0), np.isfinite(differences).sum(axis=0))


def max_t(differences: NDArray[np.float64], *, draws: int = DRAWS, seed: int = SEED) -> NDArray[np.float64]:
    """Family-wise adjusted two-sided p of each column [head] of a [prompt, head] array of paired differences.

    Args:
        differences: NaN where a prompt has no value for a head.
        draws: How many sign flips are drawn. If there are no more than that, all 2^(n-1) distinct ones are taken, and
            p is exact.
        seed: Seed of the flips.
    """
    there = np.nan_to_num(differences)
    squares, n = np.square(there).sum(axis=0), np.isfinite(differences).sum(axis=0)
    observed = np.abs(t_values(differences))
    count, exact = _flip_count(len(differences), draws)
    beaten = np.zeros(differences.shape[1], dtype=np.int64)
    for signs in _flips(len(differences), count, exact, seed):
        largest = np.abs(_t(signs @ there, squares, n)).max(axis=1)
        beaten += (largest[:, None] >= observed * (1 - _TIE)).sum(axis=0)
    # among all flips is the one that flips nothing; among drawn ones it is counted once more
    return beaten / count if exact else (1 + beaten) / (1 + count)


def _t(total: NDArray[np.float64], squares: NDArray[np.float64], n: NDArray[np.int64]) -> NDArray[np.float64]:
    """T from the sum and the sum of squares: the latter is the same under every flip."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.clip(np.nan_to_num(total / np.sqrt(n * squares)), -1.0, 1.0)  # with the constant vector
        rest = 1 - np.square(cosine)
        return np.where(
            rest > _TIE, cosine * np.sqrt(np.maximum(n - 1, 0) / rest), np.where(n > 1, np.sign(cosine) * np.inf, 0.0)
        )


def _flip_count(size: int, draws: int) -> tuple[int, bool]:
    """How many flips, and whether these are all: a flip and its opposite have the same |t|, so half of them are."""
    exact = size <= 40 and 2 ** (size - 1) <= draws
    return (2 ** (size - 1) if exact else draws), exact


def _flips(size: int, count: int, exact: bool, seed: int) -> Iterator[NDArray[np.float64]]:
    random = np.random.default_rng(seed)
    for start in range(0, count, _CHUNK):
        rows = min(_CHUNK, count - start)
        if exact:  # the bits of the flip's number; the last prompt keeps its sign
            bits = (np.arange(start, start + rows)[:, None] >> np.arange(size)) & 1
        else:
            bits = random.integers(0, 2, size=(rows, size))
        yield np.where(bits, -1.0, 1.0)
