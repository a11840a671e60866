"""The numbers of committed logs of harnesses, computed from the files without mless."""

import json

import numpy as np
import pytest
from scipy.stats import binomtest

from tests.conftest import succeeded
from tests.make import ROOT, find_log

LOGS = ROOT / "tests/data/harness_logs"


def read_lm_eval(path, metric):
    rows = map(json.loads, path.read_text().splitlines())
    return {row["doc_id"]: [row[metric]] for row in rows}


def compute_row(old, new):
    """Means, difference and flips of two conditions by problem, and McNemar's exact p.

    statsmodels' mcnemar(table, exact=True) is the same binomial test.
    """
    before, after = (
        np.array([scores[item] for item in sorted(old)], float) for scores in (old, new)
    )
    gains = (1 - before).mean(1) @ after.mean(1)
    losses = before.mean(1) @ (1 - after).mean(1)
    p = binomtest(round(gains), round(gains + losses)).pvalue
    means = 100 * before.mean(), 100 * after.mean()
    return [*means, means[1] - means[0], gains, losses, p]


PAIRS = [
    (read_lm_eval, "accuracy", [find_log("wo"), find_log("mful")]),
    (read_lm_eval, "exact_match", sorted(LOGS.glob("lm_eval/samples_*"), reverse=True)),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].__name__} {pair[1]:.20}")
def test_means_differences_flips_and_p_of_a_pair_of_logs(pair, command):
    read, metric, paths = pair
    options = ["--format", "json"]
    wo, row = json.loads(succeeded(command("compare", *paths, *options)).stdout)["rows"]
    names = ("accuracy", "difference", "wrong_to_right", "right_to_wrong", "p")
    numbers = [wo["accuracy"], *(row[name] for name in names)]
    assert numbers == pytest.approx(compute_row(*(read(path, metric) for path in paths)))
    assert row["wrong_to_right"] and row["right_to_wrong"]
