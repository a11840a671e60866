from dataclasses import replace

import numpy as np
import pandas
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import StepPatch
from typer.testing import CliRunner

from attention_probe.figures.activation_figures import draw_activations, read_activations
from attention_probe.figures.figure_config import load_figure_config
from attention_probe.measure.measure_activations import ACTIVATION_BINS, CLASSES
from attention_probe.measure.measure_prompts import Record
from attention_probe.probe_settings import ProbeSettings
from attention_probe.run_probe import run_probe
from attention_probe.traces import AttentionTraces
from harness import cli
from harness.analysis.choose_problems import Criterion
from harness.display.figures.figure_style import LOOKS
from tests.display.test_figures import covered, cut_off, words
from tests.make import GREEDY_RUN, ROOT, TOY_MODEL, read_source

FIGURES = ("histogram", "token-classes")
TOY_ALONE = f"models=[{{name: Toy, model: {TOY_MODEL}}}]"


@pytest.fixture
def figure():
    def call(name, *options):
        path = ROOT / f"configs/figures/activations-{name}.yaml"
        return CliRunner().invoke(cli.app, ["figure", *map(str, (path, *options))])

    return call


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    source = read_source(GREEDY_RUN, layout="raw")
    path = tmp_path_factory.mktemp("activations") / "a.traces"
    settings = ProbeSettings(record=Record(activations=True))
    run_probe(source, Criterion(n=8, seed=3), settings, path)
    return path


@pytest.fixture(scope="module")
def traces(path):
    with AttentionTraces.open(path) as traces:
        yield traces


def load(name, *overrides):
    return load_figure_config(ROOT / f"configs/figures/activations-{name}.yaml", overrides)


def read(config, traces):
    return pandas.concat([read_activations(one, traces) for one in config.models])


def recorded(traces, condition, name):
    return np.array([trace.activations[name] for trace in traces if trace.condition == condition])


def outlines(axes):
    return [patch for patch in axes.patches if isinstance(patch, StepPatch)]


def test_the_histogram_that_is_drawn_is_the_mean_of_those_that_were_recorded(traces):
    config = load("histogram", TOY_ALONE)
    above, _ = draw_activations(config, read(config, traces)).axes
    drawn = dict(zip(config.conditions, outlines(above), strict=True))
    for condition, outline in drawn.items():
        counts = [trace.activation_histogram for trace in traces if trace.condition == condition]
        shares = np.mean([one / one.sum() for one in counts], axis=0)
        assert (
            np.allclose(outline.get_data().values, 100 * shares)
            and len(shares) == ACTIVATION_BINS + 1
        )
        assert to_hex(outline.get_edgecolor()) == LOOKS[condition].colour


def test_the_numbers_and_their_changes_are_those_of_the_records(traces):
    config = load("histogram", TOY_ALONE, "models.0.c=0.32")
    table = read(config, traces).set_index(["quantity", "condition"])
    draw = np.random.default_rng(1)
    for name in ("near_zero_c0.32", "l1", "l2", "gini"):
        before, after = (recorded(traces, condition, name) for condition in ("wo", "mless"))
        assert table.loc[(name, "wo")]["mean"] == pytest.approx(before.mean())
        change = table.loc[(name, "mless - wo")]
        assert change["mean"] == pytest.approx(after.mean() / before.mean() - 1)
        assert change["unit"] == "relative change" and change["count"] == 8
        some = draw.integers(0, 8, (4000, 8))
        ends = np.quantile(after[some].mean(axis=1) / before[some].mean(axis=1) - 1, [0.025, 0.975])
        assert [change["low"], change["high"]] == pytest.approx(
            ends, abs=0.15 * (ends[1] - ends[0])
        )


def test_bars_and_dots_of_token_classes_are_those_of_the_records(traces):
    config = load("token-classes", TOY_ALONE)
    above, below = draw_activations(config, read(config, traces)).axes
    bars = [one for one in above.containers if hasattr(one, "patches")]
    assert [to_hex(one.patches[0].get_facecolor()) for one in bars] == [
        LOOKS[condition].colour for condition in config.conditions
    ]
    means = {}
    for condition, container in zip(config.conditions, bars, strict=True):
        values = [recorded(traces, condition, f"near_zero_{name}_c0.1") for name in CLASSES]
        means[condition] = [
            100 * np.nanmean(one) if np.isfinite(one).any() else np.nan for one in values
        ]
        assert np.allclose(
            [bar.get_height() for bar in container], means[condition], equal_nan=True
        )
    (container,) = below.containers
    change = 100 * (np.array(means["mless"]) / means["wo"] - 1)
    assert np.allclose(container.lines[0].get_ydata(), change, equal_nan=True)
    assert [label.get_text() for label in below.get_xticklabels()] == list(CLASSES)


@pytest.mark.parametrize("name", FIGURES)
def test_no_words_of_the_studys_panels_lie_on_each_other_or_leave_the_page(traces, name):
    config = load(name)
    figure = draw_activations(config, read(config, traces).assign(on_outcome=True))
    assert len(figure.axes) == 2 * len(config.models)
    assert sum(text == "selected on outcome" for text, _ in words(figure)) == len(config.models)
    assert not cut_off(figure) and not covered(figure)


def test_the_command_measures_once_for_both_figures(figure, tmp_path):
    for name in FIGURES:
        assert (
            figure(name, "--set", TOY_ALONE, "--set", "prompts.n=2", "-o", tmp_path).exit_code == 0
        )
    (_,) = (tmp_path / "traces").iterdir()
    assert {file.stem for file in tmp_path.glob("*.png")} == {
        f"activations-{name}" for name in FIGURES
    }
    assert set(pandas.read_csv(tmp_path / "activations-histogram.csv")["prompts"]) == {2}


def test_without_bins_nothing_is_drawn(traces, tmp_path):
    config = load("histogram", TOY_ALONE)
    path = tmp_path / "flat.traces"
    with AttentionTraces.create(path, traces.header, receipt={}) as flat:
        for trace in traces:
            nothing = trace.activations | {
                "histogram_top": 0.0,
                "gini": np.nan,
                "near_zero_c0.1": np.nan,
            }
            empty = np.zeros_like(trace.activation_histogram)
            flat.append(replace(trace, activations=nothing, activation_histogram=empty))
        above, _ = draw_activations(config, read(config, flat)).axes
    assert all(np.isnan(outline.get_data().values).all() for outline in outlines(above))
