"""Numbers of the tables again, from raw journals and logs, without the readers of the package."""

import json
import random
import sys
from collections import defaultdict

import numpy as np
import pandas
import pytest
from scipy import stats

from harness.analysis.paired_tests import sign_flip_test
from tests.conftest import succeeded
from tests.make import GREEDY_RUN, REGISTERED, ROOT, read_lines, table_data, with_cases, write_run


def read_correct(folder):
    """The samples with whether they are correct, and the first line of the journal."""
    header, *records = read_lines(folder / "journal.jsonl")
    verdicts = {score["key"]: score["verdict"] for score in read_lines(folder / "scores.jsonl")[1:]}
    samples = pandas.DataFrame([record for record in records if "task" in record])
    samples["correct"] = samples["key"].map(verdicts) == "correct"
    samples["condition"] = samples["task"].str.removeprefix("demo_")
    return samples, header


def compare_counts(old, new, k):
    """What the table says of two conditions, from the number of correct samples by problem."""
    return {
        "difference": 100 * (new - old).mean() / k,
        "wrong_to_right": ((k - old) * new).sum() / k**2,
        "right_to_wrong": (old * (k - new)).sum() / k**2,
        "p": sign_flip_test(new - old),
    }


@pytest.fixture(params=[1, 5])
def folder(request, tmp_path):
    """A greedy run of the toy model, and one of five samples a problem, right by chance."""
    if request.param == 1:
        return GREEDY_RUN
    rng = random.Random(3)

    def answer(_, target):
        return f"\\boxed{{{target if rng.random() < 0.8 else -1234}}}", "stop"

    conditions = "wo mless mful random".split()
    sampling = {"repeats": 5, "gen_kwargs": {"temperature": 0.5}, "replicates": 2, **REGISTERED}
    return write_run(tmp_path / "run", answer, limit=200, conditions=conditions, **sampling)


def test_the_table_follows_from_the_raw_files(folder):
    samples, header = read_correct(folder)
    table = table_data(folder)
    rows = {row["condition"]: row for row in table["rows"]}
    k = samples["sample_index"].max() + 1
    first = samples[samples["replicate"] == 0]
    correct = first.groupby(["condition", "problem_id"])["correct"].sum()
    for new, base in header["contrasts"]:
        row = rows[new if base == "wo" else f"{new} - {base}"]
        expected = compare_counts(correct[base], correct[new], k)
        numbers = {key: row[key] for key in expected}
        assert numbers == pytest.approx(expected, rel=1e-7, abs=1e-7)
    for name, row in rows.items():
        shares = 100 * correct[name.partition(" - ")[0]] / k
        assert (row["problems"], row["repeats"]) == (len(shares), k)
        assert row["accuracy"] == pytest.approx(shares.mean())
    if set(samples["replicate"]) == {0, 1}:
        check_repeat_run(samples, rows[header["primary"][0]], k)


def check_repeat_run(samples, row, k):
    """The A/A columns of the primary contrast, from the samples of both replicates."""
    replicates = [samples[samples["replicate"] == replicate] for replicate in (0, 1)]
    pairs = replicates[0].merge(replicates[1], on=["condition", "problem_id", "sample_index"])
    pairs["change"] = pairs["correct_y"].astype(int) - pairs["correct_x"].astype(int)
    changes = pairs.groupby("condition")["change"].sum()
    problems = pairs["problem_id"].nunique()
    difference = 100 * (changes[row["condition"]] - changes["wo"]) / problems / k
    assert row["aa_difference"] == pytest.approx(difference)
    assert row["aa_samples"] == len(pairs)
    assert row["aa_changed"] == (pairs["completion_x"] != pairs["completion_y"]).sum()


def test_the_range_of_other_texts_follows_from_the_committed_files():
    folder = ROOT / "results/example"
    journal = pandas.read_json(folder / "journal.jsonl.xz", lines=True).query("replicate == 0")
    samples = journal.merge(pandas.read_json(folder / "scores.jsonl.xz", lines=True), on="key")
    names = samples["task"].str.split("_").str[1]
    accuracies = 100 * (samples["verdict"] == "correct").groupby(names).mean()
    effects = accuracies.filter(like="sentence-") - accuracies["wo"]
    error = effects.std() * (1 + 1 / len(effects)) ** 0.5
    ends = stats.t.interval(0.95, len(effects) - 1, effects.mean(), error)
    row = json.loads((folder / "table.json").read_text())["texts"][0]
    assert (row["range_low"], row["range_high"]) == pytest.approx(ends)


LOGS = ROOT / "tests/data/harness_logs"


def read_lm_eval(path, metric):
    return {row["doc_id"]: [row[metric]] for row in read_lines(path)}


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
    old_table, new_table = tables
    expected = compare_counts(old_table.sum(1), new_table.sum(1), old_table.shape[1])
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    accuracies = [100 * table.mean() for table in tables]
    assert [wo["accuracy"], row["accuracy"]] == pytest.approx(accuracies)
    assert row["wrong_to_right"] and row["right_to_wrong"]
