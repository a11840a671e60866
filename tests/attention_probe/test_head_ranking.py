import itertools
from dataclasses import replace

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from attention_probe.analysis.head_ranking import flip_signs, permute_labels, rank_heads, t_values
from attention_probe.traces import AttentionTraces
from harness.errors import ConfigError
from tests.make import HEADS, LAYERS, SHAPE, make_trace, write_traces


def write(path, count, *, shift=0.0, seed=0):
    """`mless` and `random` differ in one measure by noise, and in layer 2, head 1 by `shift` standard deviations."""
    random = np.random.default_rng(seed)
    traces = []
    for n in range(count):
        for condition in ("wo", "mless", "random"):
            size = random.normal(size=(len(LAYERS), HEADS)).astype(np.float32)
            size[1, 1] += shift * (condition == "mless")
            measures = {"mass_filler": np.abs(size), "mass_problem": size}
            if condition != "wo":
                measures["bias_cosine"] = size
            traces.append(make_trace(f"p{n}", condition, seed=n, measures=measures))
    return write_traces(path, traces)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    with AttentionTraces.open(write(tmp_path_factory.mktemp("ranking") / "x.traces", 30, shift=2.0)) as opened:
        yield opened


def test_every_head_has_a_row_and_the_planted_one_is_first(traces):
    frame = rank_heads(traces, "bias_cosine", "random", "mless", draws=2000)
    assert frame["rank"].tolist() == list(range(1, 7))
    assert {*zip(frame["layer"], frame["head"], strict=True)} == {*itertools.product((1, 3), (1, 2, 3))}
    first = frame.iloc[0]
    assert (first["layer"], first["head"], first["n"]) == (3, 2, 30)
    assert first["p_adjusted"] < 0.001 and first["mean_difference"] > 1 and not first["guaranteed"]
    assert frame["p_adjusted"].is_monotonic_increasing and (frame["p_adjusted"].iloc[1:] > 0.05).all()
    assert frame.attrs["note"].startswith("30 prompts, 2000 sign flips; p adjusted for all heads (max-T)")


def test_the_numbers_are_those_of_a_paired_t(traces):
    frame = rank_heads(traces, "bias_cosine", "random", "mless", draws=100)
    one, other = (traces.measures(["bias_cosine"], c, traces.problem_ids)[0] for c in ("mless", "random"))
    for row in frame.itertuples():
        place = LAYERS.index(row.layer - 1), row.head - 1
        values = (one - other)[:, place[0], place[1]]
        assert row.mean_difference == pytest.approx(values.mean())
        assert row.standard_error == pytest.approx(stats.sem(values))
        assert row.t == pytest.approx(stats.ttest_1samp(values, 0).statistic)


@pytest.mark.parametrize("measure", ["mass_filler", "mass_problem"])
def test_what_softmax_guarantees_has_no_p_and_says_so(traces, measure):
    for baseline, condition in (("wo", "mless"), ("mless", "wo")):
        frame = rank_heads(traces, measure, baseline, condition)
        no_finding = frame["guaranteed"]
        expected = {1, 3} if measure == "mass_filler" else {1}
        assert {*frame["layer"][no_finding]} == expected and {*frame["layer"][~no_finding]} == {1, 3} - expected
        assert (frame["p_adjusted"].isna() == no_finding).all() and (frame["t"].isna() == no_finding).all()
        assert frame["mean_difference"][no_finding].abs().is_monotonic_decreasing
        assert no_finding.is_monotonic_increasing and frame["standard_error"].notna().all()
        assert "is no finding where it is guaranteed: one of the two has no filler" in frame.attrs["note"]
    between = rank_heads(traces, measure, "random", "mless", draws=100)
    assert not between["guaranteed"].any() and between["p_adjusted"].notna().all()


def test_prompts_of_one_problem_are_one_unit(traces, tmp_path):
    draws = [replace(one, problem_id=f"{one.problem_id}#{n}", cluster=one.problem_id) for one in traces for n in "123"]
    alone = rank_heads(traces, "bias_cosine", "random", "mless", draws=500)
    with AttentionTraces.open(write_traces(tmp_path / "x.traces", draws)) as opened:
        frame = rank_heads(opened, "bias_cosine", "random", "mless", draws=500)
    pandas.testing.assert_frame_equal(frame, alone)
    assert frame.attrs["note"].startswith("90 prompts of 30 problems, 500 sign flips")


def test_a_small_number_of_prompts_is_enumerated_and_its_limit_told(tmp_path):
    with AttentionTraces.open(write(tmp_path / "x.traces", 4, shift=50.0)) as few:
        frame = rank_heads(few, "bias_cosine", "random", "mless")
    assert frame["p_adjusted"].min() == 1 / 8
    assert frame.attrs["note"].startswith(
        "4 prompts, all 8 sign flips; p adjusted for all heads (max-T); no p below 0.12"
    )


