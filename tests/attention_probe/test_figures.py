import numpy as np
import pandas
import pytest
from matplotlib.colors import to_hex

from attention_probe.figures.curve_figures import draw_figure
from attention_probe.figures.figure_config import STUDY_COLOURS, load_figure_config
from attention_probe.figures.figure_numbers import BARS, figure_table, read_bars, read_curves
from attention_probe.traces import AttentionTraces
from harness import load_run
from harness.analysis import compare
from harness.display.figures.figure_style import LOOKS, write_figure
from harness.errors import ConfigError
from tests.display.test_figures import cut_off
from tests.make import GREEDY_RUN, ROOT, TOY, make_header, make_trace

HEAD, FILLER, LAYERS, HEADS = 18, 55, 3, 28
CONDITIONS = ("wo", "mless", "mful", "random")


def open_traces(path, *, controls=0, problems=5, family="qwen2"):
    """Traces of a few prompts: spiky over the problem, low within the filler."""
    header = make_header(
        model="m",
        layers=tuple(range(LAYERS)),
        head_count=HEADS,
        conditions=CONDITIONS,
        flip="changed" if controls else None,
        options={"model_type": family},
    )
    traces = AttentionTraces.create(path, header, receipt={})
    draw = np.random.default_rng(7)
    for number in range(problems + controls):
        size = HEAD + 40 + 3 * number
        plain = 0.002 + 0.1 * draw.random((LAYERS, HEADS, size)).astype(np.float32) ** 8
        plain[..., -1] = np.nan
        for condition in CONDITIONS:
            mean = plain if condition == "wo" else np.insert(plain, [HEAD] * FILLER, 0.001, axis=-1)
            curves = {"mean_common": mean, "mean_all": mean if condition == "wo" else 0.5 * mean}
            control = number >= problems
            made = {
                "size": size,
                "start": HEAD,
                "filler": FILLER,
                "shape": (LAYERS, HEADS),
                "control": control,
            }
            traces.append(make_trace(str(number), condition, **made, **curves))
    return traces


def draw_of(config, traces):
    return read_curves(config.panels, config, traces)


def write_files(config, curves, folder, *, bars=None):
    figure = draw_figure(config, curves, bars)
    return write_figure(
        figure, figure_table(config, curves, bars), folder, config.name, {"seed": 7}
    )


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    with open_traces(tmp_path_factory.mktemp("traces") / "plain.traces") as traces:
        yield traces


@pytest.fixture(scope="module")
def flipped(tmp_path_factory):
    with open_traces(tmp_path_factory.mktemp("traces") / "flipped.traces", controls=4) as traces:
        yield traces


def load(name, *overrides):
    folder = TOY if name == "flipped-demo" else ROOT / "configs/figures"
    return load_figure_config(folder / f"{name}.yaml", overrides)


def texts(axes):
    return [" ".join(text.get_text().split()) for text in axes.texts]


def named(axes, start=""):
    """The lines that the legend names, or the dotted ones beneath them, by name."""
    starts = start or tuple("wMNR")
    lines = [
        line for line in axes.lines if len(line.get_xdata()) and line.get_label().startswith(starts)
    ]
    return {
        line.get_label().removeprefix("_"): line
        for line in lines
        if line.get_linestyle() == (":" if start else "-")
    }


