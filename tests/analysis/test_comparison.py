from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from harness import compare
from harness.analysis import estimate_difference, score_interval
from harness.analysis.baseline_comparison import COMPARISON_COLUMNS
from harness.analysis.result_tables import make_leaderboard
from harness.analysis.verdicts import judge
from harness.display.comparison_tables import make_comparison_table
from harness.display.table_page import table_csv
from harness.errors import ComparisonError
from tests.make import CONTROL, compare_rows, drawn, evaluation, with_cases

POINTS = "difference low high equivalence_low equivalence_high".split()
COLUMNS = "model layout condition replicate problem_id sample_index correct".split()


def samples(**correct):
    """Samples of conditions, from arrays [problem] or [problem, sample] of what is correct."""
    verdicts = {
        condition: np.where(np.reshape(answers, (len(answers), -1)), "correct", "incorrect")
        for condition, answers in correct.items()
    }
    return evaluation(verdicts).samples[COLUMNS]


def draw_correct(seed, probability, *, problems=60, k=1):
    return np.random.default_rng(seed).random((problems, k)) < probability


@pytest.fixture
def run():
    return samples(
        wo=draw_correct(1, 0.5, k=4),
        mless=draw_correct(2, 0.9, k=4),
        mful=draw_correct(3, 0.5, k=4),
    )


@with_cases
def test_a_table_by_hand(counts, expected):
    """Of problems that are right under both conditions, under each alone, and under none."""
    correct = {"wo": np.repeat([1, 1, 0, 0], counts), "mless": np.repeat([1, 0, 1, 0], counts)}
    table = compare_rows(samples(**correct))
    baseline, row = table.loc["wo"], table.loc["mless"]
    assert (baseline["accuracy"], baseline["role"]) == (60, "baseline")
    columns = "difference p p_adjusted within_margin verdict".split()
    assert baseline[columns].isna().all()
    assert row[[*expected]].to_dict() == expected
    assert row["p"] == pytest.approx(0.0129, abs=5e-5)  # McNemar's exact test of 12 and 2
    assert 5 < row["low"] < 7 and 33 < row["high"] < 36  # near Tango's interval, [6.1, 34.5]


def test_intervals_are_of_accuracies_and_differences_by_problem(run):
    row = compare_rows(run).loc["mless"]
    correct = run.groupby(["condition", "problem_id"])["correct"].sum()
    estimate = estimate_difference(correct["mless"] - correct["wo"], 4)
    intervals = [
        *estimate.interval(),
        *estimate.interval(0.9),
        *score_interval(correct["mless"] / 4),
    ]
    columns = [*POINTS[1:], "accuracy_low", "accuracy_high"]
    assert row[columns].tolist() == pytest.approx([100 * end for end in intervals])


