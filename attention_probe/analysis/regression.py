"""Cross-validated ridge regression with a permutation null.

What is fitted on nine tenths of the problems is judged on the last tenth, so that a fit to noise scores 0 or less; and
the whole is repeated with the outcomes permuted among the problems, which says what chance alone scores.

Source: Freedman and Lane, 1983 (the permutation of residuals for the gain over the controls); Phipson and Smyth, 2010
(p = (1 + as good) / (1 + permutations)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERMUTATIONS, SEED, FOLDS, REPEATS, RIDGE = 2000, 1234, 10, 5, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """How well some features predict an outcome on problems that they were not fitted to.

    Attributes:
        r2: Out-of-fold R2: 1 is perfect, 0 no better than the other problems' mean, below 0 worse.
        p: Share of the permutations that do as well, the observed one counted in.
        r2_needed: The R2 that only 5 % of the permutations exceed.
    """

    r2: float
    p: float
    r2_needed: float


def out_of_fold_r2(features: NDArray[np.float64], outcomes: NDArray[np.float64], *, seed: int) -> NDArray[np.float64]:
    """R2 of ridge regressions on problems that they were not fitted to, against the training problems' mean.

    Args:
        features: [problem, feature]; standardised anew within every training fold.
        outcomes: [problem, outcome]; every column is regressed by itself, over the same folds.
        seed: Of the division into folds, which is done anew for every repeat.

    Returns:
        [outcome], squared errors added up over folds and repeats.
    """
    random = np.random.default_rng(seed)
    size = len(features)
    wrong, reference = np.zeros((2, outcomes.shape[1]))
    for _ in range(REPEATS):
        for test in np.array_split(random.permutation(size), min(FOLDS, size)):
            train = np.ones(size, dtype=bool)
            train[test] = False
            x, mean = _standardise(features, train), outcomes[train].mean(axis=0)
            rest = outcomes[test] - mean
            wrong += np.square(rest - x[test] @ _slopes(x[train], outcomes[train])).sum(axis=0)
            reference += np.square(rest).sum(axis=0)
    return 1 - wrong / reference


def regress(
    columns: Mapping[str, NDArray[np.float64]],
    outcome: NDArray[np.float64],
    *,
    controls: Sequence[str],
    permutations: int = PERMUTATIONS,
    seed: int = SEED,
) -> tuple[Regression, Regression | None, Regression | None]:
    """The regression on all features, on the controls alone, and what the other features add to these.

    Args:
        columns: Name to [problem] values.
        outcome: [problem].
        controls: Which of the columns may explain the outcome without being of interest.
        permutations: Of the outcome.
        seed: Of folds and permutations.

    Returns:
        Three regressions; the second is missing without controls, the third without controls or other features. The
        last one's `r2` is a difference of two.
    """
    random = np.random.default_rng(seed)
    size = len(outcome)
    orders = np.column_stack([np.arange(size), *(random.permutation(size) for _ in range(permutations))])
    everything = np.column_stack(list(columns.values()))
    whole = _against_null(out_of_fold_r2(everything, outcome[orders], seed=seed))
    known = [columns[name] for name in controls if name in columns]
    if not known:
        return whole, None, None
    alone = np.column_stack(known)
    controlled = _against_null(out_of_fold_r2(alone, outcome[orders], seed=seed))
    if len(known) == len(columns):
        return whole, controlled, None
    # under the null of the gain the controls keep their effect: only what they leave is permuted
    design = np.column_stack([np.ones(size), alone])
    expected = design @ np.linalg.lstsq(design, outcome, rcond=None)[0]
    drawn = expected[:, None] + (outcome - expected)[orders]
    more, less = (out_of_fold_r2(features, drawn, seed=seed) for features in (everything, alone))
    return whole, controlled, _against_null(more - less)


def _slopes(x: NDArray[np.float64], outcomes: NDArray[np.float64]) -> NDArray[np.float64]:
    """[feature, outcome] ridge coefficients; the columns of x are centred."""
    return np.asarray(np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ outcomes), dtype=np.float64)


def _against_null(values: NDArray[np.float64]) -> Regression:
    """The first value is the observed one, all others are permutations'."""
    observed, null = float(values[0]), values[1:]
    p = (1 + int((null >= observed - 1e-12).sum())) / (1 + len(null))
    return Regression(r2=observed, p=p, r2_needed=float(np.quantile(null, 0.95)))


def _standardise(values: NDArray[np.float64], train: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Columns in the training problems' standard deviations from their mean; 0 where these are all the same."""
    mean, spread = values[train].mean(axis=0), values[train].std(axis=0)
    constant = spread <= 1e-12 * np.abs(mean)
    return np.where(constant, 0.0, (values - mean) / np.where(constant, 1.0, spread))


def coefficients(columns: Mapping[str, NDArray[np.float64]], outcome: NDArray[np.float64]) -> dict[str, float]:
    """Change of the outcome a standard deviation of each feature, all problems fitted together."""
    features = np.column_stack(list(columns.values()))
    slopes = _slopes(_standardise(features, np.ones(len(outcome), dtype=bool)), outcome[:, None])
    return dict(zip(columns, slopes[:, 0].tolist(), strict=True))
