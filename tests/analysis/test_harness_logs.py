"""The numbers of committed logs of harnesses, computed from the files without mless."""

import json
import sys
from collections import defaultdict

import numpy as np
import pandas
import pytest
from scipy.stats import binomtest, permutation_test

from tests.conftest import succeeded
from tests.make import ROOT, find_log

LOGS = ROOT / "tests/data/harness_logs"


def read_lm_eval(path, metric):
    rows = map(json.loads, path.read_text().splitlines())
    return {row["doc_id"]: [row[metric]] for row in rows}


def read_lighteval(path, metric):
    frame = pandas.read_parquet(path)
    pairs = zip(frame["doc"], frame["metric"], strict=True)
    return {doc["id"]: [scores[metric]] for doc, scores in pairs}


def read_inspect(path, scorer):
    import zipfile_zstd  # zipfile itself reads Zstandard since Python 3.14

    if path.suffix == ".json":
        samples = json.loads(path.read_text())["samples"]
    else:
        with zipfile_zstd.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.startswith("samples/")]
            samples = [json.loads(archive.read(name)) for name in names]
    scores = defaultdict(list)
    for sample in samples:
        scores[sample["id"]].append(sample["scores"][scorer]["value"] == "C")
    return scores


def compute_row(old, new):
    """Means, difference and flips of two conditions by problem, and p.

    With one sample p is McNemar's exact p, else that of all sign flips of the differences.
    """
    before, after = (
        np.array([scores[item] for item in sorted(old)], float) for scores in (old, new)
    )
    gains = (1 - before).mean(1) @ after.mean(1)
    losses = before.mean(1) @ (1 - after).mean(1)
    if before.shape[1] == 1:
        p = binomtest(round(gains), round(gains + losses)).pvalue
    else:
        changes = (after - before).mean(1)
        p = permutation_test(
            [changes[changes != 0]], np.sum, permutation_type="samples", n_resamples=np.inf
        ).pvalue
    means = before.mean(), after.mean()
    return [100 * means[0], 100 * means[1], 100 * (means[1] - means[0]), gains, losses, p]


EM = "em:strip_strings=True&type_exact_match=suffix"
PAIRS = [
    (read_lm_eval, "accuracy", [find_log("wo"), find_log("mful")]),
    (read_lm_eval, "exact_match", sorted(LOGS.glob("lm_eval/samples_*"), reverse=True)),
    (read_lighteval, EM, sorted(LOGS.glob("lighteval/details_*"), reverse=True)),
    (read_inspect, "match", [LOGS / "inspect/wo.eval", LOGS / "inspect/slashes.eval"]),
    (read_inspect, "includes", [LOGS / "inspect/wo.eval", LOGS / "inspect/slashes.json"]),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_means_differences_flips_and_p_of_a_pair_of_logs(pair, command, monkeypatch):
    read, metric, paths = pair
    if read is read_inspect:
        # where `make test-long` installs it
        monkeypatch.syspath_prepend(f"{sys.prefix}/inspect")
        pytest.importorskip("inspect_ai.log")
    process = command("compare", *paths, "--format", "json", "--metric", metric)
    wo, row = json.loads(succeeded(process).stdout)["rows"]
    names = ("accuracy", "difference", "wrong_to_right", "right_to_wrong", "p")
    numbers = [wo["accuracy"], *(row[name] for name in names)]
    assert numbers == pytest.approx(compute_row(*(read(path, metric) for path in paths)))
    assert row["wrong_to_right"] and row["right_to_wrong"]
