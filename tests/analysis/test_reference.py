import json
import math

import numpy as np
import pandas
import pytest

from harness import resources
from harness.analysis.leaderboard import make_leaderboard
from harness.analysis.reference import REFERENCE_COLUMNS, read_reference, reference_table, setup_differences
from harness.errors import ConfigError
from harness.runs.same_settings import join
from tests.make import GREEDY_RUN, evaluation, table_page

SHIPPED = sorted(file.stem for file in (resources.folder("results") / "reference").glob("*.yaml"))


def verdicts(right, n=500):
    """Five samples a problem, so many of `n` right in all. A hundred problems, or fewer, are undecided."""
    half = min(50, right)
    undecided = np.random.default_rng(right).permutation(10 * half) < 5 * half
    words = np.where(undecided, "correct", "incorrect").reshape(-1, 5).tolist()
    return [["correct"] * 5] * (right - half) + words + [["incorrect"] * 5] * (n - right - half)


def beside(reference, *models, **facts):
    """The reference beside models with accuracies {condition: right of 500}."""
    ours = [evaluation({c: verdicts(r) for c, r in arms.items()}, model=name, **facts) for name, arms in models]
    made = make_leaderboard(ours)
    return reference_table(made.comparison, made.side_tables["audit"], reference, join(ours), receipts=made.receipt)


def board(*models, **facts):
    return make_leaderboard([evaluation({c: verdicts(r) for c, r in a.items()}, model=m, **facts) for m, a in models])


@pytest.mark.parametrize("name", SHIPPED)
def test_every_table_has_its_source(name):
    reference = read_reference(name)
    assert "arXiv 2510.01032" in reference.source and reference.dataset == "math500"
    assert reference.uncertainty == (0.05 if reference.exact else 1)


def sampling_error(right, k=5):
    """Standard error of an accuracy from drawing the samples alone, by hand."""
    share = np.array(right) / k
    return math.sqrt((share * (1 - share) / (k - 1)).sum()) / len(share)


def test_ours_agrees_where_theirs_lies_within_what_the_dice_do():
    reference = read_reference("study-table-1")
    found = beside(reference, ("qwen2.5-math-7b", {"wo": 360, "mless": 362}), ("Qwen2.5-32B-Instruct", {"wo": 300}))
    assert list(found.columns) == list(REFERENCE_COLUMNS)
    rows = found.set_index(["model", "condition"])
    near, far = rows.loc[("Qwen2.5-Math-7B", "wo")], rows.loc[("Qwen2.5-32B-Instruct", "wo")]
    assert (near["accuracy"], near["reference"], near["agrees"], far["agrees"]) == (72.0, 72.3, True, False)
    dice = sampling_error([sum(word == "correct" for word in one) for one in verdicts(360)])
    assert (near["low"], near["high"]) == pytest.approx((72 - 196 * dice * 2**0.5, 72 + 196 * dice * 2**0.5), abs=1e-3)
    assert near["authors_rule"] == 72.0
    change = rows.loc[("Qwen2.5-Math-7B", "mless")]
    assert change["reference_difference"] == pytest.approx(2.3) and change["difference"] == pytest.approx(0.4)
    assert not change["difference_agrees"] and change["difference_high"] < 2.3
    assert rows.loc[("Qwen2.5-32B-Instruct", "mless"), "agrees"] is pandas.NA, "we have not run it"
    assert set(found["model"]) == {"Qwen2.5-Math-7B", "Qwen2.5-32B-Instruct"}, "no other model is shown"


def test_numbers_that_were_read_off_get_their_reading_error():
    reference = read_reference("seed-bar-chart")
    ours = ("Llama-3.1-8B-Instruct", {"wo": 233})
    (row,) = beside(reference, ours)[lambda t: t["condition"] == "wo"].to_dict("records")
    assert row["low"] - 1 < row["reference"] < row["low"] and row["agrees"]
    exact = reference.model_copy(update={"uncertainty": 0.0})
    assert beside(exact, ours)["agrees"].dropna().tolist() == [False]


