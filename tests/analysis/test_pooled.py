import json

import numpy as np
import pandas
import pytest

from benchmarks.sweep_calibration import EFFECTS, NONE, measure, simulate
from harness.analysis import estimate_difference
from harness.analysis.count_correct import count_outcomes
from harness.analysis.pool_models import (
    POOLED_COLUMNS,
    crossed_error,
    estimate_over_draws,
    pool_changes,
)
from harness.analysis.result_tables import as_json, make_leaderboard
from harness.analysis.sweeps import SWEEP_COLUMNS, estimate_trend, group_lengths, sweep_table
from harness.display.side_tables import show_side_tables
from harness.experiment.expand_conditions import read_conditions
from tests.make import drawn, evaluation

NAMED = {"contrasts": ["mless - wo", "mless - random"], "primary": "mless - wo"}


def models(count, mless):
    chances = {"wo": 0.5, "mless": mless, "random": 0.45}
    return [
        evaluation(drawn(i, 200, 1, chances), model=f"m{i}", greedy=False, **NAMED)
        for i in range(count)
    ]


def test_it_is_the_mean_of_the_models_and_a_test_over_problems_whatever_their_samples():
    draw = np.random.default_rng(1)
    one, two = draw.integers(-1, 2, 120), draw.integers(-3, 4, 120)
    row = pool_changes([(one, 1), (two, 3)])
    total = 3 * one + two
    assert row["difference"] == pytest.approx(100 * (one.mean() + two.mean() / 3) / 2)
    expected = estimate_difference(total, 6)
    assert row["p"] == expected.p
    assert [row["low"], row["high"]] == pytest.approx([100 * end for end in expected.interval()])
    assert (row["models"], row["problems"]) == (2, 120) and "new_low" not in row, (
        "so few models say nothing of new ones"
    )
    single = pool_changes([(one, 1)])
    assert single["p"] == estimate_difference(one, 1).p


def test_new_models_are_judged_by_crossed_random_effects():
    """Against the textbook: with no variance between problems and none left it is Student's interval over models."""
    effects = np.repeat(np.array([[0.01], [0.03], [0.05], [0.02]]), 50, axis=1)
    assert crossed_error(effects) == pytest.approx((effects[:, 0].std(ddof=1) / 2, 3))
    alike = np.repeat(np.random.default_rng(2).normal(size=(1, 80)), 5, axis=0)
    assert crossed_error(alike) == pytest.approx((alike[0].std(ddof=1) / np.sqrt(80), 79))
    assert crossed_error(np.zeros((4, 30))) == (0, 1)
    gained = pool_changes([(np.ones(30, dtype=int), 1)] * 4)
    assert (gained["new_low"], gained["new_p"]) == (gained["low"], gained["p"])


def test_the_variance_components_are_those_of_the_textbook_also_where_cells_are_missing():
    """Henderson's Method I, written out for the components of one table."""
    rng = np.random.default_rng(4)
    effects = rng.normal(size=(6, 1)) + rng.normal(size=20) + rng.normal(size=(6, 20))
    rows, columns, every = effects.mean(axis=1), effects.mean(axis=0), effects.mean()
    rest = effects - rows[:, None] - columns + every
    variance = (
        (rows.var(ddof=1) / 6) + (columns.var(ddof=1) / 20) - (rest**2).sum() / (5 * 19) / 120
    )
    assert crossed_error(effects)[0] == pytest.approx(np.sqrt(variance))
    errors, means = [], []
    asked = (np.arange(20) + np.arange(6)[:, None]) % 6 < 3
    for _ in range(2000):
        effects = (
            0.5 * rng.normal(size=(6, 1)) + 0.5 * rng.normal(size=20) + rng.normal(size=(6, 20))
        )
        effects[~asked] = np.nan
        means.append(np.nanmean(effects))
        errors.append(crossed_error(effects)[0])
    assert np.mean(np.square(errors)) == pytest.approx(np.var(means), rel=0.15)


