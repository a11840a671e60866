import numpy as np
import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from harness.analysis import compare, estimate_difference, holm, score_interval
from harness.analysis.compare_with_baseline import COMPARISON_COLUMNS
from harness.analysis.verdicts import choose_verdict, judge
from harness.errors import ComparisonError
from tests.make import CONTROL

POINTS = ["difference", "low", "high", "equivalence_low", "equivalence_high"]


def samples(right, *, condition="wo", model="m", replicate=0, **columns):
    return pandas.DataFrame(
        [
            {
                "model": model,
                "layout": "raw",
                "condition": condition,
                "replicate": replicate,
                "problem_id": f"p{number}",
                "sample_index": index,
                "correct": bool(one),
                **columns,
            }
            for number, row in enumerate(np.atleast_2d(np.asarray(right).T).T)
            for index, one in enumerate(row)
        ]
    )


def chances(seed, p, *, problems=60, k=1):
    return np.random.default_rng(seed).random((problems, k)) < p


@pytest.fixture
def run():
    return pandas.concat(
        [
            samples(chances(1, 0.5, k=4)),
            samples(chances(2, 0.9, k=4), condition="mless"),
            samples(chances(3, 0.5, k=4), condition="mful"),
        ]
    )


def by_condition(table):
    return table.set_index("condition")


def test_a_table_by_hand():
    before, after = [1] * 30 + [0] * 20, [1] * 28 + [0] * 2 + [1] * 12 + [0] * 8
    table = by_condition(
        compare(pandas.concat([samples(before), samples(after, condition="mless")]))
    )
    baseline, row = table.loc["wo"], table.loc["mless"]
    assert (baseline["accuracy"], baseline["role"], row["accuracy"]) == (60, "baseline", 80)
    assert pandas.isna(
        baseline[["difference", "p", "p_adjusted", "within_margin", "verdict"]]
    ).all()
    assert (row["problems"], row["repeats"], row["difference"], row["tests"]) == (
        50,
        1,
        pytest.approx(20),
        1,
    )
    assert (row["wrong_to_right"], row["right_to_wrong"]) == (12, 2)
    assert row["p"] == pytest.approx(0.0129, abs=5e-5), "McNemar's exact test of 12 and 2"
    assert 5 < row["low"] < 7 and 33 < row["high"] < 36, "near Tango's interval, [6.1, 34.5]"
    assert (row["role"], row["verdict"]) == ("tested", "better")
    assert not row["within_margin"]


def test_repeats_are_averaged_by_problem(run):
    row = by_condition(compare(run)).loc["mless"]
    correct = run.pivot_table(
        index="problem_id", columns="condition", values="correct", aggfunc="mean"
    )
    change = correct["mless"] - correct["wo"]
    assert row["difference"] == pytest.approx(100 * change.mean())
    assert row["standard_error"] == pytest.approx(100 * correct["mless"].sem())
    assert (row["wrong_to_right"] - row["right_to_wrong"]) == pytest.approx(change.sum())
    assert (row["problems"], row["repeats"], row["verdict"]) == (60, 4, "better")
    low, high = score_interval(correct["mless"])
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx((100 * low, 100 * high))


def test_problems_of_one_cluster_count_as_one():
    right = {"wo": chances(1, 0.5), "mless": chances(2, 0.8)}

    def compared(times):
        """Each problem that often, all of them one cluster."""
        both = [
            samples(np.repeat(one, times, axis=0), condition=name) for name, one in right.items()
        ]
        frame = pandas.concat(both)
        number = frame["problem_id"].str[1:].astype(int) // times
        return by_condition(compare(frame.assign(cluster=number))).loc["mless"]

    one, three = compared(1), compared(3)
    assert (one["problems"], three["problems"]) == (60, 180)
    assert three["p"] == one["p"] and three["wrong_to_right"] == 3 * one["wrong_to_right"]
    same = ["accuracy", "standard_error", "accuracy_low", "accuracy_high", *POINTS]
    assert list(three[same]) == pytest.approx(list(one[same]), rel=1e-9)
    singles = pandas.concat([samples(one, condition=name) for name, one in right.items()])
    assert list(by_condition(compare(singles)).loc["mless", same]) == list(one[same]), (
        "to the last digit"
    )


