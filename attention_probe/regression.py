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


def predictor(features: NDArray[np.float64], *, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Out-of-fold prediction as a matrix: ridge regression is linear in the outcome, so that a permutation costs a row.

    Args:
        features: [problem, feature]; standardised anew within every training fold.
        seed: Of the division into folds.

    Returns:
        Two [repeat * problem, problem] matrices: of the regression, and of the training problems' mean.
    """
    random = np.random.default_rng(seed)
    size = len(features)
    ridge, mean = np.zeros((REPEATS, size, size)), np.zeros((REPEATS, size, size))
    for repeat in range(REPEATS):
        for test in np.array_split(random.permutation(size), min(FOLDS, size)):
            train = np.setdiff1d(np.arange(size), test)
            x = _standardise(features[train])
            new = _standardise(features[test], like=features[train])
            mean[repeat][np.ix_(test, train)] = 1 / len(train)
            weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T)
            ridge[repeat][np.ix_(test, train)] = 1 / len(train) + new @ weights
    return ridge.reshape(-1, size), mean.reshape(-1, size)


def out_of_fold_r2(
    matrices: tuple[NDArray[np.float64], NDArray[np.float64]], outcomes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """R2 of the columns of a [problem, outcome] array, against predicting the training problems' mean."""
    ridge, mean = matrices
    truth = np.tile(outcomes, (len(ridge) // len(outcomes), 1))
    wrong, reference = (np.square(truth - matrix @ outcomes).sum(axis=0) for matrix in (ridge, mean))
    return np.asarray(1 - wrong / reference)


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
    orders = np.column_stack(
        [np.arange(len(outcome)), *(random.permutation(len(outcome)) for _ in range(permutations))]
    )
    everything = predictor(np.column_stack(list(columns.values())), seed=seed)
    whole = _against_null(out_of_fold_r2(everything, outcome[orders]))
    known = [columns[name] for name in controls if name in columns]
    if not known:
        return whole, None, None
    alone = predictor(np.column_stack(known), seed=seed)
    controlled = _against_null(out_of_fold_r2(alone, outcome[orders]))
    if len(known) == len(columns):
        return whole, controlled, None
    # under the null of the gain the controls keep their effect: only what they leave is permuted
    design = np.column_stack([np.ones(len(outcome)), *known])
    expected = design @ np.linalg.lstsq(design, outcome, rcond=None)[0]
    drawn = expected[:, None] + (outcome - expected)[orders]
    return whole, controlled, _against_null(out_of_fold_r2(everything, drawn) - out_of_fold_r2(alone, drawn))


def _against_null(values: NDArray[np.float64]) -> Regression:
    """The first value is the observed one, all others are permutations'."""
    observed, null = float(values[0]), values[1:]
    p = (1 + int((null >= observed - 1e-12).sum())) / (1 + len(null))
    return Regression(r2=observed, p=p, r2_needed=float(np.quantile(null, 0.95)))


def _standardise(values: NDArray[np.float64], *, like: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Columns in standard deviations from the mean (of `like`); a constant column is 0."""
    like = values if like is None else like
    spread = like.std(axis=0)
    constant = spread <= 1e-12 * np.abs(like).max(axis=0)
    return np.asarray(np.where(constant, 0.0, (values - like.mean(axis=0)) / np.where(constant, 1.0, spread)))


def coefficients(columns: Mapping[str, NDArray[np.float64]], outcome: NDArray[np.float64]) -> dict[str, float]:
    """Change of the outcome a standard deviation of each feature, all problems fitted together."""
    x = _standardise(np.column_stack(list(columns.values())))
    fitted = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ outcome)
    return dict(zip(columns, fitted.tolist(), strict=True))