@pytest.mark.parametrize("draws_per_problem", [8, 3])
def test_with_draws_that_shift_the_effect_new_draws_err_5_times_in_100(draws_per_problem):
    rng, experiments, draws, problems = np.random.default_rng(3), 400, 8, 60
    asked = (np.arange(problems) + np.arange(draws)[:, None]) % draws < draws_per_problem
    false = fixed = 0
    for _ in range(experiments):
        gains = 0.5 + 0.15 * rng.normal(size=(draws, 1)) + 0.1 * rng.normal(size=problems)
        changes = np.where(
            asked,
            np.where(rng.random(asked.shape) < gains, 1, -1) * (rng.random(asked.shape) < 0.6),
            0,
        )
        estimate = estimate_over_draws(changes, asked.astype(int), np.arange(problems))
        low, high = estimate.interval()
        assert (low > 0 or high < 0) == (estimate.p < 0.05)
        false += estimate.p < 0.05
        fixed += estimate.fixed.p < 0.05
    assert false / experiments < 0.07 < fixed / experiments


def three_points_each():
    """Four models that each gain 12 of 250 problems and lose 4, never the same."""
    runs = []
    for model in range(4):
        old = [["correct" if problem % 2 else "incorrect"] for problem in range(250)]
        new = [list(one) for one in old]
        for place in range(12):
            new[2 * (12 * model + place)] = ["correct"]
        for place in range(4):
            new[2 * (4 * model + place) + 1] = ["incorrect"]
        runs.append(
            evaluation({"wo": old, "mless": new, "random": old}, model=f"m{model}", **NAMED)
        )
    return runs


def test_models_that_are_each_inconclusive_are_plain_together():
    board = make_leaderboard(three_points_each())
    alone = board.comparison[board.comparison["condition"] == "mless"]
    pooled = board.side_tables["pooled"].set_index("condition")
    assert list(board.side_tables["pooled"].columns) == list(
        POOLED_COLUMNS
    ) and '"pooled": [' in as_json(board)
    assert set(alone["verdict"]) == {"inconclusive"}
    assert (alone["difference"] == 3.2).all() and pooled.loc[
        "mless", "difference"
    ] == pytest.approx(3.2)
    assert pooled.loc["mless", "low"] > 1 and pooled.loc["mless", "p"] < 0.001
    assert pooled.index.tolist() == ["mless", "random", "mless - random"]
    grid = show_side_tables(board)["pooled"]
    assert [row[0].text for row in grid.cells] == ["w/ Mless", "Random sentence", "mless - random"]
    assert (
        grid.header[-1] == "new models"
        and grid.notes[-1] == "Exploratory: p is not adjusted, and there is no verdict."
    )
    assert (
        "new models"
        not in show_side_tables(make_leaderboard(three_points_each()[:2]))["pooled"].header
    )


def test_one_model_or_a_split_table_has_nothing_to_pool():
    assert "pooled" not in show_side_tables(make_leaderboard(models(1, 0.6)))
    assert "pooled" not in show_side_tables(make_leaderboard(models(3, 0.6), by=["level"]))


def test_only_problems_that_all_models_were_asked_are_pooled():
    whole, part = models(2, 0.6)
    frame = part.samples[part.samples["problem_id"].isin([f"p{i}" for i in range(50)])]
    object.__setattr__(part, "samples", frame)
    assert make_leaderboard([whole, part]).side_tables["pooled"]["problems"].tolist() == [50] * 3


def test_no_interval_for_new_models_is_shorter_than_that_for_these():
    none = pool_changes([(np.zeros(300, dtype=int), 1)] * 4)
    assert (none["new_low"], none["new_high"]) == (none["low"], none["high"]) and none[
        "new_high"
    ] > 0.5
    assert none["new_p"] == none["p"] == 1
    lost = np.zeros(300, dtype=int)
    lost[:3] = -1
    few = pool_changes([(lost, 1)] * 4)
    assert (
        few["new_low"] <= few["low"] < few["high"] <= few["new_high"] and few["new_p"] >= few["p"]
    )