def test_one_sample_a_problem_says_nothing_of_the_dice():
    ours = evaluation({"wo": [["correct"], ["incorrect"]]}, model="Qwen2.5-Math-7B")
    made = make_leaderboard([ours])
    reference = read_reference("study-table-1")
    found = reference_table(made.comparison, made.side_tables["audit"], reference, ours.samples, receipts=made.receipt)
    assert found["accuracy"].notna().sum() == 1 and found[["agrees", "low", "high"]].isna().all().all()


def test_a_model_that_is_not_in_the_reference_agrees_with_nothing():
    reference = read_reference("study-table-3a")
    found = beside(reference, ("mine", {"wo": 250, "mless": 250}))
    assert len(found) == 6 and found["accuracy"].isna().all() and found["agrees"].isna().all()


def test_numbers_on_another_dataset_neither_agree_nor_differ():
    reference = read_reference("study-table-1")
    ours = ("Qwen2.5-Math-7B", {"wo": 360, "mless": 362})
    for name, judged in (("math500", True), (None, True), ("demo", False)):
        found = beside(reference, ours, dataset_name=name).set_index("condition")
        assert found["accuracy"].notna().all() and found["agrees"].notna().all() == judged
        assert found["difference_agrees"].notna().tolist() == [False, judged]


def test_what_differs_in_the_set_up_is_said():
    reference = read_reference("study-table-1")
    made = board(("mine", {"wo": 1}), dataset_name="demo", sampling={"temperature": 0.7, "top_p": 0.95}, greedy=False)
    model, dataset, sampling, prompt, grader = setup_differences(reference, made.receipt, ["raw", "raw"])
    assert model.startswith("Model: mine is not in the reference")
    assert dataset == "Dataset: theirs is math500; ours demo."
    assert sampling.endswith("mean of 5 runs; ours temperature 0.7, top_p 0.95.")
    assert prompt == "Prompt: theirs is as_published; ours raw."
    assert grader.startswith("Grader: theirs is ")
    same = board(("Qwen2.5-Math-7B", {"wo": 1}), dataset_name="math500")
    said = setup_differences(reference, same.receipt, ["as_published"])
    assert [line.split(":")[0] for line in said] == ["Sampling", "Grader"], "what cannot be settled is stated"


def test_the_command_shows_them_in_every_format():
    text = table_page(GREEDY_RUN, reference="study-table-1")
    assert "Reference: Table 1 of Shi et al. (2025)" in text and "mless-demo is not in the reference" in text
    data = json.loads(table_page(GREEDY_RUN, form="json", reference="study-table-1"))["reference"]
    assert data["name"] == "study-table-1" and data["setup"]["layout"] == "as_published"
    assert (
        len(data["rows"]) == 12 and list(data["rows"][0]) == list(REFERENCE_COLUMNS) and len(data["differences"]) == 5
    )
    assert table_page(GREEDY_RUN, form="csv", reference="study-table-1").startswith(
        '"model","layout","condition","accuracy",'
    )


def test_bad_references_are_refused(tmp_path):
    for name in ("table-9", str(tmp_path)):
        with pytest.raises(ConfigError, match=f"Reference '{name}': .* one of seed-bar-chart, st"):
            read_reference(name)
    with pytest.raises(ConfigError, match="--reference has numbers over all problems: expected no --by beside it"):
        table_page(GREEDY_RUN, by=["level"], reference="study-table-1")
    whole = (resources.folder("results") / "reference" / "study-table-1.yaml").read_text()
    for change, message in (
        (whole.replace("uncertainty", "sigma"), "unknown key 'sigma'"),
        (whole.replace("{wo: 63.9,", "{wo: many,"), "accuracies.0.conditions.wo: "),
        (whole.replace("source:", "source: ]"), "is not valid YAML"),
    ):
        path = tmp_path / "r.yaml"
        path.write_text(change)
        with pytest.raises(ConfigError, match=message):
            read_reference(str(path))