def test_what_cannot_be_ranked_is_told(traces, tmp_path):
    for arguments, told in [
        (("size", "wo", "mless"), "has no size under wo: it has .*mass_f"),
        (("bias_cosine", "mless", "mless"), "different conditions, got mless against mless"),
        (("bias_cosine", "mless", ()), "different conditions, got none against mless"),
        (("bias_cosine", "wo", "mless"), "has no bias_cosine under wo: "),
        (("bias", "random", "mless"), "has no bias under random: .*--decompose"),
        (("bias_cosine", "mful", "mless"), "has no problem under all of mful, mless"),
    ]:
        with pytest.raises(ConfigError, match=told):
            rank_heads(traces, *arguments)
    with (
        AttentionTraces.open(write(tmp_path / "x.traces", 1)) as lone,
        pytest.raises(ConfigError, match="1 problem cannot rank heads: the problem is the unit"),
    ):
        rank_heads(lone, "bias_cosine", "random", "mless")


DIFFERENCES = hnp.arrays(
    np.float64, st.tuples(st.integers(2, 7), st.integers(1, 4)), elements=st.integers(-4, 4).map(lambda n: n / 4)
)


@given(DIFFERENCES)
@settings(max_examples=60)
def test_exact_p_equals_every_flip_tried_in_a_loop(differences):
    """All 2^n flips, each with t computed from scratch."""
    observed = np.abs(t_values(differences))
    largest = [
        np.abs(t_values(differences * np.array(signs)[:, None])).max()
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    expected = [np.mean([value >= head * (1 - 1e-9) for value in largest]) for head in observed]
    np.testing.assert_allclose(flip_signs(differences).p, expected)


@given(DIFFERENCES, st.permutations(range(4)))
@settings(max_examples=30)
def test_adjusted_p_is_ordered_as_t_and_does_not_care_for_sign_scale_or_order(differences, order):
    p, t = flip_signs(differences).p, np.abs(t_values(differences))
    ascending = np.argsort(t)
    assert (np.diff(p[ascending]) <= 1e-12).all() and (p > 0).all() and (p <= 1).all()
    np.testing.assert_allclose(flip_signs(-2 * differences).p, p)
    order = [head for head in order if head < differences.shape[1]]
    np.testing.assert_allclose(flip_signs(differences[:, order]).p, p[order])


def test_a_head_without_a_prompts_value_is_judged_by_the_others():
    random = np.random.default_rng(0)
    whole = random.normal(size=(10, 3))
    holed = whole.copy()
    holed[2:4, 1] = np.nan
    assert t_values(holed)[1] == pytest.approx(t_values(np.delete(whole, [2, 3], axis=0))[1])
    assert t_values(holed)[0] == pytest.approx(t_values(whole)[0])
    assert np.isfinite(flip_signs(holed).p).all()


def test_equal_differences_are_infinitely_far_and_zeros_not_at_all():
    differences = np.column_stack([np.full(8, 0.1), np.zeros(8), np.full(8, -0.3)])
    assert t_values(differences).tolist() == [np.inf, 0.0, -np.inf]
    assert flip_signs(differences).p.tolist() == [1 / 128, 1.0, 1 / 128]


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_under_the_null_hardly_more_than_one_in_twenty_families_has_a_find(correlation):
    """300 families of 40 heads in which nothing is true, skewed within prompts but symmetric between conditions."""
    random = np.random.default_rng(11)
    found = 0
    for family in range(300):
        shared, own = random.standard_t(4, size=(12, 1)), random.standard_t(4, size=(12, 40))
        differences = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
        found += flip_signs(differences, draws=400, seed=family).p.min() <= 0.05
    assert found <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)  # three standard errors of a rate of 0.05
    assert found >= 2  # and it is not merely never


def write_strings(path, strings, *, prompts=6, shift=0.0, seed=0):
    """So many strings of either kind; those called `b` differ in layer 2, head 1 by `shift` from those called `a`."""
    random = np.random.default_rng(seed)
    names = [f"{kind}{n}" for kind in "ab" for n in range(strings)]
    own = {name: random.normal(size=(len(LAYERS), HEADS)) for name in names}
    traces = []
    for problem in range(prompts):
        for name in ("wo", *names):
            size = own.get(name, 0) + 0.1 * random.normal(size=(len(LAYERS), HEADS))
            size[1, 1] += shift * name.startswith("b")
            traces.append(make_trace(f"p{problem}", name, measures={"mass_first": size.astype(np.float32)}))
    return write_traces(path, traces, conditions=("wo", *names)), names[:strings], names[strings:]


