"""The ranking of heads: adjusted for all heads, exact where it can be, and silent on what softmax guarantees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attention_probe.analysis.head_ranking import max_t, rank_heads, t_values
from attention_probe.traces import AttentionTraces
from harness.errors import ConfigError
from tests.example_traces import HEADS, LAYERS, make_trace, write_traces


def write(path, count, *, shift=0.0, seed=0):
    """`mless` and `random` differ in one measure by noise, and in layer 2, head 1 by `shift` standard deviations."""
    random = np.random.default_rng(seed)
    traces = []
    for n in range(count):
        for condition in ("wo", "mless", "random"):
            entropy = random.normal(size=(len(LAYERS), HEADS)).astype(np.float32)
            entropy[1, 1] += shift * (condition == "mless")
            measures = {"mass_filler": np.abs(entropy), "mass_problem": entropy}
            if condition != "wo":
                measures["filler_entropy"] = entropy
            traces.append(make_trace(f"p{n}", condition, seed=n, measures=measures))
    return write_traces(path, traces)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    with AttentionTraces.open(write(tmp_path_factory.mktemp("ranking") / "x.traces", 30, shift=2.0)) as opened:
        yield opened


def test_every_head_has_a_row_and_the_planted_one_is_first(traces):
    frame = rank_heads(traces, "filler_entropy", "random", "mless", draws=2000)
    assert frame["rank"].tolist() == list(range(1, 7))
    assert {*zip(frame["layer"], frame["head"], strict=True)} == {*itertools.product((0, 2), (0, 1, 2))}
    first = frame.iloc[0]
    assert (first["layer"], first["head"], first["label"], first["n"]) == (2, 1, "Layer 3 Head 2", 30)
    assert first["p_adjusted"] < 0.001 and first["mean_difference"] > 1 and not first["guaranteed"]
    assert frame["p_adjusted"].is_monotonic_increasing and (frame["p_adjusted"].iloc[1:] > 0.05).all()
    assert frame.attrs["heads"] == 6 and frame.attrs["flips"] == 2000
    assert frame.attrs["note"] == "30 prompts, 2000 sign flips; p adjusted for all heads (max-T)"


def test_the_numbers_are_those_of_a_paired_t(traces):
    from scipy import stats

    frame = rank_heads(traces, "filler_entropy", "random", "mless", draws=100)
    _, one = traces.measure("filler_entropy", "mless")
    _, other = traces.measure("filler_entropy", "random")
    for row in frame.itertuples():
        place = LAYERS.index(row.layer), row.head
        values = (one - other)[:, place[0], place[1]]
        assert row.mean_difference == pytest.approx(values.mean())
        assert row.standard_error == pytest.approx(stats.sem(values))
        assert row.t == pytest.approx(stats.ttest_1samp(values, 0).statistic)


@pytest.mark.parametrize("measure", ["mass_filler", "mass_problem"])
def test_what_softmax_guarantees_has_no_p_and_says_so(traces, measure):
    for baseline, condition in (("wo", "mless"), ("mless", "wo")):
        frame = rank_heads(traces, measure, baseline, condition)
        assert frame["guaranteed"].all() and frame["p_adjusted"].isna().all() and frame["t"].isna().all()
        assert frame["mean_difference"].abs().is_monotonic_decreasing and frame["standard_error"].notna().all()
        assert "is no finding: one of the two has no filler" in frame.attrs["note"]
    between = rank_heads(traces, measure, "random", "mless", draws=100)
    assert not between["guaranteed"].any() and between["p_adjusted"].notna().all()


def test_a_small_number_of_prompts_is_enumerated_and_its_limit_told(tmp_path):
    with AttentionTraces.open(write(tmp_path / "x.traces", 4, shift=50.0)) as few:
        frame = rank_heads(few, "filler_entropy", "random", "mless")
    assert frame.attrs["exact"] and frame.attrs["flips"] == 8 and frame["p_adjusted"].min() == 1 / 8
    assert frame.attrs["note"].startswith(
        "4 prompts, all 8 sign flips; p adjusted for all heads (max-T); no p below 0.12"
    )


def test_what_cannot_be_ranked_is_told(traces, tmp_path):
    for arguments, told in [
        (("entropy", "wo", "mless"), "there is no measure 'entropy'. Choose one of mass_first"),
        (("filler_entropy", "mless", "mless"), "mless cannot be contrasted with itself"),
        (
            ("filler_entropy", "wo", "mless"),
            "means nothing without a filler, and wo has none. Contrast two of mless, ran",
        ),
        (("bias", "random", "mless"), r"has no bias of 30 of 30 .* \(--decompose for the parts of the change\)"),
        (("filler_entropy", "mful", "mless"), "has no problem under all of mful, mless"),
    ]:
        with pytest.raises(ConfigError, match=told):
            rank_heads(traces, *arguments)
    with pytest.raises(ConfigError, match="1 prompt cannot rank heads: the prompt is the unit"):
        rank_heads(traces, "filler_entropy", "random", "mless", problem_ids=["p0"])
    empty = {"filler_entropy": np.full((2, 3), np.nan, dtype=np.float32)}
    records = [make_trace(f"p{n}", c, measures=empty) for n in range(3) for c in ("mless", "random")]
    with AttentionTraces.open(write_traces(tmp_path / "nan.traces", records)) as nothing:
        with pytest.raises(ConfigError, match="filler_entropy has no value in any prompt under mless and random both"):
            rank_heads(nothing, "filler_entropy", "random", "mless")


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
    np.testing.assert_allclose(max_t(differences), expected)


@given(DIFFERENCES, st.permutations(range(4)))
@settings(max_examples=30)
def test_adjusted_p_is_ordered_as_t_and_does_not_care_for_sign_scale_or_order(differences, order):
    p, t = max_t(differences), np.abs(t_values(differences))
    ascending = np.argsort(t)
    assert (np.diff(p[ascending]) <= 1e-12).all() and (p > 0).all() and (p <= 1).all()
    np.testing.assert_allclose(max_t(-2 * differences), p)
    order = [head for head in order if head < differences.shape[1]]
    np.testing.assert_allclose(max_t(differences[:, order]), p[order])


def test_a_head_without_a_prompts_value_is_judged_by_the_others():
    random = np.random.default_rng(0)
    whole = random.normal(size=(10, 3))
    holed = whole.copy()
    holed[2:4, 1] = np.nan
    assert t_values(holed)[1] == pytest.approx(t_values(np.delete(whole, [2, 3], axis=0))[1])
    assert t_values(holed)[0] == pytest.approx(t_values(whole)[0])
    assert np.isfinite(max_t(holed)).all()


def test_equal_differences_are_infinitely_far_and_zeros_not_at_all():
    differences = np.column_stack([np.full(8, 0.1), np.zeros(8), np.full(8, -0.3)])
    assert t_values(differences).tolist() == [np.inf, 0.0, -np.inf]
    assert max_t(differences).tolist() == [1 / 128, 1.0, 1 / 128]


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_under_the_null_hardly_more_than_one_in_twenty_families_has_a_find(correlation):
    """300 families of 40 heads in which nothing is true, skewed within prompts but symmetric between conditions."""
    random = np.random.default_rng(11)
    found = 0
    for family in range(300):
        shared, own = random.standard_t(4, size=(12, 1)), random.standard_t(4, size=(12, 40))
        differences = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
        found += max_t(differences, draws=400, seed=family).min() <= 0.05
    assert found <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)  # three standard errors of a rate of 0.05
    assert found >= 2  # and it is not merely never


def test_draws_are_seeded(traces):
    one, again, other = (
        rank_heads(traces, "filler_entropy", "random", "mless", draws=200, seed=seed)["p_adjusted"].tolist()
        for seed in (1, 1, 2)
    )
    assert one == again != other


def test_controls_are_not_ranked_and_the_selection_is_told(tmp_path):
    records = [make_trace(f"p{n}", name, seed=n, control=n > 3) for n in range(6) for name in ("mless", "random")]
    with AttentionTraces.open(write_traces(tmp_path / "x.traces", records, on_outcome=True)) as traces:
        frame = rank_heads(traces, "mass_filler", "random", "mless")
    assert set(frame["n"]) == {4} and frame.attrs["note"].endswith("selected on outcome")
