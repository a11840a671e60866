import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attention_probe.analysis.average_curves import (
    CurveSettings,
    average_curves,
    bootstrap_band,
    chosen_problems,
    shared_problems,
)
from attention_probe.traces import AttentionTraces
from harness.errors import ConfigError
from tests.make import aligned_curve, full_curve, make_trace, write_traces

SIZES = (9, 12, 7, 9)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Four prompts of three lengths; the filler stands at the same place in all, except under `random`."""
    records = [
        make_trace(f"p{n}", name, size=s, seed=n)
        for n, s in enumerate(SIZES)
        for name in ("wo", "mless")
    ]
    records += [
        make_trace(f"p{n}", "random", size=s, seed=n, start=2 + n // 3) for n, s in enumerate(SIZES)
    ]
    path = write_traces(
        tmp_path_factory.mktemp("curves") / "x.traces", [*records, make_trace("lone", "wo")]
    )
    with AttentionTraces.open(path) as opened:
        yield opened


def loop(traces, condition, layer, head, definition, view, exclude_first):
    values = {}
    for trace in (one for one in traces if one.condition == condition):
        means = trace.mean_common if definition == "common" else trace.mean_all
        for place in range(len(trace.tokens)):
            x = place if view == "full" else int(trace.original_pos[place])
            index = traces.header.layers.index(layer - 1)
            value = means[index, head - 1, place]
            if x >= (1 if exclude_first else 0) and not np.isnan(value):
                values.setdefault(x, []).append(float(value))
    xs = sorted(values)
    return xs, [sum(values[x]) / len(values[x]) for x in xs], [len(values[x]) for x in xs]


@given(
    condition=st.sampled_from(["wo", "mless"]),
    layer=st.sampled_from([1, 3]),
    head=st.integers(1, 3),
    definition=st.sampled_from(["common", "published"]),
    view=st.sampled_from(["aligned", "full"]),
    exclude_first=st.booleans(),
)
@settings(max_examples=30)
def test_the_mean_curve_equals_a_plain_loop(
    traces, condition, layer, head, definition, view, exclude_first
):
    ask = {"condition": condition, "layer": layer, "head": head, "definition": definition}
    draw = aligned_curve if view == "aligned" else full_curve
    curve = draw(traces, **ask, exclude_first=exclude_first)
    xs, means, counts = loop(traces, condition, layer, head, definition, view, exclude_first)
    assert curve.x.tolist() == xs and curve.count.tolist() == counts
    np.testing.assert_allclose(curve.mean, means, rtol=1e-12)
    assert {*curve.view} == {view} and {*curve.definition} == {definition}
    assert {*curve.first_token_excluded} == {exclude_first} and ({*curve.layer}, {*curve.head}) == (
        {layer},
        {head},
    )


def test_aligned_leaves_the_filler_out_and_full_shades_it(traces):
    ask = {"condition": "mless", "layer": 1, "head": 2, "problem_ids": ["p1"]}
    aligned, full = aligned_curve(traces, **ask), full_curve(traces, **ask)
    assert aligned.x.tolist() == list(range(11)) and not aligned.in_filler.any()
    assert full.x.tolist() == list(range(15)) and full.x[full.in_filler].tolist() == [3, 4, 5, 6]
    np.testing.assert_array_equal(
        aligned.mean, full.mean[[0, 1, 2, *range(7, 15)]].astype(np.float64)
    )
    assert (
        {*full.prompts} == {1} and np.isnan([full.low, full.high]).all() and set(full.count) == {1}
    )


def test_where_few_prompts_contribute_the_value_stands_with_its_count_and_a_lone_one_has_no_band(
    traces,
):
    curve = aligned_curve(traces, condition="mless", layer=1, head=1)
    assert curve.count.tolist() == [4] * 6 + [3, 3] + [1] * 3 and {*curve.prompts} == {4}
    assert (
        np.isnan(curve.low[-3:]).all()
        and np.isfinite(curve.low[:-3]).all()
        and np.isfinite(curve.mean).all()
    )


def test_conditions_set_side_by_side_are_of_the_same_problems(traces):
    assert shared_problems(traces, ["wo"]) == ["p0", "p1", "p2", "p3", "lone"]
    assert shared_problems(traces, ["wo", "mless"]) == ["p0", "p1", "p2", "p3"]
    chosen = shared_problems(traces, ["wo", "mless"])
    assert (
        aligned_curve(traces, condition="wo", layer=1, head=1, problem_ids=chosen).prompts[0] == 4
    )
    with pytest.raises(
        ConfigError, match=r"has no problem under all of wo, mful; it has wo, mless, random"
    ):
        shared_problems(traces, ["wo", "mful"])


def test_controls_are_not_among_the_problems_chosen(tmp_path):
    records = [
        make_trace(f"p{n}", name, seed=n, control=n == 1)
        for n in range(3)
        for name in ("wo", "mless")
    ]
    with AttentionTraces.open(write_traces(tmp_path / "x.traces", records)) as traces:
        assert chosen_problems(traces, ["wo", "mless"]) == ["p0", "p2"]
        ask = {"condition": "mless", "baseline": "wo", "layer": 1, "head": 1}
        assert aligned_curve(traces, **ask).prompts[0] == 2


def test_the_difference_is_paired_by_problem_whatever_the_order(traces):
    curve = aligned_curve(
        traces, condition="random", baseline="mless", layer=1, head=3, problem_ids=["p3", "p0"]
    )
    expected = []
    for name in ("p0", "p3"):
        one, other = (traces.get(name, condition) for condition in ("random", "mless"))
        one, other = (t.mean_common[0, 2][t.original_pos >= 0] for t in (one, other))
        expected.append(one.astype(float) - other)
    np.testing.assert_allclose(curve.mean, np.mean(expected, axis=0)[:-1])
    assert {*curve.condition} == {"random - mless"} and {*curve.note} == {None}
    against_nothing = aligned_curve(traces, condition="mless", baseline="wo", layer=1, head=3)
    assert "softmax guarantees it, whatever is inserted" in against_nothing.note[0]


def test_a_region_shared_by_most_is_shaded_for_these_only_and_said(traces):
    curve = full_curve(traces, condition="random", layer=1, head=1)
    assert curve.x[curve.in_filler].tolist() == [2, 3, 4, 5] and {*curve.prompts} == {3}
    assert (
        curve.note[0] == "mean over the 3 of 4 prompts whose filler stands at the shaded positions"
    )
    with pytest.raises(ConfigError, match="none is shared by more than half of the 2 prompts"):
        full_curve(traces, condition="random", layer=1, head=1, problem_ids=["p0", "p3"])
    assert not full_curve(traces, condition="wo", layer=1, head=1).in_filler.any()


def test_a_filler_before_each_example_is_shaded_where_it_stands(tmp_path):
    records = [make_trace(f"p{n}", "mless") for n in range(3)]
    for one, example in zip(records, (4, 4, 5), strict=True):
        one.roles[example] = 0
    with AttentionTraces.open(write_traces(tmp_path / "x.traces", records)) as traces:
        curve = full_curve(traces, condition="mless", layer=1, head=1)
    assert curve.x[curve.in_filler].tolist() == [3, 5, 6] and {*curve.prompts} == {2}


TABLES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12),
    elements=st.floats(0, 1) | st.just(np.nan),
)


@given(TABLES, st.integers(0, 5))
@settings(max_examples=60)
def test_the_band_holds_the_mean_and_lies_within_the_values(table, seed):
    low, high = bootstrap_band(table, np.arange(len(table)), draws=400, seed=seed)
    for column, (lower, upper) in enumerate(zip(low, high, strict=True)):
        values = table[np.isfinite(table[:, column]), column]
        if len(values) < 2:
            assert np.isnan(lower) and np.isnan(upper)
        else:
            assert values.min() - 1e-12 <= lower <= values.mean() + 1e-12
            assert values.mean() - 1e-12 <= upper <= values.max() + 1e-12


@given(TABLES.filter(lambda table: np.isfinite(table).any()))
@settings(max_examples=20)
def test_the_band_equals_prompts_drawn_one_by_one(table):
    """The weights of a draw are how often each prompt is in it: the same as drawing rows and taking their mean."""
    size = len(table)
    counts = np.random.default_rng(3).multinomial(size, np.full(size, 1 / size), size=100)
    column = int(np.isfinite(table).sum(axis=0).argmax())
    means = []
    for draw in counts:
        rows = np.repeat(table[:, column], draw)
        if np.isfinite(rows).any():
            means.append(np.nanmean(rows))
    low, high = bootstrap_band(table, np.arange(size), draws=100, seed=3)
    if np.isfinite(table[:, column]).sum() > 1:
        np.testing.assert_allclose(
            [low[column], high[column]], np.quantile(means, [0.025, 0.975]), atol=1e-12
        )
    thrice = bootstrap_band(
        np.repeat(table, 3, axis=0), np.repeat(np.arange(size), 3), draws=100, seed=3
    )
    np.testing.assert_allclose(
        thrice, (low, high), atol=1e-12
    )  # prompts of one problem, which say nothing more


def test_the_band_covers_the_true_mean_about_as_often_as_it_says():
    random = np.random.default_rng(5)
    hits = [
        (low[0] <= 0.5) & (0.5 <= high[0])
        for low, high in (
            bootstrap_band(random.random((40, 1)), np.arange(40), draws=400, seed=n)
            for n in range(400)
        )
    ]
    assert 0.90 <= np.mean(hits) <= 0.98


def test_every_point_says_what_it_is_of(traces):
    of_two_heads = CurveSettings(layer=3, heads=[2, 1], definition="published")
    frame = average_curves(traces, of_two_heads, conditions=["mless", "wo"], problem_ids=["p2"])
    assert frame.groupby(["head", "condition"], sort=False).size().to_dict() == {
        (head, condition): 6 for condition in ("mless", "wo") for head in (2, 1)
    }
    tail = frame[frame["condition"] == "wo"]
    assert tail["low"].isna().all()
    assert {*tail["definition"]} == {"published"}