def test_with_several_strings_the_string_is_the_unit(tmp_path):
    path, old, new = write_strings(tmp_path / "s.traces", 4, shift=20.0)
    with AttentionTraces.open(path) as traces:
        frame = rank_heads(traces, "mass_first", old, new)
        lone = rank_heads(traces, "mass_first", old[0], new[0])
        values = {name: traces.measures(["mass_first"], name, traces.problem_ids)[0] for name in (*old, *new)}
        uneven = rank_heads(traces, "mass_first", old, new[0])
    first = frame.iloc[0]
    assert (first["layer"], first["head"], first["n"]) == (3, 2, 8) and first["p_adjusted"] == 2 / 70
    assert frame.attrs["found"] == 1
    assert frame.attrs["note"].startswith("4 strings against 4, each the mean of 6 prompts, all 70 permutations")
    means = [np.mean([values[name][:, 1, 1].mean() for name in side]) for side in (old, new)]
    assert first["mean_difference"] == pytest.approx(means[1] - means[0], rel=1e-5)
    assert (
        uneven["p_adjusted"].min() >= 1 / 5 and "no p below 0.2 is possible, name more strings" in uneven.attrs["note"]
    )
    assert lone.attrs["found"] > 1, "one string against one: whatever differs between the two"


@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_sides_of_unlike_scatter_are_warned_of(spread, tmp_path):
    random = np.random.default_rng(3)
    names = [f"{side}{n}" for side in "ab" for n in range(6)]
    own = {name: random.normal(size=SHAPE) * (spread if name[0] == "a" else 1) for name in names}
    traces = [
        make_trace(f"p{n}", name, measures={"bias_cosine": own[name].astype(np.float32)})
        for n in range(2)
        for name in names
    ]
    path = write_traces(tmp_path / "x.traces", traces, conditions=("wo", *names))
    with AttentionTraces.open(path) as opened:
        note = rank_heads(opened, "bias_cosine", names[:6], names[6:]).attrs["note"]
    assert ("the sides scatter unlike" in note) == (spread > 1)


def test_permuted_labels_are_a_two_sample_t_and_every_permutation_tried_in_a_loop():
    random = np.random.default_rng(5)
    without, with_it = random.normal(size=(4, 3)), random.normal(loc=(0, 1, 3), size=(5, 3))
    t, p, count, exact = permute_labels(without, with_it)
    assert t == pytest.approx(stats.ttest_ind(with_it, without).statistic) and (count, exact) == (126, True)
    values = np.concatenate([with_it, without])
    largest = []
    for split in itertools.combinations(range(9), 5):
        rest = [place for place in range(9) if place not in split]
        largest.append(np.abs(stats.ttest_ind(values[list(split)], values[rest]).statistic).max())
    assert p == pytest.approx([np.mean(np.array(largest) >= abs(one) - 1e-9) for one in t])
    drawn = permute_labels(without, with_it, draws=100)
    assert drawn[2:] == (100, False) and np.abs(drawn[1] - p).max() < 0.15
    same = permute_labels(np.ones((3, 2)), np.ones((3, 2)))
    assert same[0].tolist() == [0, 0] and same[1].tolist() == [1, 1]
    assert np.isinf(permute_labels(np.zeros((3, 1)), np.ones((3, 1)))[0]).all()


def test_permuted_labels_err_no_more_than_they_say_however_skewed_the_strings_are():
    random, found = np.random.default_rng(6), 0
    for _ in range(300):
        without, with_it = (random.lognormal(size=(4, 24)) for _ in range(2))
        found += permute_labels(without, with_it)[1].min() <= 0.05
    assert found <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)


def test_one_string_against_one_is_ordered_by_t_and_has_no_p(traces, tmp_path):
    first = {one.condition: one.token_ids for one in traces if one.problem_id == "p0"}
    same = [replace(one, token_ids=first[one.condition].copy(), roles=one.roles.copy()) for one in traces]
    for number, one in enumerate(one for one in same if one.filler_span):
        one.roles[4], one.token_ids[4] = 0, number  # an example's token, between a filler's before each
    with AttentionTraces.open(write_traces(tmp_path / "x.traces", same)) as opened:
        frame = rank_heads(opened, "bias_cosine", "random", "mless")
    fresh = rank_heads(traces, "bias_cosine", "random", "mless")
    assert frame["p_adjusted"].isna().all()
    assert frame["t"].tolist() == fresh["t"].tolist()
    assert "one string says nothing about others like it" in frame.attrs["note"]
