"""How far a condition stands out from harmless edits of the prompt."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def prompt_null_p(difference: float, null_differences: npt.ArrayLike) -> float:
    """Rank p-value of a condition's difference among those of M harmless edits [edit], all against one baseline.

    p = (1 + edits at least as far from zero) / (1 + M): with M edits no p-value is below 1 / (1 + M). It asks whether
    the condition does more than any edit that keeps the meaning would, which a difference from one baseline cannot
    tell. NaN without edits.

    Source:
        Monte Carlo test: Davison and Hinkley (1997), Bootstrap Methods and their Application, section 4.2; Phipson
        and Smyth (2010), doi:10.2202/1544-6115.1585. Why prompts need it: Sclar et al. (2024), arXiv:2310.11324.
    """
    others = np.abs(np.asarray(null_differences, dtype=float))
    if not len(others):
        return math.nan
    # sums of the same samples in another order may differ in the last bit
    far = others >= abs(difference) * (1 - 1e-9)
    return (1 + int(far.sum())) / (1 + len(others))
