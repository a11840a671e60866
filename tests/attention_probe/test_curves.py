import re

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attention_probe.analysis.average_curves import (
    bootstrap_band,
    shared_problems,
)
from harness.constants import DEFAULT_SEED
from harness.errors import ConfigError
from tests.attention_probe.conftest import store, traces_under
from tests.make import (
    ROOT,
    aligned_curve,
    full_curve,
    make_trace,
    module_fixture,
    with_cases,
    write_traces,
)

SIZES = (9, 12, 7, 9)
FIRST_HEAD = {"layer": 0, "head": 0}


@module_fixture
def traces(tmp_path_factory):
    """Four prompts of three lengths; the filler has the same position in all but under `random`."""
    prompts = [make_trace("lone", "wo")]
    for number, size in enumerate(SIZES):
        shape = {"size": size, "seed": number}
        prompts += [make_trace(f"p{number}", name, **shape) for name in ("wo", "mless")]
        prompts.append(make_trace(f"p{number}", "random", start=2 + number // 3, **shape))
    with store(tmp_path_factory.mktemp("curves") / "x.traces", prompts) as traces:
        yield traces


def average_by_position(traces, condition, options):
    """Mean and count of a curve's values at each position."""
    layer = traces.header.layers.index(options["layer"])
    curves = []
    for trace in traces_under(traces, condition):
        means = trace.mean_common if options["definition"] == "common" else trace.mean_all
        curve = pandas.Series(means[layer, options["head"]].astype(float))
        curves.append(curve if options["view"] == "full" else curve.set_axis(trace.original_pos))
    values = pandas.concat(curves).dropna()
    return values[values.index >= options["exclude_first"]].groupby(level=0).agg(["mean", "count"])


@with_cases
def test_a_curve_is_the_mean_at_each_position_with_a_band_of_several_values(
    traces, condition, options
):
    curve = aligned_curve(traces, condition=condition, **options)
    expected = average_by_position(traces, condition, options)
    assert curve.x.tolist() == expected.index.tolist()
    assert curve.count.tolist() == expected["count"].tolist()
    np.testing.assert_allclose(curve.mean, expected["mean"], rtol=1e-12)
    for bound in (curve.low, curve.high):
        assert np.isfinite(bound).tolist() == (curve.count > 1).tolist()
    for name in ("layer", "head"):
        assert {*getattr(curve, name)} == {options[name] + 1}
    for name in ("definition", "view"):
        assert {*getattr(curve, name)} == {options[name]}
    assert {*curve.first_token_excluded} == {options["exclude_first"]}
    has_filler = (condition, options["view"]) == ("mless", "full")
    assert curve.x[curve.in_filler].tolist() == ([3, 4, 5, 6] if has_filler else [])


def test_compared_conditions_have_the_same_problems(traces):
    assert shared_problems(traces, ["wo"]) == "lone p0 p1 p2 p3".split()
    assert shared_problems(traces, ["wo", "mless"]) == "p0 p1 p2 p3".split()
    message = "has no problem under all of wo, mful; it has wo, mless, random"
    with pytest.raises(ConfigError, match=message):
        shared_problems(traces, ["wo", "mful"])


def test_the_python_of_the_page_ranks_heads_without_controls(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/probe.md").read_text()
    (code,) = (
        text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "diff" in text
    )
    prompts = [
        make_trace(f"p{number}", name, seed=number, control=number == 1)
        for number in range(4)
        for name in ("mless", "random")
    ]
    write_traces(tmp_path / "flipped.traces", prompts)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    (layer, head, difference), *_ = (line.split() for line in capsys.readouterr().out.splitlines())
    masses = [prompt.measures["mass_filler"] for prompt in prompts if not prompt.control]
    expected = np.mean(np.subtract(masses[::2], masses[1::2]), axis=0, dtype=float)
    index = np.unravel_index(np.abs(expected).argmax(), expected.shape)
    assert (int(layer), int(head)) == ((1, 3)[index[0]], index[1] + 1)
    assert float(difference) == pytest.approx(expected[index], abs=1e-5)


def test_a_shaded_region_and_its_mean_are_of_the_majority_that_share_it(traces):
    curve = full_curve(traces, condition="random", **FIRST_HEAD)
    assert curve.x[curve.in_filler].tolist() == [2, 3, 4, 5]
    assert {*curve.prompts} == {3}
    note = "mean over the 3 of 4 prompts whose filler stands at the shaded positions"
    assert curve.note[0] == note
    with pytest.raises(ConfigError, match="none is shared by more than half of the 2 prompts"):
        full_curve(traces, condition="random", problem_ids=["p0", "p3"], **FIRST_HEAD)
    assert not full_curve(traces, condition="wo", **FIRST_HEAD).in_filler.any()


def test_a_filler_before_each_example_is_shaded_at_its_positions(tmp_path):
    prompts = [make_trace(f"p{number}", "mless") for number in range(3)]
    for prompt, example in zip(prompts, (4, 4, 5), strict=True):
        prompt.roles[example] = 0
    with store(tmp_path / "x.traces", prompts) as traces:
        curve = full_curve(traces, condition="mless", **FIRST_HEAD)
    assert curve.x[curve.in_filler].tolist() == [3, 5, 6]
    assert {*curve.prompts} == {2}


TABLES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12),
    elements=st.floats(0, 1) | st.just(np.nan),
)


@given(TABLES)
@settings(max_examples=40)
def test_the_band_equals_that_of_rows_that_are_drawn(table):
    """The weight of a prompt is how often it is drawn: this equals drawing rows and their mean."""
    size = len(table)
    draws = np.random.default_rng(DEFAULT_SEED).multinomial(size, np.full(size, 1 / size), size=100)
    band = np.array(bootstrap_band(table, np.arange(size), 100))
    for values, interval in zip(table.T, band.T, strict=True):
        expected = [np.nan, np.nan]
        if np.isfinite(values).sum() > 1:
            samples = [np.repeat(values, counts) for counts in draws]
            means = [np.nanmean(sample) for sample in samples if np.isfinite(sample).any()]
            expected = np.quantile(means, [0.025, 0.975])
        np.testing.assert_allclose(interval, expected, atol=1e-12)
    # further prompts of the same problem, equal to the first, change nothing
    clusters = np.repeat(np.arange(size), 3)
    repeated = bootstrap_band(np.repeat(table, 3, axis=0), clusters, 100)
    np.testing.assert_allclose(repeated, band, atol=1e-12)
