import itertools
from dataclasses import replace

import numpy as np
import pandas
import pytest
from scipy import stats

from attention_probe.analysis.head_ranking import permute_labels, rank_heads
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
    with AttentionTraces.open(
        write(tmp_path_factory.mktemp("ranking") / "x.traces", 30, shift=2.0)
    ) as opened:
        yield opened


def test_every_head_has_a_row_and_the_planted_one_is_first(traces):
    frame = rank_heads(traces, "bias_cosine", "random", "mless")
    assert frame["rank"].tolist() == list(range(1, 7))
    assert {*zip(frame["layer"], frame["head"], strict=True)} == {
        *itertools.product((1, 3), (1, 2, 3))
    }
    first = frame.iloc[0]
    assert (first["layer"], first["head"], first["units"]) == (3, 2, 30)
    assert first["mean_difference"] > 1 and not first["guaranteed"]
    assert frame["t"].abs().is_monotonic_decreasing and frame["p_adjusted"].isna().all()
    assert frame.attrs["note"].startswith(
        "30 prompts, ordered by t, no p: one string says nothing about others like it"
    )


def test_the_numbers_are_those_of_a_paired_t(traces):
    frame = rank_heads(traces, "bias_cosine", "random", "mless")
    one, other = (
        traces.measures(["bias_cosine"], c, traces.problem_ids)[0] for c in ("mless", "random")
    )
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
        assert {*frame["layer"][no_finding]} == expected and {*frame["layer"][~no_finding]} == {
            1,
            3,
        } - expected
        assert (frame["t"].isna() == no_finding).all()
        assert frame["mean_difference"][no_finding].abs().is_monotonic_decreasing
        assert no_finding.is_monotonic_increasing and frame["standard_error"].notna().all()
        assert (
            "is no finding where it is guaranteed: one of the two has no filler"
            in frame.attrs["note"]
        )
    between = rank_heads(traces, measure, "random", "mless")
    assert not between["guaranteed"].any() and between["t"].notna().all()


def test_prompts_of_one_problem_are_one_unit(traces, tmp_path):
    draws = [
        replace(one, problem_id=f"{one.problem_id}#{n}", cluster=one.problem_id)
        for one in traces
        for n in "123"
    ]
    alone = rank_heads(traces, "bias_cosine", "random", "mless")
    with AttentionTraces.open(write_traces(tmp_path / "x.traces", draws)) as opened:
        frame = rank_heads(opened, "bias_cosine", "random", "mless")
    pandas.testing.assert_frame_equal(frame, alone)
    assert frame.attrs["note"].startswith("90 prompts of 30 problems, ordered by t")


def test_equal_differences_are_infinitely_far_and_zeros_not_at_all(tmp_path):
    size = {"wo": 0.0, "mless": 0.1, "random": 0.0}
    traces = [
        make_trace(
            f"p{n}", name, measures={"mass_first": np.array([[value, 0, -value]] * 2, np.float32)}
        )
        for n in range(8)
        for name, value in size.items()
    ]
    with AttentionTraces.open(write_traces(tmp_path / "x.traces", traces)) as opened:
        frame = rank_heads(opened, "mass_first", "random", "mless")
    assert dict(zip(frame["head"], frame["t"], strict=True)) == {1: np.inf, 2: 0.0, 3: -np.inf}


def test_what_cannot_be_ranked_is_told(traces, tmp_path):
    for arguments, message in [
        (("size", "wo", "mless"), "has no size under wo: it has .*mass_f"),
        (("bias_cosine", "mless", "mless"), "different conditions, got mless against mless"),
        (("bias_cosine", "mless", ()), "different conditions, got none against mless"),
        (("bias_cosine", "wo", "mless"), "has no bias_cosine under wo: "),
        (("bias", "random", "mless"), "has no bias under random: .*--decompose"),
        (("bias_cosine", "mful", "mless"), "has no problem under all of mful, mless"),
    ]:
        with pytest.raises(ConfigError, match=message):
            rank_heads(traces, *arguments)
    with (
        AttentionTraces.open(write(tmp_path / "x.traces", 1)) as lone,
        pytest.raises(ConfigError, match="1 problem cannot rank heads: the problem is the unit"),
    ):
        rank_heads(lone, "bias_cosine", "random", "mless")


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
            traces.append(
                make_trace(f"p{problem}", name, measures={"mass_first": size.astype(np.float32)})
            )
    return write_traces(path, traces, conditions=("wo", *names)), names[:strings], names[strings:]


def test_with_several_strings_the_string_is_the_unit(tmp_path):
    path, old, new = write_strings(tmp_path / "s.traces", 4, shift=20.0)
    with AttentionTraces.open(path) as traces:
        frame = rank_heads(traces, "mass_first", old, new)
        lone = rank_heads(traces, "mass_first", old[0], new[0])
        values = {
            name: traces.measures(["mass_first"], name, traces.problem_ids)[0]
            for name in (*old, *new)
        }
        uneven = rank_heads(traces, "mass_first", old, new[0])
    first = frame.iloc[0]
    assert (first["layer"], first["head"], first["units"]) == (3, 2, 8) and first[
        "p_adjusted"
    ] == 2 / 70
    assert frame.attrs["significant"] == 1
    assert frame.attrs["note"].startswith(
        "4 strings against 4, each the mean of 6 prompts, all 70 permutations"
    )
    means = [np.mean([values[name][:, 1, 1].mean() for name in side]) for side in (old, new)]
    assert first["mean_difference"] == pytest.approx(means[1] - means[0], rel=1e-5)
    assert (
        uneven["p_adjusted"].min() >= 1 / 5
        and "no p below 0.2 is possible, name more strings" in uneven.attrs["note"]
    )
    assert lone["p_adjusted"].isna().all() and lone["t"].notna().all()


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
    assert ("the two sides have very different spreads" in note) == (spread > 1)


def test_permuted_labels_are_a_two_sample_t_and_every_permutation_tried_in_a_loop():
    random = np.random.default_rng(5)
    without, with_it = random.normal(size=(4, 3)), random.normal(loc=(0, 1, 3), size=(5, 3))
    t, p, count, exact = permute_labels(without, with_it)
    assert t == pytest.approx(stats.ttest_ind(with_it, without).statistic) and (count, exact) == (
        126,
        True,
    )
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
