import itertools
from dataclasses import replace

import numpy as np
import pandas
import pytest
from scipy import stats

from attention_probe.analysis.head_ranking import permute_labels, rank_heads
from harness.errors import ConfigError
from tests.attention_probe.conftest import store
from tests.make import LAYERS, SHAPE, make_trace

FILLERS = (("random",), ("mless",))


def make_traces(count, *, shift=0.0):
    """Measures are noise; `mless` has `shift` standard deviations more in Layer 3, Head 2."""
    random = np.random.default_rng(0)
    traces = []
    for number in range(count):
        for condition in ("wo", "mless", "random"):
            noise = random.normal(size=SHAPE).astype(np.float32)
            noise[1, 1] += shift * (condition == "mless")
            measures = {"mass_filler": np.abs(noise), "mass_problem": noise}
            if condition != "wo":
                measures["bias_cosine"] = noise
            traces.append(make_trace(f"p{number}", condition, seed=number, measures=measures))
    return traces


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranking") / "x.traces"
    with store(path, make_traces(30, shift=2.0)) as traces:
        yield traces


def test_every_head_has_a_row_and_the_shifted_head_is_first(traces):
    ranking = rank_heads(traces, "bias_cosine", *FILLERS)
    assert ranking["rank"].tolist() == list(range(1, 7))
    heads = {*zip(ranking["layer"], ranking["head"], strict=True)}
    assert heads == {*itertools.product((1, 3), (1, 2, 3))}
    first = ranking.iloc[0]
    assert (first["layer"], first["head"], first["units"]) == (3, 2, 30)
    assert first["mean_difference"] > 1
    assert not first["guaranteed"]
    assert ranking["t"].abs().is_monotonic_decreasing
    assert ranking["p_adjusted"].isna().all()
    note = "30 prompts, ordered by t, no p: one string says nothing about others like it"
    assert ranking.attrs["note"].startswith(note)


def test_the_numbers_are_those_of_a_paired_t_test(traces):
    random, mless = (
        traces.measures(["bias_cosine"], name, traces.problem_ids)[0] for (name,) in FILLERS
    )
    for row in rank_heads(traces, "bias_cosine", *FILLERS).itertuples():
        differences = (mless - random)[:, LAYERS.index(row.layer - 1), row.head - 1]
        assert row.mean_difference == pytest.approx(differences.mean())
        assert row.standard_error == pytest.approx(stats.sem(differences))
        assert row.t == pytest.approx(stats.ttest_1samp(differences, 0).statistic)


@pytest.mark.parametrize(
    ("measure", "guaranteed"), [("mass_filler", {1, 3}), ("mass_problem", {1})]
)
def test_differences_that_softmax_guarantees_have_no_p_and_a_note(traces, measure, guaranteed):
    for sides in ((["wo"], ["mless"]), (["mless"], ["wo"])):
        ranking = rank_heads(traces, measure, *sides)
        is_guaranteed = ranking["guaranteed"]
        assert (is_guaranteed == ranking["layer"].isin(guaranteed)).all()
        assert (ranking["t"].isna() == is_guaranteed).all()
        assert ranking["mean_difference"][is_guaranteed].abs().is_monotonic_decreasing
        assert is_guaranteed.is_monotonic_increasing
        assert ranking["standard_error"].notna().all()
        note = "is no finding where it is guaranteed: one of the two has no filler"
        assert note in ranking.attrs["note"]
    between = rank_heads(traces, measure, *FILLERS)
    assert not between["guaranteed"].any()
    assert between["t"].notna().all()


def test_prompts_of_one_problem_are_one_unit(traces, tmp_path):
    draws = [
        replace(trace, problem_id=f"{trace.problem_id}#{draw}", cluster=trace.problem_id)
        for trace in traces
        for draw in (1, 2, 3)
    ]
    with store(tmp_path / "x.traces", draws) as opened:
        ranking = rank_heads(opened, "bias_cosine", *FILLERS)
    pandas.testing.assert_frame_equal(ranking, rank_heads(traces, "bias_cosine", *FILLERS))
    assert ranking.attrs["note"].startswith("90 prompts of 30 problems, ordered by t")


def test_equal_differences_have_an_infinite_t_and_zeros_have_0(tmp_path):
    traces = [
        make_trace(f"p{number}", name, measures={"mass_first": np.float32([[mass, 0, -mass]] * 2)})
        for number in range(8)
        for name, mass in (("mless", 0.1), ("random", 0.0))
    ]
    with store(tmp_path / "x.traces", traces) as opened:
        ranking = rank_heads(opened, "mass_first", *FILLERS)
    assert ranking.groupby("head")["t"].unique().tolist() == [[np.inf], [0], [-np.inf]]


