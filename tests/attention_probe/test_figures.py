import numpy as np
import pandas
import pytest
from matplotlib.colors import to_hex

from attention_probe.figures.curve_figures import draw_figure
from attention_probe.figures.figure_config import load_figure_config
from attention_probe.figures.figure_numbers import BAR_CONDITIONS, read_bars, read_curves
from attention_probe.traces import AttentionTraces
from harness import load_run
from harness.display.figures.figure_style import STYLES, write_figure
from harness.display.value_texts import label
from harness.errors import ConfigError
from harness.yaml_settings import parse_overrides
from tests.attention_probe.conftest import bar_containers
from tests.display.test_figures import assert_readable
from tests.make import (
    CONDITIONS,
    GREEDY_RUN,
    ROOT,
    TOY,
    compare_rows,
    make_header,
    make_trace,
    module_fixture,
    one_line,
    with_cases,
)

START, FILLER = 18, 55
SHAPE = (3, 28)


def create_traces(path, *, controls=0, problems=5, model_type="qwen2"):
    """Traces of a few prompts: spiky over the problem, low within the filler.

    Traces with controls are selected on outcome.
    """
    header = make_header(
        layers=tuple(range(SHAPE[0])),
        head_count=SHAPE[1],
        conditions=CONDITIONS,
        flip="changed" if controls else None,
        options={"model_type": model_type},
    )
    traces = AttentionTraces.create(path, header, receipt={})
    random = np.random.default_rng(7)
    facts = {"start": START, "filler": FILLER, "shape": SHAPE}
    for number in range(problems + controls):
        size = START + 40 + 3 * number
        facts |= {"size": size, "control": number >= problems}
        means = 0.002 + 0.1 * random.random((*SHAPE, size)).astype(np.float32) ** 8
        means[..., -1] = np.nan
        filled = np.insert(means, [START] * FILLER, 0.001, axis=-1)
        for condition in CONDITIONS:
            curves = {"mean_common": filled, "mean_all": 0.5 * filled}
            if condition == "wo":
                curves = dict.fromkeys(curves, means)
            traces.append(make_trace(str(number), condition, **facts, **curves))
    return traces


@module_fixture
def traces(tmp_path_factory):
    with create_traces(tmp_path_factory.mktemp("traces") / "plain.traces") as traces:
        yield traces


def load(name, *overrides):
    folder = TOY if name == "fillers-demo" else ROOT / "configs/figures"
    return load_figure_config(folder / f"{name}.yaml", parse_overrides(overrides))


def read(config, traces):
    models = dict.fromkeys(panel.model for panel in config.panels)
    return pandas.concat([read_curves(config, model, traces) for model in models])


def draw(config, traces):
    bars = read_bars(config.bars) if config.bars else None
    return draw_figure(config, read(config, traces), bars)


def caption(figure):
    return one_line(figure.get_supxlabel())


def texts(axes):
    return [one_line(text.get_text()) for text in axes.texts]


def legend_texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def lines_by_name(axes, style="-"):
    """Curves of a style by name. The names of dotted curves are hidden from the legend."""
    lines = [line for line in axes.lines if line.get_linestyle() == style]
    return {
        line.get_label().removeprefix("_"): line
        for line in lines
        if len(line.get_xdata()) and "child" not in line.get_label()
    }


def drawn_points(line):
    """The points of a curve whose values are numbers."""
    points = line.get_xydata()
    return points[np.isfinite(points[:, 1])].tolist()


def colours(axes):
    return {name: to_hex(line.get_color()) for name, line in lines_by_name(axes).items()}


def texts_on_lines(figure):
    """Texts and legends that a curve passes through, at a step of a tenth of a position."""
    figure.draw_without_rendering()
    overlapped = []
    for axes in figure.axes:
        boxes = [*axes.texts]
        legend = axes.get_legend()
        if legend:
            boxes += [*legend.get_texts(), *legend.legend_handles]
        for line in axes.lines:
            x, y = (np.asarray(values, dtype=float) for values in line.get_data())
            if not len(x):
                continue
            steps = np.arange(x[0], x[-1], 0.1)
            points = axes.transData.transform(np.c_[steps, np.interp(steps, x, y)])
            points = points[np.isfinite(points).all(axis=1)]
            for box in boxes:
                area = box.get_window_extent()
                is_inside = (points > area.min) & (points < area.max)
                if area.width and is_inside.all(axis=1).any():
                    overlapped.append(box)
    return overlapped