def test_clusters_of_several_sizes_have_the_error_of_a_ratio():
    right = chances(5, 0.6, problems=90)[:, 0]
    cluster = np.repeat(np.arange(50), [1, 1, 1, 1, 5] * 10)
    row = compare(samples(right).assign(cluster=cluster)).iloc[0]
    left = np.bincount(cluster, right - right.mean())  # Cochran (1977), section 6.3
    assert row["standard_error"] == pytest.approx(100 * np.sqrt((left**2).sum() * 50 / 49) / 90)
    assert 0 < row["accuracy_low"] < row["accuracy"] < row["accuracy_high"] < 100


def test_every_column_is_described_and_the_splits_come_after_the_layout(run):
    assert list(compare(run).columns) == list(COMPARISON_COLUMNS)
    levels = run.assign(level=run["problem_id"].str.len())
    table = compare(levels, by=["level"])
    assert list(table.columns)[:4] == ["model", "layout", "level", "condition"]
    assert table.groupby("level")["problems"].first().to_dict() == {2: 10, 3: 50}
    assert set(table["tests"].dropna()) == {4}


def test_the_equivalence_interval_is_of_level_90_percent(run):
    row = by_condition(compare(run)).loc["mful"]
    right = run.pivot_table(
        index="problem_id", columns="condition", values="correct", aggfunc="sum"
    ).astype(int)
    changes = right["mful"] - right["wo"]
    low, high = estimate_difference(changes, 4).interval(0.9)
    assert (row["equivalence_low"], row["equivalence_high"]) == pytest.approx(
        (100 * low, 100 * high)
    )


def test_verdicts_in_words():
    assert choose_verdict(0.049, 0.4, within_margin=True) == "better"
    assert choose_verdict(0.049, -0.4, within_margin=True) == "worse"
    assert choose_verdict(0.05, 3.0, within_margin=True) == "equivalent"
    assert choose_verdict(0.05, 3.0, within_margin=False) == "inconclusive"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 3]), st.floats(0.1, 0.9))
@example(275, 3, 0.5)
def test_swapping_the_two_conditions_mirrors_the_row(seed, k, p):
    frame = pandas.concat(
        [samples(chances(seed, p, k=k)), samples(chances(seed + 1, 0.5, k=k), condition="mless")]
    )
    row = by_condition(compare(frame)).loc["mless"]
    swapped = by_condition(compare(frame, baseline="mless")).loc["wo"]
    mirrored = ["difference", "high", "low", "equivalence_high", "equivalence_low"]
    assert swapped[mirrored].to_list() == pytest.approx((-row[POINTS]).to_list(), abs=1e-9)
    assert swapped["wrong_to_right"] == pytest.approx(row["right_to_wrong"])
    assert swapped["p"] == row["p"]


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 100))
def test_the_order_of_samples_does_not_matter(seed):
    frame = pandas.concat(
        [samples(chances(1, 0.5, k=2)), samples(chances(2, 0.6, k=2), condition="mless")]
    )
    shuffled = compare(frame.sample(frac=1, random_state=seed)).sort_values(
        "condition", ignore_index=True
    )
    pandas.testing.assert_frame_equal(
        shuffled, compare(frame).sort_values("condition", ignore_index=True)
    )


def test_other_models_change_a_row_only_through_holm(run):
    other = run.assign(model="n", correct=~run["correct"])
    alone, together = compare(run), compare(pandas.concat([run, other]))
    same = [
        column for column in COMPARISON_COLUMNS if column not in ("tests", "p_adjusted", "verdict")
    ]
    pandas.testing.assert_frame_equal(together[together["model"] == "m"][same], alone[same])
    assert (set(alone["tests"].dropna()), set(together["tests"].dropna())) == ({2}, {4})
    row = by_condition(alone).loc["mful"]
    assert (
        by_condition(together[together["model"] == "m"]).loc["mful", "p_adjusted"]
        >= row["p_adjusted"]
        >= row["p"]
    )