def test_contrasts_that_cannot_be_ranked_are_refused(traces, tmp_path):
    for measure, subtracted, compared, message in (
        ("size", ["wo"], ["mless"], "has no size under wo: it has .*mass_f"),
        ("bias_cosine", ["mless"], ["mless"], "different conditions, got mless against mless"),
        ("bias_cosine", ["mless"], [], "different conditions, got none against mless"),
        ("bias_cosine", ["wo"], ["mless"], "has no bias_cosine under wo: "),
        ("bias", ["random"], ["mless"], "has no bias under random: .*--decompose"),
        ("bias_cosine", ["mful"], ["mless"], "has no problem under all of mful, mless"),
    ):
        with pytest.raises(ConfigError, match=message):
            rank_heads(traces, measure, subtracted, compared)
    message = "1 problem cannot rank heads: the problem is the unit"
    with store(tmp_path / "x", make_traces(1)) as lone, pytest.raises(ConfigError, match=message):
        rank_heads(lone, "bias_cosine", *FILLERS)


def store_strings(path, strings, *, prompts=6, shift=0.0, spread=1.0, seed=0):
    """Traces of as many strings on either side, and the names of both sides.

    The sides differ in Layer 3, Head 2 by `shift`, and those of the first scatter by `spread`.
    """
    random = np.random.default_rng(seed)
    sides = [[f"{side}{number}" for number in range(strings)] for side in "ab"]
    names = [*sides[0], *sides[1]]
    means = {name: random.normal(size=SHAPE) for name in names}
    for name in sides[0]:
        means[name] *= spread
    for name in sides[1]:
        means[name][1, 1] += shift
    traces = []
    for problem in range(prompts):
        for name in names:
            values = means[name] + 0.1 * random.normal(size=SHAPE)
            measures = {"mass_first": values.astype(np.float32)}
            traces.append(make_trace(f"p{problem}", name, measures=measures))
    return store(path, traces, conditions=("wo", *names)), *sides


def test_with_several_strings_the_string_is_the_unit(tmp_path):
    traces, old, new = store_strings(tmp_path / "s.traces", 4, shift=20.0)
    with traces:
        ranking = rank_heads(traces, "mass_first", old, new)
        one_against_one = rank_heads(traces, "mass_first", old[:1], new[:1])
        four_against_one = rank_heads(traces, "mass_first", old, new[:1])
        before, after = (
            np.mean(
                [traces.measures(["mass_first"], name, traces.problem_ids) for name in side],
                (0, 1, 2),
            )
            for side in (old, new)
        )
    first = ranking.iloc[0]
    assert (first["layer"], first["head"], first["units"]) == (3, 2, 8)
    assert first["p_adjusted"] == 2 / 70
    assert ranking.attrs["note"].endswith("heads with adjusted p < 0.05: 1 of 6")
    note = "4 strings against 4, each the mean of 6 prompts, all 70 permutations"
    assert ranking.attrs["note"].startswith(note)
    assert first["mean_difference"] == pytest.approx((after - before)[1, 1], rel=1e-5)
    assert four_against_one["p_adjusted"].min() >= 1 / 5
    note = "no p below 0.2 is possible, name more strings"
    assert note in four_against_one.attrs["note"]
    assert one_against_one["p_adjusted"].isna().all()
    assert one_against_one["t"].notna().all()


@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_a_note_warns_of_sides_with_unlike_scatter(spread, tmp_path):
    traces, *sides = store_strings(tmp_path / "x.traces", 6, prompts=2, spread=spread, seed=3)
    with traces:
        note = rank_heads(traces, "mass_first", *sides).attrs["note"]
    assert ("the two sides have very different spreads" in note) == (spread > 1)


def test_permuted_labels_equal_a_two_sample_t_test_and_a_loop_over_permutations():
    random = np.random.default_rng(5)
    without, with_it = random.normal(size=(4, 3)), random.normal(loc=(0, 1, 3), size=(5, 3))
    t, p, count, is_exact = permute_labels(without, with_it)
    assert t == pytest.approx(stats.ttest_ind(with_it, without).statistic)
    assert (count, is_exact) == (126, True)
    values = np.concatenate([with_it, without])
    largest = []
    for chosen in itertools.combinations(range(9), 5):
        is_chosen = np.isin(np.arange(9), chosen)
        statistics = stats.ttest_ind(values[is_chosen], values[~is_chosen]).statistic
        largest.append(np.abs(statistics).max())
    assert p == pytest.approx(np.mean(np.array(largest) >= np.abs(t)[:, None] - 1e-9, axis=1))
    _, drawn_p, *draws = permute_labels(without, with_it, draws=100)
    assert draws == [100, False]
    assert drawn_p == pytest.approx(p, abs=0.15)
    t, p, *_ = permute_labels(np.ones((3, 2)), np.ones((3, 2)))
    assert (t.tolist(), p.tolist()) == ([0, 0], [1, 1])
    assert np.isinf(permute_labels(np.zeros((3, 1)), np.ones((3, 1)))[0]).all()