def test_problems_of_one_cluster_count_as_one_problem():
    correct = {"wo": draw_correct(1, 0.5), "mless": draw_correct(2, 0.8)}

    def compare_copies(count):
        """Each problem several times, all of them in one cluster."""
        frame = samples(**{name: np.repeat(rows, count, axis=0) for name, rows in correct.items()})
        number = frame["problem_id"].str[1:].astype(int)
        return compare_rows(frame.assign(cluster=number // count)).loc["mless"]

    single, triple = compare_copies(1), compare_copies(3)
    assert (single["problems"], triple["problems"]) == (60, 180)
    assert triple["p"] == single["p"]
    assert triple["wrong_to_right"] == 3 * single["wrong_to_right"]
    columns = ["accuracy", "accuracy_low", "accuracy_high", *POINTS]
    assert list(triple[columns]) == pytest.approx(list(single[columns]), rel=1e-9)
    unclustered = compare_rows(samples(**correct)).loc["mless"]
    assert list(unclustered[columns]) == list(single[columns])  # to the last digit


def test_an_accuracy_over_clusters_of_several_sizes_is_inside_its_interval():
    correct = draw_correct(5, 0.6, problems=90)[:, 0]
    cluster = np.repeat(np.arange(50), [1, 1, 1, 1, 5] * 10)
    row = compare(samples(wo=correct).assign(cluster=cluster)).iloc[0]
    assert 0 < row["accuracy_low"] < row["accuracy"] < row["accuracy_high"] < 100


def test_every_column_is_described_and_the_splits_come_after_the_layout(run):
    assert list(compare(run).columns) == list(COMPARISON_COLUMNS)
    levels = run.assign(level=run["problem_id"].str.len())
    table = compare(levels, by=["level"])
    assert list(table.columns)[:4] == "model layout level condition".split()
    assert table.groupby("level")["problems"].first().to_dict() == {2: 10, 3: 50}
    assert set(table["tests"].dropna()) == {4}


@with_cases
def test_the_verdict_follows_from_the_p_value_and_the_margin(p, difference, within_margin, verdict):
    row = {"p": p, "difference": difference, "within_margin": within_margin}
    (facts, *_) = table_rows([0.5])[2:]
    judge(rows := [facts | row], primary=None)
    assert rows[0]["verdict"] == verdict


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from([1, 3]), st.floats(0.1, 0.9))
@example(275, 3, 0.5)
def test_swapping_the_two_conditions_mirrors_the_row(seed, k, probability):
    frame = samples(wo=draw_correct(seed, probability, k=k), mless=draw_correct(seed + 1, 0.5, k=k))
    row = compare_rows(frame).loc["mless"]
    swapped = compare_rows(frame, baseline="mless").loc["wo"]
    mirrored = "difference high low equivalence_high equivalence_low".split()
    assert swapped[mirrored].to_list() == pytest.approx((-row[POINTS]).to_list(), abs=1e-9)
    assert swapped["wrong_to_right"] == pytest.approx(row["right_to_wrong"])
    assert swapped["p"] == row["p"]


def test_the_order_of_samples_does_not_matter(run):
    shuffled = compare_rows(run.sample(frac=1, random_state=1))
    table = compare_rows(run)
    pandas.testing.assert_frame_equal(shuffled.sort_index(), table.sort_index())


def test_other_models_change_a_row_only_through_holm(run):
    other_model = run.assign(model="n", correct=~run["correct"])
    alone = compare(run)
    together = compare(pandas.concat([run, other_model])).query("model == 'm'")
    columns = alone.columns.drop(["tests", "p_adjusted", "verdict"])
    pandas.testing.assert_frame_equal(together[columns], alone[columns])
    assert (set(alone["tests"].dropna()), set(together["tests"].dropna())) == ({2}, {4})


def test_the_other_contrasts_are_tested_only_if_the_primary_contrast_is_significant(run):
    contrasts = ["mless - wo", "mful - wo"]
    table = compare_rows(run, contrasts=contrasts, primary="mless - wo")
    assert table["primary"].dropna().to_dict() == {"mless": True, "mful": False}
    assert table["tests"].dropna().tolist() == [1, 1]
    primary, second = table.loc["mless"], table.loc["mful"]
    assert primary["p_adjusted"] == primary["p"] < second["p_adjusted"] == second["p"]
    swapped = compare_rows(run, contrasts=contrasts, primary="mful - wo").loc["mless"]
    assert swapped["p"] < 0.001 and swapped["p_adjusted"] == second["p"] > 0.05
    assert swapped["verdict"] == "inconclusive"
    assert swapped["low"] == primary["low"] > 0  # intervals are not adjusted
    assert not compare(run)["primary"].any()


def test_a_contrast_that_the_run_did_not_name_is_exploratory(run):
    table = compare_rows(run, contrasts=["mful - wo"])
    assert table["role"].to_dict() == {"wo": "baseline", "mless": "exploratory", "mful": "tested"}
    assert table["verdict"].dropna().to_dict() == {"mful": "inconclusive"}
    exploratory, tested = table.loc["mless"], table.loc["mful"]
    assert exploratory["p"] < 0.001 and exploratory[["p_adjusted", "tests"]].isna().all()
    assert tested["p_adjusted"] == tested["p"]  # one test
    assert set(compare(run, contrasts=[])["role"]) == {"baseline", "exploratory"}
    equal = compare_rows(run.assign(correct=True), contrasts=["mful - wo"])
    assert pandas.isna(equal.loc["mless", "verdict"])  # nor equivalent


MODELS, CONDITIONS = ("m", "n"), ("mless", "mful", "random")


def table_rows(p_values, tested=CONDITIONS):
    """Rows as `compare` has them before they are judged, of p-values [model x condition]."""
    names = [(model, condition) for model in MODELS for condition in CONDITIONS]
    rows = [
        {"model": model, "layout": "raw", "condition": "wo", "role": "baseline"} for model in MODELS
    ]
    facts = {"layout": "raw", "difference": 1.0, "within_margin": False}
    facts |= {"answered_difference": 1.0, "answered_low": 0.5, "answered_high": 1.5}
    for (model, condition), p in zip(names, p_values, strict=False):
        role = "tested" if condition in tested else "exploratory"
        rows.append({"model": model, "condition": condition, "p": p, "role": role, **facts})
    return rows


@with_cases
def test_with_a_primary_contrast_each_model_has_a_share_and_the_other_contrasts_wait_for_it(
    p_values, p_adjusted, tests, verdicts
):
    rows = table_rows(p_values)
    judge(rows, primary="mless")
    judged = pandas.DataFrame(rows[2:])
    assert judged["p_adjusted"].tolist() == pytest.approx(p_adjusted)
    assert (judged["tests"].tolist(), judged["verdict"].tolist()) == (tests, verdicts)


@with_cases
def test_five_of_a_hundred_tables_without_an_effect_have_a_false_verdict(
    shared, tested, primary, effect
):
    """Two models and three conditions.

    Independent tests are the worst case; tests with a common baseline are the usual case. An effect
    of the primary condition is surely found, and only verdicts of the other conditions are false.
    """
    experiments, rng = 4000, np.random.default_rng(20)
    scores = rng.normal(size=(experiments, len(MODELS), len(CONDITIONS)))
    if shared:
        scores = (scores - rng.normal(size=(experiments, len(MODELS), 1))) / np.sqrt(2)
    scores[:, :, 0] += effect
    false_tables = 0
    for p_values in 2 * ndtr(-np.abs(scores.reshape(experiments, -1))):
        rows = table_rows(p_values, tested)
        judge(rows, primary=primary)
        if effect:
            rows = [row for row in rows if row["condition"] != primary]
        false_tables += any(row.get("verdict") in ("better", "worse") for row in rows)
    error = (0.05 * 0.95 / experiments) ** 0.5
    assert 0.02 < false_tables / experiments < 0.05 + 3 * error


def test_reference_conditions_are_not_judged(run):
    control = samples(control=draw_correct(9, 0.1, k=4))
    table = compare_rows(pandas.concat([run, control]), reference_conditions=CONTROL)
    row = table.loc["control"]
    assert row["role"] == "reference" and row["p"] < 0.05
    assert row[["p_adjusted", "tests", "verdict"]].isna().all()
    assert table.loc["mful", "tests"] == 2


@with_cases
def test_arguments_that_do_not_fit_the_samples_are_refused(run, arguments, message):
    with pytest.raises(ComparisonError, match=message):
        compare(run.assign(level=1), **arguments)


@with_cases
def test_samples_that_cannot_be_compared_are_refused(run, condition, query, values, message):
    is_changed = run["condition"] == condition
    rows = run[is_changed].query(query).assign(**values)
    with pytest.raises(ComparisonError, match=message):
        compare(pandas.concat([rows, run[~is_changed]]))


def test_a_repeat_run_of_fewer_problems_is_refused(run):
    repeats = run[run["problem_id"] != "p1"].assign(replicate=1)
    with pytest.raises(ComparisonError, match="condition wo, replicate 1: its problems"):
        compare(pandas.concat([run, repeats]))


def test_runs_with_different_examples_are_refused():
    verdicts = {"wo": np.array([["correct"], ["incorrect"]], dtype=object)}
    old, new = (
        replace(evaluation(verdicts, model=name), receipt={"examples": {"pool": [name]}})
        for name in ("m0", "m1")
    )
    with pytest.raises(ComparisonError, match=r'examples\.pool: \["m0"\] -> \["m1"\]'):
        make_leaderboard([old, new])
    with pytest.raises(ComparisonError, match=r"m1 cannot be compared with .*: examples"):
        make_leaderboard([old, replace(new, receipt={"examples": None})])


WRONG, RIGHT = "incorrect", "correct"


def make_samples(problems=12, k=5, **chances):
    """Random verdicts of conditions."""
    return evaluation(drawn(0, problems, k, chances, (WRONG,))).samples


@with_cases
def test_pass_at_k_is_the_mean_over_all_sets_of_k_samples(k):
    frame = make_samples(wo=0.2, mless=0.4).assign(cluster=lambda rows: rows["level"])
    table = compare_rows(frame, score=f"pass@{k}")
    shares = {}
    for name, samples in frame.groupby("condition"):
        rows = samples.pivot(index="problem_id", columns="sample_index", values="correct")
        sets = [rows[list(chosen)].any(axis=1) for chosen in combinations(range(5), k)]
        shares[name] = np.mean(sets, axis=0)
        assert table.loc[name, "accuracy"] == pytest.approx(100 * shares[name].mean())
    changes = np.rint((shares["mless"] - shares["wo"]) * len(sets)).astype(int)
    clusters = frame.groupby("problem_id")["cluster"].first().to_numpy() - 1
    expected = estimate_difference(changes, len(sets), clusters=clusters)
    assert table.loc["mless", "p"] == expected.p
    ends = [100 * end for end in expected.interval()]
    assert table.loc["mless", ["low", "high"]].tolist() == pytest.approx(ends)


def test_avg_at_k_is_the_accuracy_and_many_sets_do_not_overflow():
    frame = make_samples(k=64, wo=0.02, mless=0.05)
    assert compare_rows(frame, score="avg@8").equals(compare_rows(frame, score=None))
    table = compare_rows(frame, score="pass@32")
    right = frame[frame["condition"] == "wo"].groupby("problem_id")["correct"].sum()
    miss = [np.prod([(32 - i) / (64 - i) for i in range(count)]) for count in right]
    assert table.loc["wo", "accuracy"] == pytest.approx(100 * (1 - np.mean(miss)), abs=1e-4)
    assert table["answered_difference"].iloc[1] == pytest.approx(table["difference"].iloc[1])


@with_cases
def test_maj_at_4_takes_the_most_frequent_answer_and_of_equals_the_first(answers, accuracy):
    frame = make_samples(problems=1, wo=0, mless=0).assign(answer=answers * 2)
    frame["correct"] = frame["answer"] == "2"
    shuffled = frame.sample(frac=1, random_state=1)
    assert set(compare(shuffled, score="maj@4")["accuracy"]) == {accuracy}


@with_cases
def test_a_score_needs_k_samples_with_one_prompt(kind):
    frame = make_samples(wo=0.5, mless=0.5)
    with pytest.raises(ComparisonError, match=f"score {kind}@6: expected K from 1 to 5"):
        compare(frame, score=f"{kind}@6")
    for single in (frame[frame["sample_index"] == 0], frame.assign(draw=frame["sample_index"])):
        with pytest.raises(ComparisonError, match=r"expected several samples, .* 1 with one"):
            compare(single, score=f"{kind}@1")


def test_draws_of_examples_have_scores_of_their_own():
    frame = make_samples(k=8, wo=0.2, mless=0.6)
    frame["draw"] = frame["sample_index"] // 2
    row = compare_rows(frame, score="pass@2").loc["mless"]
    pairs = frame.groupby(["condition", "problem_id", "draw"])["correct"].any()
    assert row["accuracy"] == pytest.approx(100 * pairs["mless"].mean())
    assert row["draws"] == 4


def test_tables_name_the_score():
    verdicts = {"wo": [[RIGHT, WRONG]] * 9, "mless": [[WRONG, WRONG]] * 9}
    board = make_leaderboard([evaluation(verdicts)], score="pass@2")
    table = make_comparison_table(board)
    assert table.columns[1].heading == "pass@2 %"
    assert table.warnings[0].startswith("pass@2 instead of accuracy: chance that at least one")
    assert table_csv(board).endswith('# {"score": "pass@2"}')