def test_the_primary_contrast_is_tested_first_and_the_others_behind_it(run):
    table = by_condition(compare(run, contrasts=["mless - wo", "mful - wo"], primary="mless - wo"))
    assert table["role"].to_dict() == {"wo": "baseline", "mless": "tested", "mful": "tested"}
    assert table["primary"].dropna().to_dict() == {"mless": True, "mful": False}
    assert table["tests"].dropna().tolist() == [1, 1]
    first, behind = table.loc["mless"], table.loc["mful"]
    assert first["p_adjusted"] == first["p"] < behind["p_adjusted"] == behind["p"]
    turned = by_condition(compare(run, contrasts=["mless - wo", "mful - wo"], primary="mful - wo"))
    assert (
        turned.loc["mless", "p"] < 0.001 and turned.loc["mless", "p_adjusted"] == behind["p"] > 0.05
    )
    assert turned.loc["mless", "verdict"] == "inconclusive"
    assert turned.loc["mless", "low"] == first["low"] > 0, "intervals are not adjusted"
    assert not compare(run)["primary"].any()


def test_what_the_run_did_not_name_is_exploratory(run):
    table = by_condition(compare(run, contrasts=["mful - wo"]))
    assert table["role"].to_dict() == {"wo": "baseline", "mless": "exploratory", "mful": "tested"}
    assert table["verdict"].dropna().to_dict() == {"mful": "inconclusive"}
    assert (
        table.loc["mless", "p"] < 0.001 and table.loc["mless", ["p_adjusted", "tests"]].isna().all()
    )
    assert table.loc["mful", "p_adjusted"] == table.loc["mful", "p"], "one test"
    assert set(compare(run, contrasts=[])["role"]) == {"baseline", "exploratory"}
    same = run.assign(correct=True)
    assert pandas.isna(
        by_condition(compare(same, contrasts=["mful - wo"])).loc["mless", "verdict"]
    ), "nor equivalent"


MODELS, CONDITIONS = ("m", "n"), ("mless", "mful", "random")


def table_rows(p_values, tested=CONDITIONS):
    """Rows as `compare` has them before they are judged, of p-values [model x condition]."""
    names = [(model, condition) for model in MODELS for condition in CONDITIONS]
    rows = [
        {"model": model, "layout": "raw", "condition": "wo", "role": "baseline"} for model in MODELS
    ]
    for (model, condition), p in zip(names, p_values, strict=True):
        row = {"model": model, "layout": "raw", "condition": condition, "difference": 1.0, "p": p}
        row |= {
            "answered_difference": 1.0,
            "answered_low": 0.5,
            "answered_high": 1.5,
            "within_margin": False,
        }
        rows.append({**row, "role": "tested" if condition in tested else "exploratory"})
    return rows


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_without_a_primary_contrast_holm_goes_over_every_test(p_values):
    rows = table_rows(p_values)
    judge(rows, primary=None)
    assert [row["p_adjusted"] for row in rows[2:]] == holm(p_values).tolist()
    assert [row["verdict"] == "better" for row in rows[2:]] == (holm(p_values) < 0.05).tolist()
    fewer = table_rows(p_values, ["mless", "random"])
    judge(fewer, primary=None)
    tested = [row for row in fewer if row["role"] == "tested"]
    assert [row["p_adjusted"] for row in tested] == holm([row["p"] for row in tested]).tolist()


def test_with_a_primary_contrast_each_model_has_a_share_and_the_others_wait_for_it():
    rows = table_rows([0.02, 0.001, 0.01, 0.03, 0.001, 0.001])
    judge(rows, primary="mless")
    assert [row["p_adjusted"] for row in rows[2:]] == pytest.approx(
        [0.04, 0.04, 0.04, 0.06, 0.06, 0.06]
    )
    assert [row["tests"] for row in rows[2:]] == [2, 4, 4, 2, 4, 4]
    assert [row["verdict"] for row in rows[2:]] == ["better"] * 3 + ["inconclusive"] * 3


@pytest.mark.parametrize("shared", [False, True], ids=["independent", "one baseline"])
@pytest.mark.parametrize(
    ("tested", "primary", "effect"),
    [
        (CONDITIONS, None, 0),
        (("mless", "random"), None, 0),
        (CONDITIONS, "mless", 0),
        (CONDITIONS, "mless", 9),
    ],
)
def test_tables_without_any_effect_hold_a_false_finding_at_most_five_times_in_a_hundred(
    shared, tested, primary, effect
):
    """Two models, three conditions; independent tests are the worst case, a common baseline the usual one.

    With an effect of the primary condition, that is surely found, and the rest are what can be found by mistake.
    """
    experiments, rng = 4000, np.random.default_rng(20)
    scores = rng.normal(size=(experiments, len(MODELS), len(CONDITIONS)))
    if shared:
        scores = (scores - rng.normal(size=(experiments, len(MODELS), 1))) / np.sqrt(2)
    scores[:, :, 0] += effect
    found = 0
    for p_values in 2 * ndtr(-np.abs(scores.reshape(experiments, -1))):
        rows = table_rows(p_values, tested)
        judge(rows, primary=primary)
        found += any(
            row.get("verdict") in ("better", "worse")
            for row in rows
            if not effect or row["condition"] != primary
        )
    error = (0.05 * 0.95 / experiments) ** 0.5
    assert 0.02 < found / experiments < 0.05 + 3 * error