def covered(figure):
    """Every legend and word inside an axes that a line of data passes through, at a step of a tenth of a position."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        legend = axes.get_legend()
        boxes = [
            *(legend.get_texts() if legend else ()),
            *(legend.legend_handles if legend else ()),
            *axes.texts,
        ]
        for line in axes.lines:
            x, y = (
                np.asarray(line.get_xdata(), dtype=float),
                np.asarray(line.get_ydata(), dtype=float),
            )
            if not len(x):
                continue
            fine = np.arange(x[0], x[-1], 0.1)
            points = axes.transData.transform(np.c_[fine, np.interp(fine, x, y)])
            points = points[np.isfinite(points).all(axis=1)]
            for box in boxes:
                area = box.get_window_extent()
                inside = (points > [area.x0, area.y0]) & (points < [area.x1, area.y1])
                if area.width and inside.all(axis=1).any():
                    found.append(box)
    return found


@pytest.mark.parametrize(
    "name", ["qwen-heads-12-13-14", "mless-vs-random-sentence", "accuracy-bars-and-head-14"]
)
def test_neither_legend_nor_label_covers_data_and_all_fit_the_page(name, traces):
    config = load(name)
    figure = draw_figure(
        config, draw_of(config, traces), read_bars(config.bars) if config.bars else None
    )
    assert covered(figure) == [] and cut_off(figure) == []
    for axes in figure.axes:
        for region in (patch for patch in axes.patches if texts(axes) and patch.get_label() == ""):
            for text in axes.texts:
                assert text.get_window_extent().width <= region.get_window_extent().width, text


def test_nine_heads_fill_three_lines_and_the_caption_says_what_is_drawn(traces):
    heads = ", ".join(f"{{layer: 1, head: {head}}}" for head in range(1, 10))
    config = load(
        "flipped-demo",
        f"heads=[{heads}]",
        "rows=[{view: aligned, series: {wo: {}, mless: {}, mful: {}, random: {}}}]",
    )
    figure = draw_figure(config, draw_of(config, traces))
    assert covered(figure) == [] and cut_off(figure) == []
    assert [
        len({round(axes.get_position().y0, 3) for axes in figure.axes[n : n + 3]})
        for n in (0, 3, 6)
    ] == [1, 1, 1]
    assert [axes.get_title() for axes in figure.axes] == [
        f"Layer 1 Head {head}" for head in range(1, 10)
    ]
    assert figure.legends[0].get_title().get_text() == "Bundled model"
    assert [bool(axes.get_ylabel()) for axes in figure.axes] == [number == 3 for number in range(9)]
    assert figure.axes[0].get_xlim() == (0, 68)  # the last token has no later query
    said = " ".join(figure.get_supxlabel().split())
    assert "Bands: 95 % bootstrap intervals over prompts. Dotted" in said
    assert not any(
        word in said for word in ("Dashed", "Selected", "fixed ends", "shaded", "drawn together")
    )


def test_axes_say_the_quantity_its_definition_and_what_is_left_out(tmp_path):
    with open_traces(tmp_path / "llama.traces", family="llama") as traces:
        for options, quantity, position in (
            ((), "published definition", "filler and first token left out"),
            (
                ("definition=common", "exclude_first_token=false"),
                "common queries",
                "filler left out",
            ),
        ):
            config = load("llama-heads-20-25-26", *options)
            axes = draw_figure(config, draw_of(config, traces), None).axes
            assert axes[0].get_ylabel() == f"Average Attention Weight\n({quantity})"
            assert " ".join(axes[0].get_xlabel().split()) == f"Token position ({position})"
    assert (axes[0].get_xlim(), axes[-1].get_xlim()) == ((0, 60), (0, 120))
    assert (axes[0].get_ylim(), axes[-1].get_ylim()) == ((0, 0.08), (0, 0.05))


def test_the_inserted_tokens_are_shaded_and_named_in_full_views_only(traces):
    config = load("qwen-heads-12-13-14")
    above, *_, below = draw_figure(config, draw_of(config, traces), None).axes
    (region,) = below.patches
    assert (region.get_x(), region.get_x() + region.get_width()) == (
        HEAD - 0.5,
        HEAD + FILLER - 0.5,
    )
    assert "Meaningless tokens" in texts(below)
    assert not above.patches and not texts(above)


def test_lines_have_the_labels_and_colours_of_the_config_and_a_legend_for_each_row(traces):
    config = load("accuracy-bars-and-head-14")
    figure = draw_figure(config, draw_of(config, traces), read_bars(config.bars))
    top, bottom, bars = figure.axes
    shown = [
        {name: to_hex(line.get_color()) for name, line in named(axes).items()}
        for axes in (top, bottom)
    ]
    assert shown == [
        {
            "None": STUDY_COLOURS["blue"],
            "Mless": STUDY_COLOURS["red"],
            "Mful": STUDY_COLOURS["green"],
        },
        {"Mless": STUDY_COLOURS["blue"], "Mful": STUDY_COLOURS["red"]},
    ]
    assert not figure.legends
    for axes, names in zip((top, bottom), shown, strict=True):
        assert [text.get_text() for text in axes.get_legend().get_texts()] == list(names)
    assert (len(top.collections), len(bottom.collections)) == (3, 2), "a band for each line"
    assert [text.get_text() for text in bars.get_legend().get_texts()] == [
        "w/o",
        "w/ Mless",
        "w/ Mful",
    ]
    faces = [
        to_hex(one.patches[0].get_facecolor()) for one in bars.containers if hasattr(one, "patches")
    ]
    assert faces == [LOOKS[name].colour for name in BARS] and bars.get_ylim() == (30, 78)


def test_what_the_config_leaves_open_is_our_name_colour_marker_and_one_scale_a_row(flipped):
    config = load("flipped-demo")
    figure = draw_figure(config, draw_of(config, flipped), None)
    (legend,) = figure.legends  # one is true of both rows
    assert [text.get_text() for text in legend.get_texts()] == [
        "w/o",
        "w/ Mless",
        "not flipped (controls)",
    ]
    for axes in figure.axes:
        for name, line in named(axes).items():
            look = LOOKS[{"w/o": "wo", "w/ Mless": "mless"}[name]]
            assert (to_hex(line.get_color()), line.get_marker()) == (look.colour, look.marker)
    assert [
        len({axes.get_ylim() for axes in row}) for row in (figure.axes[:3], figure.axes[3:])
    ] == [1, 1]


def test_a_difference_is_paired_has_a_band_and_says_from_what(traces):
    config = load("flipped-demo", "prompts={dataset: math500}")
    curves = draw_of(config, traces)
    axes = draw_figure(config, curves, None).axes[3]
    assert axes.get_ylabel() == "Difference from w/o\n(common queries)"
    points = curves[(curves["row"] == 1) & (curves["column"] == 0)]
    assert set(points["condition"]) == {"mless - wo"}
    line = named(axes)["w/ Mless"]
    assert (
        line.get_ydata()[:62].tolist() == points["mean"][:62].tolist() == [0] * 62
    )  # the fixture's common queries
    low, high = axes.get_ylim()
    assert low <= points["low"].min() <= points["high"].max() <= high and len(axes.collections) == 1


def test_positions_that_fewer_than_half_of_the_prompts_reach_are_dotted_and_have_no_band(traces):
    config = load("qwen-layers-1-2-3-head-22", "rows=[{view: full, series: {mless: {}}}]")
    curves = draw_of(config, traces)
    figure = draw_figure(config, curves, None)
    for axes in figure.axes:
        (solid, *_), (dotted, *_) = named(axes).values(), named(axes, "_").values()
        x, shown = dotted.get_xdata(), np.isfinite(solid.get_ydata())
        # five prompts of 58 to 70 tokens, the last of which has no value: three reach 62
        assert (
            x[shown].max() == 62 + FILLER and np.isfinite(dotted.get_ydata()).sum() == 69 + FILLER
        )
        assert all(
            path.vertices[:, 0].max() <= 62 + FILLER
            for band in axes.collections
            for path in band.get_paths()
        )
    assert "Dotted, without band: fewer than half" in " ".join(figure.get_supxlabel().split())


def test_the_csv_holds_what_is_drawn(traces, tmp_path):
    config = load("accuracy-bars-and-head-14")
    curves, bars = draw_of(config, traces), read_bars(config.bars)
    files = write_files(config, curves, tmp_path, bars=bars)
    assert [file.suffix for file in files] == [".png", ".svg", ".pdf", ".csv"]
    table = pandas.read_csv(files[-1], keep_default_na=False, na_values=[""])
    figure = draw_figure(config, curves, bars)
    for row, axes in enumerate(figure.axes[:2]):
        for name, line in named(axes, "_").items():
            mine = table[
                (table["row"] == row) & (table["legend"] == name) & (table["kind"] == "curve")
            ]
            there = np.isfinite(line.get_ydata())
            assert mine["x"].tolist() == line.get_xdata()[there].tolist()
            assert mine["mean"].tolist() == line.get_ydata()[there].tolist()
            assert (set(mine["layer"]), set(mine["head"])) == ({1}, {14})
    heights = [
        bar.get_height()
        for container in figure.axes[2].containers
        for bar in getattr(container, "patches", [])
    ]
    assert table[table["kind"] == "reference bar"]["mean"].tolist() == heights


def test_selection_on_outcome_is_stamped_on_every_panel(flipped, traces):
    config = load("flipped-demo")
    curves = draw_of(config, flipped)
    figure = draw_figure(config, curves, None)
    for axes in figure.axes:
        assert "selected on outcome" in texts(axes)
        dashed = [
            line for line in axes.lines if line.get_linestyle() == "--" and len(line.get_xdata())
        ]
        solid = named(axes).values()
        assert len(dashed) == len(solid) > 0
        assert {line.get_color() for line in dashed} == {line.get_color() for line in solid}
    assert "Selected on outcome: changed. Dashed: matched, not flipped" in " ".join(
        figure.get_supxlabel().split()
    )
    table = figure_table(config, curves, None)
    assert set(table["kind"]) == {"curve", "control"} and table["on_outcome"].all()
    assert not any(
        texts(axes) for axes in draw_figure(config, draw_of(config, traces), None).axes[:3]
    )


def test_reference_numbers_are_stamped_and_their_source_is_named(traces):
    config = load("accuracy-bars-and-head-14")
    bars = read_bars(config.bars)
    assert bars["accuracy"].tolist() == [64, 73, 44, 66, 76, 46, 66, 74, 48]
    figure = draw_figure(config, draw_of(config, traces), bars)
    axes = figure.axes[2]
    assert "reference numbers" in texts(axes) and "64" in texts(axes)
    assert axes.get_title() == "Results on Math-500" and axes.get_ylabel().startswith(
        "Accuracy (%)\n"
    )
    assert "read off the figure" in " ".join(figure.get_supxlabel().split())


def test_bars_of_runs_have_the_intervals_of_the_tables_and_no_stamp(traces):
    config = load("accuracy-bars-and-head-14", f"bars={{title: t, runs: [{GREEDY_RUN}]}}")
    bars = read_bars(config.bars)
    assert list(bars["condition"]) == ["wo", "mless", "mful"]
    figure = draw_figure(config, draw_of(config, traces), bars)
    axes = figure.axes[2]
    assert "reference numbers" not in texts(axes) and "95 % score interval" in axes.get_ylabel()
    compared = compare(load_run(GREEDY_RUN)).set_index("condition")
    bar_containers = [c for c in axes.containers if hasattr(c, "errorbar")]
    for condition, container in zip(bars["condition"], bar_containers, strict=True):
        (whiskers,) = container.errorbar.lines[2]
        ends = whiskers.get_segments()[0][:, 1]
        assert np.allclose(
            ends, compared.loc[condition, ["accuracy_low", "accuracy_high"]].astype(float)
        )
    assert "Bars: 500 problems." in " ".join(figure.get_supxlabel().split())


def test_only_controls_are_refused(tmp_path):
    config = load("flipped-demo")
    with open_traces(tmp_path / "c.traces", problems=0, controls=2) as traces:
        with pytest.raises(ConfigError, match=r"c.traces holds only controls"):
            read_curves(config.panels, config, traces)
