"""The numbers of committed logs of harnesses, computed from the files without mless."""

import json
import sys
from collections import defaultdict

import numpy as np
import pandas
import pytest

from tests.analysis.test_recomputed import compare_counts
from tests.conftest import succeeded
from tests.make import ROOT, with_cases

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


READERS = {"lm-eval": read_lm_eval, "lighteval": read_lighteval, "Inspect": read_inspect}


@with_cases
def test_means_differences_flips_and_p_of_a_pair_of_logs(
    harness, metric, names, command, monkeypatch
):
    read, paths = READERS[harness], [LOGS / name for name in names]
    if read is read_inspect:
        # where `make test-long` installs it
        monkeypatch.syspath_prepend(f"{sys.prefix}/inspect")
        pytest.importorskip("inspect_ai.log")
    process = command("compare", *paths, "--format", "json", "--metric", metric)
    wo, row = json.loads(succeeded(process).stdout)["rows"]
    scores = [read(path, metric) for path in paths]
    # [problem, sample]
    tables = [np.array([of_log[item] for item in sorted(scores[0])], int) for of_log in scores]
    expected = compare_counts(*(table.sum(1) for table in tables), tables[0].shape[1])
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    accuracies = [100 * table.mean() for table in tables]
    assert [wo["accuracy"], row["accuracy"]] == pytest.approx(accuracies)
    assert row["wrong_to_right"] and row["right_to_wrong"]