def test_reference_conditions_are_not_judged(run):
    frame = pandas.concat([run, samples(chances(9, 0.1, k=4), condition="control")])
    table = by_condition(compare(frame, reference_conditions=CONTROL))
    assert table.loc["control", "role"] == "reference" and table.loc["control", "p"] < 0.05
    assert table.loc["control", ["p_adjusted", "tests", "verdict"]].isna().all()
    assert table.loc["mful", "tests"] == 2


def test_a_repeat_run_says_how_many_completions_differ(run):
    texts = run.assign(completion=run["correct"].map({True: "yes", False: "no"}))
    again = texts[texts["condition"] != "mful"].assign(replicate=1)
    changed = again["problem_id"].isin(["p1", "p2"]) & (again["condition"] == "wo")
    both = pandas.concat(
        [texts, again.assign(completion=again["completion"].mask(changed, "else"))]
    )
    table = by_condition(compare(both))
    assert table.loc["mless", ["aa_samples", "aa_changed", "aa_difference"]].tolist() == [480, 8, 0]
    assert table.loc["mful", ["aa_samples", "aa_changed", "aa_difference"]].isna().all(), "run once"
    bare = by_condition(compare(both.drop(columns="completion")))
    assert bare.loc["mless", "aa_difference"] == 0 and pandas.isna(bare.loc["mless", "aa_samples"])


REFUSED = {
    "no baseline": (
        {},
        {"baseline": "none"},
        "model m, layout raw: .*'none' among wo, mless, mful",
    ),
    "unknown contrast": (
        {},
        {"contrasts": ["mles - wo"]},
        "'mles': expected one of mful, mless, .*wo",
    ),
    "unknown other side": (
        {},
        {"contrasts": ["mless - mles"]},
        "'mles': expected one of mful, mless, .*wo",
    ),
    "unnamed primary": ({}, {"primary": "mless - wo"}, "primary: .* mless - wo"),
    "split primary": (
        {},
        {"primary": "mless - wo", "contrasts": ["mless - wo"], "by": ["level"]},
        "primary: ",
    ),
    "margin": ({}, {"margin": 0}, "margin: .* got 0"),
    "fewer problems": (
        {"mless": lambda of: of[of["problem_id"] != "p1"]},
        {},
        "condition mless: .* 59 against 60; .*p1",
    ),
    "other problems": (
        {"mful": lambda of: of.assign(problem_id="q")},
        {},
        "mful.* occurs more than once",
    ),
    "fewer samples": (
        {"mless": lambda of: of[of["sample_index"] < 2]},
        {},
        "condition mless: expected 4 .* got 2",
    ),
    "a sample lost": (
        {"mful": lambda of: of.drop(of.index[30])},
        {},
        "condition mful: samples are missing: .* 4 .*p7",
    ),
    "a sample twice": (
        {"wo": lambda of: pandas.concat([of, of.iloc[[5]]])},
        {},
        "problem_id p1, sample_index 1: occurs",
    ),
    "no verdict": (
        {"wo": lambda of: of.assign(correct=None)},
        {},
        "problem_id p0, sample_index 0: has no verdict",
    ),
    "replicate": (
        {
            "wo": lambda of: pandas.concat(
                [of, samples(chances(4, 0.5, k=4, problems=59), replicate=1)]
            ),
            "mless": lambda of: pandas.concat([of, of.assign(replicate=1)]),
        },
        {},
        "condition wo, replicate 1: its problems",
    ),
}


@pytest.mark.parametrize(("changes", "arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_compared_is_refused(run, changes, arguments, message):
    parts = run.assign(level=1).groupby("condition", sort=False)
    frame = pandas.concat(
        [changes.get(name, lambda of: of)(part.reset_index(drop=True)) for name, part in parts]
    )
    with pytest.raises(ComparisonError, match=message):
        compare(frame, **arguments)
