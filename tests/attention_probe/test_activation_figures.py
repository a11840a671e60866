from dataclasses import replace

import numpy as np
import pandas
import pytest
from matplotlib.colors import to_hex

from attention_probe.figures.activation_figures import draw_activations, read_activations
from attention_probe.figures.figure_config import load_figure_config
from attention_probe.measure.activations import ACTIVATION_BINS, TOKEN_CLASSES
from attention_probe.traces import AttentionTraces
from harness.display.figures.figure_style import STYLES
from harness.yaml_settings import parse_overrides
from tests.attention_probe.conftest import run_command, traces_under
from tests.display.test_figures import assert_readable
from tests.make import GREEDY_RUN, ROOT, TOY_MODEL, module_fixture

CONFIGS = {
    name: ROOT / f"configs/figures/activations-{name}.yaml"
    for name in ("histogram", "token-classes")
}
ONLY_TOY = f"models=[{{name: Toy, model: {TOY_MODEL}}}]"


@module_fixture
def traces(tmp_path_factory):
    path = tmp_path_factory.mktemp("activations") / "a.traces"
    run_command("probe", GREEDY_RUN, "--n", 8, "--activations", "-o", path)
    with AttentionTraces(path) as traces:
        yield traces


def load(name, *overrides):
    return load_figure_config(CONFIGS[name], parse_overrides(overrides))


def read(config, traces):
    tables = [read_activations(config, model.model, traces) for model in config.models]
    return pandas.concat(tables)


def draw(config, traces):
    return draw_activations(config, read(config, traces))


def recorded(traces, condition):
    return pandas.DataFrame([trace.activations for trace in traces_under(traces, condition)])


def test_a_drawn_histogram_is_the_mean_of_the_recorded_histograms(traces):
    config = load("histogram", ONLY_TOY)
    above, _ = draw(config, traces).axes
    for condition, marks in zip(config.conditions, above.lines, strict=True):
        counts = [trace.activation_histogram for trace in traces_under(traces, condition)]
        shares = np.mean([count / count.sum() for count in counts], axis=0)
        assert len(shares) == ACTIVATION_BINS + 1
        assert np.allclose(marks.get_ydata(), 100 * shares)
        assert to_hex(marks.get_color()) == STYLES[condition].colour


def test_means_changes_and_intervals_are_computed_from_the_recorded_numbers(traces):
    config = load("histogram", ONLY_TOY, "models.0.c=0.32")
    table = read(config, traces).set_index(["quantity", "condition"])
    generator = np.random.default_rng(1)
    for name in ("near_zero_c0.32", "l1", "l2", "gini"):
        before, after = (recorded(traces, side)[name].to_numpy() for side in ("wo", "mless"))
        assert table.loc[(name, "wo")]["mean"] == pytest.approx(before.mean())
        change = table.loc[(name, "mless - wo")]
        assert change["mean"] == pytest.approx(after.mean() / before.mean() - 1)
        assert (change["unit"], change["count"]) == ("relative change", 8)
        draws = generator.integers(0, 8, (4000, 8))
        changes = after[draws].mean(axis=1) / before[draws].mean(axis=1) - 1
        low, high = np.quantile(changes, [0.025, 0.975])
        tolerance = 0.15 * (high - low)
        assert [change["low"], change["high"]] == pytest.approx([low, high], abs=tolerance)


def test_marks_of_token_classes_are_computed_from_the_recorded_numbers(traces):
    config = load("token-classes", ONLY_TOY)
    above, below = draw(config, traces).axes
    names = [f"near_zero_{name}_c0.1" for name in TOKEN_CLASSES]
    means = {}
    for condition, marks in zip(config.conditions, above.lines, strict=True):
        assert to_hex(marks.get_color()) == STYLES[condition].colour
        means[condition] = 100 * recorded(traces, condition)[names].mean().to_numpy()
        assert np.allclose(marks.get_ydata(), means[condition], equal_nan=True)
    marks, _ = below.lines
    change = 100 * (means["mless"] / means["wo"] - 1)
    assert np.allclose(marks.get_ydata(), change, equal_nan=True)
    assert [label.get_text() for label in below.get_xticklabels()] == list(TOKEN_CLASSES)


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_of_the_study_figures_neither_overlap_nor_leave_the_page(traces, name):
    config = load(name)
    figure = draw(config, traces)
    assert len(figure.axes) == 2 * len(config.models)
    assert_readable(figure)


def test_the_command_measures_once_for_both_figures(tmp_path):
    for path in CONFIGS.values():
        run_command("figure", path, "--set", ONLY_TOY, "--set", "prompts.n=2", "-o", tmp_path)
    assert len(list((tmp_path / "traces").iterdir())) == 1
    figures = {file.stem for file in tmp_path.glob("*.png")}
    assert figures == {path.stem for path in CONFIGS.values()}
    assert set(pandas.read_csv(tmp_path / "activations-histogram.csv")["prompts"]) == {2}


def test_without_bins_nothing_is_drawn(traces, tmp_path):
    absent = {"histogram_top": 0.0, "gini": np.nan, "near_zero_c0.1": np.nan}
    with AttentionTraces.create(tmp_path / "flat.traces", traces.header, receipt={}) as flat:
        for trace in traces:
            changes = {"activations": trace.activations | absent}
            changes["activation_histogram"] = np.zeros_like(trace.activation_histogram)
            flat.append(replace(trace, **changes))
        above, _ = draw(load("histogram", ONLY_TOY), flat).axes
    assert all(np.isnan(marks.get_ydata()).all() for marks in above.lines)