def test_a_sweep_is_its_mean_and_its_longest_less_its_shortest():
    changes = simulate(EFFECTS["monotone, 0 to 4 points"], "coins", np.random.default_rng(1)).T
    clusters = np.arange(changes.shape[1])
    samples = np.ones((1, len(clusters)), dtype=int)
    mean, extremes = estimate_trend(changes[:, None], samples, clusters)
    assert (mean.difference, mean.p) == (
        pytest.approx(changes.mean()),
        estimate_difference(changes.sum(axis=0), 8).p,
    )
    paired = changes[-1] - changes[0]
    assert (extremes.difference, extremes.p) == (
        pytest.approx(paired.mean()),
        estimate_difference(paired, 1).p,
    )
    assert [one.p for one in estimate_trend(0 * changes[:, None], samples, clusters)] == [
        1.0,
        1.0,
    ], "nothing changed"


def test_in_simulation_it_errs_as_promised():
    assert measure(NONE, "coins", 150)[0] < 0.1 and measure(NONE, "skewed", 40, 100, 20)[0] < 0.15
    for name in (
        "2 points at all lengths",
        "monotone, 0 to 4 points",
        "harm of the longest, to -6 points",
    ):
        found, singly = measure(EFFECTS[name], "coins", 100)
        assert found > singly, name


def test_the_table_has_a_row_for_each_filler_and_place():
    slashes = [{"name": f"s{n}", "unit": "/", "count": n, "placement": "end"} for n in (40, 10, 25)]
    words = [{"name": f"h{n}", "unit": "he", "count": n, "placement": "end"} for n in (10, 25)]
    texts = [{"name": f"t{n}", "text": f"text {n}", "count": n} for n in (10, 25, 40)]
    conditions = read_conditions(
        {"conditions": ["wo", {"name": "own", "text": "a b"}, *slashes, *words, *texts]}
    )
    groups = group_lengths(conditions)
    (lengths,) = [lengths for filler, lengths in groups.items() if filler.filler == "/"]
    assert list(lengths.items()) == [(0, "wo"), (10, "s10"), (25, "s25"), (40, "s40")]
    assert len(groups) == 5, "three texts are no lengths of one"
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame(
        {
            "model": "m",
            "layout": "raw",
            "condition": condition,
            "problem_id": str(problem),
            "sample_index": 0,
            "correct": rng.random() < (0.9 if condition == "s25" else 0.5),
        }
        for condition in conditions
        for problem in range(200)
    )
    table = sweep_table(count_outcomes(frame), conditions, baseline="wo")
    assert list(table.columns) == list(SWEEP_COLUMNS) and len(table) == 1, (
        "two lengths are no sweep"
    )
    (row,) = table.to_dict("records")
    assert (row["filler"], row["placement"], row["lengths"], row["problems"]) == (
        "/",
        "end",
        "10 25 40",
        200,
    )
    accuracy = frame.groupby("condition")["correct"].mean()
    assert row["difference"] == pytest.approx(
        100 * (accuracy[["s10", "s25", "s40"]].mean() - accuracy["wo"])
    )
    assert row["longest_less_shortest"] == pytest.approx(100 * (accuracy["s40"] - accuracy["s10"]))
    assert row["longest_low"] < row["longest_less_shortest"] < row["longest_high"]
    assert (
        row["best"] == 25
        and row["p"] == row["p_adjusted"] < 0.05
        and row["low"] < row["difference"] < row["high"]
    )
    json.dumps(table.to_dict("records"))
    assert sweep_table([], conditions, baseline="wo").empty
    assert sweep_table(count_outcomes(frame), conditions, baseline="s40").empty, (
        "the baseline is no length of its own"
    )
