"""Which heads differ between two conditions: every head of every recorded layer, none chosen.

The prompt is the unit: a measure's paired difference between two conditions, averaged over prompts. If the conditions
were exchangeable, each prompt's difference would be as likely with the other sign, in all heads at once. So where every
prompt has a filler of its own the signs are flipped prompt by prompt, and each head's |t| is held against the largest
|t| of *all* heads under the flips: p is adjusted for having looked at every head, with the heads' dependence kept.

One string against one other says nothing about fillers: whatever differs between the two differs. Heads are then only
ordered, by t. With several strings on either side the string is the unit: a measure's mean over prompts, and the
strings' labels are permuted.

Source: Westfall and Young, "Resampling-Based Multiple Testing", 1993 (single-step max-T); Nichols and Holmes, 2002.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from attention_probe.analysis.curves import chosen_problems, has_one_filler
from attention_probe.measure.definitions import FILLER_ONLY, GUARANTEED, MEASURES
from attention_probe.traces import AttentionTraces
from harness.constants import FLIPS_AT_ONCE, HEADS_ALPHA, PROBE_SEED, RANKING_DRAWS, TIE
from harness.errors import ConfigError


def rank_heads(
    traces: AttentionTraces,
    measure: str,
    baseline: str | Sequence[str],
    condition: str | Sequence[str],
    *,
    problem_ids: Sequence[str] | None = None,
    draws: int = RANKING_DRAWS,
    seed: int = PROBE_SEED,
) -> pandas.DataFrame:
    """All heads by how far a measure differs between two conditions, `condition` minus `baseline`.

    Args:
        traces: Where from.
        measure: A name of `definitions.MEASURES`.
        baseline: The condition that is subtracted, usually another filler; or several, whose mean is.
        condition: The condition that it is subtracted from, or several. With several on either side the string is the
            unit, else the prompt.
        problem_ids: Which prompts. By default all that were traced under all conditions, without controls.
        draws: How many sign flips or permutations are drawn. If there are no more than that, all are taken.
        seed: Of these.

    Returns:
        One row per head, the most different first: rank, layer and head (from 0), label (from 1), n (units), the mean
        difference, its standard error, t, p_adjusted, and `guaranteed`. The last is true if one of the two sides
        has no filler and the measure is one of GUARANTEED. The contrast is no finding then: t and p_adjusted are
        missing, and heads are ordered by the size of the mean difference. p_adjusted is also missing where a side is
        one string, the same in all prompts. `attrs` has the number of heads and flips,
        whether the flips are all there are (`exact`), and a note for readers.

    Raises:
        ConfigError: there is no such measure, it was not recorded, no prompt has all conditions, or fewer than two.
    """
    old, new = ((one,) if isinstance(one, str) else tuple(one) for one in (baseline, condition))
    if measure not in MEASURES:
        raise ConfigError(f"there is no measure {measure!r}. Choose one of {', '.join(MEASURES)}.")
    if both := [name for name in new if name in old]:
        raise ConfigError(f"{both[0]} cannot be contrasted with itself. Choose two conditions.")
    chosen = list(chosen_problems(traces, (*old, *new)) if problem_ids is None else problem_ids)
    if len(chosen) < 2:
        raise ConfigError(f"{len(chosen)} prompt cannot rank heads: the prompt is the unit. Probe at least two.")
    lone = any(has_one_filler(traces, one, other) for one in new for other in old)
    if lone and measure.startswith(FILLER_ONLY):
        filled = {entry.condition for entry in traces.entries() if entry.filler_span}
        bare = next(name for name in (*old, *new) if name not in filled)
        raise ConfigError(
            f"{measure} means nothing without a filler, and {bare} has none. "
            f"Contrast two of {', '.join(name for name in traces.conditions if name in filled)}."
        )
    guaranteed = lone and measure in GUARANTEED
    # [string, prompt, head]
    without, with_it = (np.stack([_flat(traces, measure, name, chosen) for name in names]) for names in (old, new))
    if not np.isfinite(with_it.mean(axis=0) - without.mean(axis=0)).any():
        raise ConfigError(
            f"{measure} has no value in any prompt under {' and '.join((*new, *old))}: without a filler it means "
            "nothing. Contrast conditions that have one."
        )
    if max(len(old), len(new)) > 1:
        found = _by_string(without, with_it, draws, seed)
    else:
        one_string = any(_is_one_string(traces, name, chosen) for name in (*old, *new))
        found = _by_prompt(without, with_it, 0 if one_string else draws, seed)
    header = traces.header
    frame = pandas.MultiIndex.from_product([header.layers, range(header.head_count)]).to_frame(False, ["layer", "head"])
    frame["label"] = [f"Layer {layer + 1} Head {head + 1}" for layer, head in frame.itertuples(index=False)]
    frame["n"] = found.n
    frame["mean_difference"] = found.mean
    frame["standard_error"] = found.error
    frame["t"] = np.nan if guaranteed else found.t
    frame["p_adjusted"] = np.nan if guaranteed else found.p
    frame["guaranteed"] = guaranteed
    size = "mean_difference" if guaranteed else "t"
    frame = frame.sort_values(size, key=np.abs, ascending=False, kind="stable", ignore_index=True)
    frame.insert(0, "rank", range(1, len(frame) + 1))
    note = found.note
    if guaranteed:
        note = (
            f"{measure} of {','.join(new)} against {','.join(old)} is no finding: one of the two has no filler, and "
            "softmax and the shift of positions change it whatever is inserted. Contrast two fillers."
        )
    frame.attrs = {
        "heads": len(frame),
        "found": int((frame["p_adjusted"] < HEADS_ALPHA).sum()),
        "flips": 0 if guaranteed else found.flips,
        "exact": found.exact,
        "note": "; ".join([note, *header.stamps]),
    }
    return frame


def _flat(traces: AttentionTraces, measure: str, condition: str, chosen: Sequence[str]) -> NDArray[np.float64]:
    """[prompt, head] values of a measure, the heads of all layers one after the other."""
    return traces.measure(measure, condition, chosen)[1].reshape(len(chosen), -1).astype(np.float64)


def _is_one_string(traces: AttentionTraces, condition: str, chosen: Sequence[str]) -> bool:
    """Whether a condition has the same filler in most prompts: at its ends a tokenizer may merge other tokens."""
    if not any(entry.filler_span for entry in traces.entries() if entry.condition == condition):
        return False
    records = (traces.get(problem_id, condition) for problem_id in chosen)
    fillers = Counter(trace.token_ids[slice(*(trace.filler_span or (0, 0)))].tobytes() for trace in records)
    return 2 * fillers.most_common(1)[0][1] > len(chosen)


class _Contrast(NamedTuple):
    """A contrast of each head [head]; n is the number of units."""

    n: NDArray[Any]
    mean: NDArray[np.float64]
    error: NDArray[np.float64]
    t: NDArray[np.float64]
    p: NDArray[np.float64]
    flips: int
    exact: bool
    note: str


def _by_prompt(without: NDArray[np.float64], with_it: NDArray[np.float64], draws: int, seed: int) -> _Contrast:
    """One condition against one, paired by prompt; with no draws, no p."""
    differences = with_it[0] - without[0]
    table = pandas.DataFrame(differences)
    count, exact = _flip_count(len(differences), draws) if draws else (0, False)
    if draws:
        p = max_t(differences, draws=draws, seed=seed)
        how = f"{'all ' if exact else ''}{count} sign flips; p adjusted for all heads (max-T)"
        if exact and 1 / count > HEADS_ALPHA:
            how += f"; no p below {1 / count:.2g} is possible, probe at least 6"
    else:
        p = np.full(differences.shape[1], np.nan)
        how = "ordered by t, no p: one string says nothing about others like it, name several"
    note = f"{len(differences)} prompts, {how}"
    return _Contrast(
        n=table.count().to_numpy(),
        mean=table.mean().to_numpy(),
        error=table.sem().to_numpy(),
        t=t_values(differences),
        p=p,
        flips=count,
        exact=exact,
        note=note,
    )


def _by_string(without: NDArray[np.float64], with_it: NDArray[np.float64], draws: int, seed: int) -> _Contrast:
    """Several strings against several: each the mean of the same prompts."""
    prompts = without.shape[1]
    without, with_it = (np.nanmean(side, axis=1) for side in (without, with_it))
    t, p, count, exact = permute_labels(without, with_it, draws=draws, seed=seed)
    note = (
        f"{len(with_it)} strings against {len(without)}, each the mean of {prompts} prompts, {'all ' if exact else ''}"
        f"{count} permutations of their labels; p adjusted for all heads (max-T)"
    )
    least = (1 + (len(without) == len(with_it))) / count  # the mirrored labels have the same |t|
    if exact and least > HEADS_ALPHA:
        note += f"; no p below {least:.2g} is possible, name more strings"
    difference = with_it.mean(axis=0) - without.mean(axis=0)
    return _Contrast(
        n=np.full(len(difference), len(with_it) + len(without)),
        mean=difference,
        error=_pooled_error(without, with_it),
        t=t,
        p=p,
        flips=count,
        exact=exact,
        note=note,
    )


def permute_labels(
    without: NDArray[np.float64], with_it: NDArray[np.float64], *, draws: int = RANKING_DRAWS, seed: int = PROBE_SEED
) -> tuple[NDArray[np.float64], NDArray[np.float64], int, bool]:
    """Two-sample t of each head, its p adjusted for all heads, and how many permutations there were, and whether all.

    If it made no difference which strings are called what, every way to call as many of them so would be as likely.

    Args:
        without: [string, head] Of one side.
        with_it: [string, head] Of the other.
        draws: How many permutations are drawn. If there are no more than that, all are taken, and p is exact.
        seed: Of these.
    """
    values, size = np.concatenate([with_it, without]), len(with_it)
    observed = _two_sample_t(values, range(size))
    count = math.comb(len(values), size)
    exact = count <= draws
    random = np.random.default_rng(seed)
    splits: Iterable[Sequence[int]] = (
        itertools.combinations(range(len(values)), size)
        if exact
        else (random.permutation(len(values))[:size].tolist() for _ in range(draws))
    )
    beaten = np.zeros(values.shape[1], dtype=np.int64)
    for split in splits:
        beaten += np.abs(_two_sample_t(values, split)).max() >= np.abs(observed) * (1 - TIE)
    return observed, beaten / count if exact else (1 + beaten) / (1 + draws), count if exact else draws, exact


def _two_sample_t(values: NDArray[np.float64], chosen: Iterable[int]) -> NDArray[np.float64]:
    """[head] t of the chosen strings against the rest; infinite where neither side scatters, 0 where all are equal."""
    mask = np.zeros(len(values), dtype=bool)
    mask[list(chosen)] = True
    one, other = values[mask], values[~mask]
    difference, error = one.mean(axis=0) - other.mean(axis=0), _pooled_error(other, one)
    size = np.abs(values).max(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(error > TIE * size, difference / error, np.sign(difference) * np.inf)
    return np.where(np.abs(difference) > TIE * size, t, 0.0)


def _pooled_error(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """[head] Standard error of the difference of two means, the scatter taken for the same on both sides."""
    squares = sum(np.square(side - side.mean(axis=0)).sum(axis=0) for side in (one, other))
    freedom = max(len(one) + len(other) - 2, 1)
    return np.asarray(np.sqrt(squares / freedom * (1 / len(one) + 1 / len(other))))


def t_values(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """One-sample t of each column [head] of a [prompt, head] array, NaN left out.

    Infinite where all differences are the same, 0 where all are 0 or fewer than two are there.
    """
    there = np.nan_to_num(differences)
    return _t(there.sum(axis=0), np.square(there).sum(axis=0), np.isfinite(differences).sum(axis=0))


def max_t(
    differences: NDArray[np.float64], *, draws: int = RANKING_DRAWS, seed: int = PROBE_SEED
) -> NDArray[np.float64]:
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
        beaten += (largest[:, None] >= observed * (1 - TIE)).sum(axis=0)
    # among all flips is the one that flips nothing; among drawn ones it is counted once more
    return beaten / count if exact else (1 + beaten) / (1 + count)


def _t(total: NDArray[np.float64], squares: NDArray[np.float64], n: NDArray[np.int64]) -> NDArray[np.float64]:
    """T from the sum and the sum of squares: the latter is the same under every flip."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.clip(np.nan_to_num(total / np.sqrt(n * squares)), -1.0, 1.0)  # with the constant vector
        rest = 1 - np.square(cosine)
        return np.where(
            rest > TIE, cosine * np.sqrt(np.maximum(n - 1, 0) / rest), np.where(n > 1, np.sign(cosine) * np.inf, 0.0)
        )


def _flip_count(size: int, draws: int) -> tuple[int, bool]:
    """How many flips, and whether these are all: a flip and its opposite have the same |t|, so half of them are."""
    exact = size <= 40 and 2 ** (size - 1) <= draws
    return (2 ** (size - 1) if exact else draws), exact


def _flips(size: int, count: int, exact: bool, seed: int) -> Iterator[NDArray[np.float64]]:
    random = np.random.default_rng(seed)
    for start in range(0, count, FLIPS_AT_ONCE):
        rows = min(FLIPS_AT_ONCE, count - start)
        if exact:  # the bits of the flip's number; the last prompt keeps its sign
            bits = (np.arange(start, start + rows)[:, None] >> np.arange(size)) & 1
        else:
            bits = random.integers(0, 2, size=(rows, size))
        yield np.where(bits, -1.0, 1.0)
