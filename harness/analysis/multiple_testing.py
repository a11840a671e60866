"""Several tests at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def holm(p_values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Adjusted p-values [test]: calling those below alpha real errs anywhere with probability at most alpha.

    Holds however the tests depend on each other, as they do where all compare with one baseline. NaN stays NaN and
    does not count as a test.

    Source:
        Holm (1979), Scandinavian Journal of Statistics 6:65-70, https://www.jstor.org/stable/4615733.
    """
    p = np.asarray(p_values, dtype=float)
    adjusted = np.full(p.shape, np.nan)
    order = np.argsort(p, kind="stable")  # NaN goes last
    order = order[: len(p) - int(np.isnan(p).sum())]
    steps = np.arange(len(order), 0, -1) * p[order]
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted
