import itertools
from dataclasses import replace

import numpy as np
import pandas
import pytest
from scipy import stats

from attention_probe.analysis.head_ranking import rank_heads
from harness.errors import ConfigError
from tests.attention_probe.conftest import store
from tests.make import LAYERS, SHAPE, make_trace, with_cases

FILLERS = ("random", "mless")


def make_traces():
    """Measures are noise; `mless` has two standard deviations more in Layer 3, Head 2."""
    random = np.random.default_rng(0)
    traces = []
    for number in range(30):
        for condition in ("wo", "mless", "random"):
            noise = random.normal(size=SHAPE).astype(np.float32)
            noise[1, 1] += 2 * (condition == "mless")
            measures = {"mass_filler": np.abs(noise), "mass_problem": noise}
            if condition != "wo":
                measures["mass_completion"] = noise
            traces.append(make_trace(f"p{number}", condition, seed=number, measures=measures))
    return traces


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranking") / "x.traces"
    with store(path, make_traces()) as traces:
        yield traces


def test_every_head_has_a_row_and_the_shifted_head_is_first(traces):
    ranking = rank_heads(traces, "mass_completion", *FILLERS)
    assert ranking["rank"].tolist() == list(range(1, 7))
    heads = {*zip(ranking["layer"], ranking["head"], strict=True)}
    assert heads == {*itertools.product((1, 3), (1, 2, 3))}
    first = ranking.iloc[0]
    assert (first["layer"], first["head"], first["units"]) == (3, 2, 30)
    assert first["mean_difference"] > 1
    assert not first["guaranteed"]
    assert ranking["t"].abs().is_monotonic_decreasing
    note = "30 prompts, ordered by t, no p: one filler says nothing about others like it"
    assert ranking.attrs["note"].startswith(note)


def test_the_numbers_are_those_of_a_paired_t_test(traces):
    random, mless = (
        traces.measure("mass_completion", name, traces.problem_ids) for name in FILLERS
    )
    for row in rank_heads(traces, "mass_completion", *FILLERS).itertuples():
        differences = (mless - random)[:, LAYERS.index(row.layer - 1), row.head - 1]
        assert row.mean_difference == pytest.approx(differences.mean())
        assert row.standard_error == pytest.approx(stats.sem(differences))
        assert row.t == pytest.approx(stats.ttest_1samp(differences, 0).statistic)


@pytest.mark.parametrize(
    ("measure", "guaranteed"), [("mass_filler", {1, 3}), ("mass_problem", {1})]
)
def test_differences_that_softmax_guarantees_have_no_t_and_a_note(traces, measure, guaranteed):
    for sides in (("wo", "mless"), ("mless", "wo")):
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
        ranking = rank_heads(opened, "mass_completion", *FILLERS)
    pandas.testing.assert_frame_equal(ranking, rank_heads(traces, "mass_completion", *FILLERS))
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


@with_cases
def test_contrasts_that_cannot_be_ranked_are_refused(
    traces, measure, subtracted, compared, message
):
    with pytest.raises(ConfigError, match=message):
        rank_heads(traces, measure, subtracted, compared)