@with_cases
def test_legends_and_labels_cover_no_data_and_fit_the_page(name, traces):
    figure = draw(load(name), traces)
    assert not texts_on_lines(figure)
    assert_readable(figure)


def test_heads_are_one_row_and_the_caption_explains_only_what_is_drawn(traces):
    heads = ", ".join(f"{{layer: 1, head: {head}}}" for head in range(7, 10))
    rows = "[{view: aligned, series: {wo: {}, mless: {}, mful: {}, random: {}}}]"
    figure = draw(load("fillers-demo", f"heads=[{heads}]", f"rows={rows}"), traces)
    assert not texts_on_lines(figure)
    assert_readable(figure)
    heights = [round(axes.get_position().y0, 3) for axes in figure.axes]
    assert len(set(heights)) == 1
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"Layer 1 Head {head}" for head in range(7, 10)]
    assert [bool(axes.get_ylabel()) for axes in figure.axes] == [True, False, False]
    assert figure.axes[0].get_xlim() == (0, 68)  # the last token has no later query
    for absent in ("Dashed", "Selected", "fixed ends", "shaded", "drawn together"):
        assert absent not in caption(figure)


@with_cases
def test_axis_labels_give_the_quantity_its_definition_and_what_is_left_out(
    options, definition, omitted, tmp_path
):
    with create_traces(tmp_path / "llama.traces", model_type="llama") as traces:
        first, *_, last = draw(load("llama-heads-20-25-26", *options), traces).axes
    assert first.get_ylabel() == f"Average Attention Weight\n({definition})"
    assert one_line(first.get_xlabel()) == f"Token position ({omitted})"
    assert (first.get_xlim(), last.get_xlim()) == ((0, 60), (0, 120))
    assert (first.get_ylim(), last.get_ylim()) == ((0, 0.08), (0, 0.05))


def test_inserted_tokens_are_shaded_and_named_in_full_views_only(traces):
    figure = draw(load("qwen-heads-12-13-14"), traces)
    above, *_, below = figure.axes
    (region,) = below.patches
    end = region.get_x() + region.get_width()
    assert (region.get_x(), end) == (START - 0.5, START + FILLER - 0.5)
    assert region.get_label() == "Inserted tokens" == legend_texts(*figure.legends)[-1]
    assert not above.patches


def test_labels_are_those_of_the_config_and_a_condition_has_one_colour_and_one_legend(traces):
    figure = draw(load("accuracy-bars-and-head-14"), traces)
    top, bottom, bars = figure.axes
    colour = {label(name): STYLES[name].colour for name in BAR_CONDITIONS}
    assert colours(top) == colour
    assert colours(bottom) == {name: colour[name] for name in ("w/ Mless", "w/ Mful")}
    (legend,) = figure.legends
    assert sorted(legend_texts(legend)) == ["Inserted tokens", *sorted(colour)]
    for axes in (top, bottom):
        assert len(axes.collections) == len(lines_by_name(axes))  # a band for each line
    faces = [to_hex(bar.patches[0].get_facecolor()) for bar in bar_containers(bars)]
    assert faces == list(colour.values())
    assert bars.get_ylim() == (30, 84)
    study_names = ["w/o Meaningless tokens", "w/ Meaningless tokens"]
    (legend,) = draw(load("qwen-heads-12-13-14"), traces).legends
    assert legend_texts(legend) == [*study_names, "Inserted tokens"]


def test_without_names_looks_are_ours(traces):
    figure = draw(load("fillers-demo"), traces)
    (legend,) = figure.legends
    assert legend_texts(legend) == ["w/o", "w/ Mless"]
    for axes in figure.axes:
        for name, line in lines_by_name(axes).items():
            style = STYLES[{"w/o": "wo", "w/ Mless": "mless"}[name]]
            assert (to_hex(line.get_color()), line.get_marker()) == (style.colour, style.marker)


def test_positions_that_fewer_than_half_of_the_prompts_reach_are_dotted_without_band(traces):
    config = load("qwen-layers-1-2-3-head-22", "rows=[{view: full, series: {mless: {}}}]")
    figure = draw(config, traces)
    # five prompts of 58 to 70 tokens, the last of which has no value: three reach 62
    end = 62 + FILLER
    for axes in figure.axes:
        (solid,), (dotted,) = lines_by_name(axes).values(), lines_by_name(axes, ":").values()
        assert drawn_points(solid)[-1][0] == end
        assert len(drawn_points(dotted)) == 69 + FILLER
        for band in axes.collections:
            assert all(path.vertices[:, 0].max() <= end for path in band.get_paths())
    assert "Dotted, without band, perhaps off the axis: fewer than half" in caption(figure)
    points = read(config, traces)
    points.loc[2 * points["count"] < points["prompts"], "mean"] = 0.9
    for axes, longer in zip(figure.axes, draw_figure(config, points).axes, strict=True):
        assert longer.get_ylim() == axes.get_ylim()  # of the solid part


def test_the_csv_contains_what_is_drawn(traces, tmp_path):
    config = load("accuracy-bars-and-head-14")
    figure = draw(config, traces)
    numbers = pandas.concat([read(config, traces), read_bars(config.bars)], ignore_index=True)
    files = write_figure(figure, numbers, tmp_path, config.name, {"seed": 7})
    assert [file.suffix for file in files] == ".png .svg .pdf .csv".split()
    table = pandas.read_csv(files[-1], keep_default_na=False, na_values=[""])
    curves = table[table["kind"] == "curve"]
    for row, axes in enumerate(figure.axes[:2]):
        for name, line in lines_by_name(axes, ":").items():
            points = curves[(curves["row"] == row) & (curves["legend"] == name)]
            assert points[["x", "mean"]].to_numpy().tolist() == drawn_points(line)
            assert (set(points["layer"]), set(points["head"])) == ({1}, {14})
    heights = [bar.get_height() for bars in bar_containers(figure.axes[2]) for bar in bars]
    assert table[table["kind"] == "published bar"]["mean"].tolist() == heights


def test_every_panel_of_a_selection_on_outcome_has_a_stamp_and_no_controls(tmp_path, traces):
    config = load("fillers-demo", "prompts.flip=changed")
    with create_traces(tmp_path / "flipped.traces", controls=4) as flipped:
        figure = draw(config, flipped)
    for axes in figure.axes:
        assert texts(axes) == ["selected on outcome"]
    assert "n = 5 prompts a panel" in caption(figure)
    assert "Selected on outcome: changed." in caption(figure)
    assert not any(texts(axes) for axes in draw(config, traces).axes)


def test_published_accuracies_have_a_stamp_and_their_source(traces):
    config = load("accuracy-bars-and-head-14")
    figure = draw(config, traces)
    axes = figure.axes[2]
    assert {"published numbers", "64"} <= set(texts(axes))
    assert axes.get_ylabel().startswith("Accuracy (%)\n")
    assert "read off the figure" in caption(figure)


def test_bars_of_runs_have_the_intervals_of_the_tables_and_no_stamp(traces):
    config = load("accuracy-bars-and-head-14", f"bars={{title: t, runs: [{GREEDY_RUN}]}}")
    figure = draw(config, traces)
    axes = figure.axes[2]
    assert "published numbers" not in texts(axes)
    assert "95 % score interval" in axes.get_ylabel()
    assert "Bars: 500 problems." in caption(figure)
    compared = compare_rows(load_run(GREEDY_RUN))
    intervals = compared[["accuracy_low", "accuracy_high"]].astype(float)
    assert read_bars(config.bars)["condition"].tolist() == ["wo", "mless", "mful"]
    for condition, bars in zip(("wo", "mless", "mful"), bar_containers(axes), strict=True):
        (whiskers,) = bars.errorbar.lines[2]
        assert np.allclose(whiskers.get_segments()[0][:, 1], intervals.loc[condition])


def test_traces_of_controls_only_are_refused(tmp_path):
    with create_traces(tmp_path / "c.traces", problems=0, controls=2) as traces:
        with pytest.raises(ConfigError, match=r"c\.traces holds only controls"):
            read(load("fillers-demo"), traces)
