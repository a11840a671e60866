import itertools
import json
from xml.etree import ElementTree

import numpy as np
import pandas
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text
from PIL import Image

from harness import compare, load_run
from harness.commands.plot import plot
from harness.constants import FigureKind
from harness.display.figures.figure_style import STYLES, choose_styles, write_figure
from harness.display.figures.forest_figure import draw_forest
from harness.display.figures.sweep_figure import draw_dose
from harness.display.value_texts import MINUS
from harness.experiment.conditions import as_condition
from tests.make import (
    CONTROL,
    GREEDY_RUN,
    REGISTERED,
    compare_rows,
    drawn,
    evaluation,
    module_fixture,
    verdicts_by_count,
    with_cases,
)

MODELS = {
    "Qwen2.5-Math-1.5B": (0.5, 0.25),
    "Qwen2.5-Math-7B": (0.7, 0.0),
    "Llama-3.1-8B-Instruct": (0.5, -0.25),
}
"""The chance of each model to be right, and the effect of `mless`: a gain, none, and a loss."""
SUFFIXES = ("png", "svg", "pdf", "csv")


@module_fixture
def frame():
    """Samples of three models, with a repeat run of both sides of a contrast and a control."""
    frames = []
    for seed, (model, (base, effect)) in enumerate(MODELS.items()):
        chances = dict.fromkeys(("wo", "wo again", "random", "mful"), base)
        chances |= {"control": base / 3, "mless": base + effect, "mless again": base + effect}
        frames.append(evaluation(drawn(seed, 240, 1, chances), model=model).read())
    samples = pandas.concat(frames, ignore_index=True)
    # in this order
    names = ("wo", "random", "mful", "mless", "control")
    return pandas.concat([samples[samples["condition"] == name] for name in names])


@module_fixture
def table(frame):
    return compare(frame, reference_conditions=CONTROL)


def words(figure):
    """Every text on the page, with its box."""
    figure.draw_without_rendering()
    hidden = []
    for axes in figure.axes:
        # matplotlib stores the labels of ticks outside of the limits too, and does not draw them
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            ticks = axis.get_major_ticks()
            hidden += [tick.label1 for tick in ticks if not low <= tick.get_loc() <= high]
    return [
        (text.get_text(), text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]


def assert_readable(figure):
    """No text leaves the page, covers another, or is small where the figure fills 400 pixels."""
    page, boxes = figure.bbox, words(figure)
    for text, box in boxes:
        assert -1 <= box.x0 <= box.x1 <= page.x1 + 1, text
        assert -1 <= box.y0 <= box.y1 <= page.y1 + 1, text
    for (text, a), (second, b) in itertools.combinations(boxes, 2):
        width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(width, height) <= 1.5, (text, second)
    points = min(text.get_fontsize() for text in figure.findobj(Text))
    assert points * 400 / 72 / figure.get_figwidth() >= 9


def test_every_word_is_on_the_page_and_no_two_cover_each_other(table):
    figure = draw_forest(table)
    assert len(words(figure)) > 10
    assert_readable(figure)


def estimates(axes):
    """Each row of a dot: its marker, colour, whether it is filled, its value and interval, by y."""
    lines = [line for line in axes.lines if len(line.get_xdata())]
    intervals = {line.get_ydata()[0]: line for line in lines if line.get_marker() == "None"}
    rows = {}
    for mark in lines:
        if mark.get_marker() in "osv^PXDph":
            y = mark.get_ydata()[0]
            values = [*mark.get_xdata(), *(intervals[y].get_xdata() if y in intervals else ())]
            is_filled = to_hex(mark.get_markerfacecolor()) != "#ffffff"
            colour = to_hex(mark.get_color())
            rows[y] = (mark.get_marker(), colour, is_filled, [float(value) for value in values])
    return [rows[y] for y in sorted(rows)]


def as_estimate(row, columns, *, is_filled):
    """A row of a table, in the form of `estimates`."""
    style = STYLES[row["condition"]]
    return style.marker, style.colour, is_filled, [float(row[name]) for name in columns]


def test_the_forest_has_the_noise_first_and_then_all_intervals_and_fills_significant_dots(table):
    axes = draw_forest(table).axes[0]
    expected, intervals, verdicts = [], [], []
    assert set(table["verdict"]) > {"better", "worse"}
    for model in MODELS:
        rows = table[table["model"] == model].to_dict("records")
        noise = next(row for row in rows if row["condition"] == "mless")
        expected.append(as_estimate(noise, ["aa_difference"], is_filled=False))
        for row in rows:
            if row["condition"] in ("random", "mful", "mless"):
                is_filled = row["verdict"] in ("better", "worse")
                columns = ["difference", "low", "high"]
                expected.append(as_estimate(row, columns, is_filled=is_filled))
                verdicts.append(row["verdict"])
                intervals.append([row["low"], row["high"]])
    assert estimates(axes) == expected
    texts = [text.get_text().replace(MINUS, "-") for text in axes.texts]
    assert [text for text in texts if text in verdicts] == verdicts
    printed = [json.loads(text.replace("+", "")) for text in texts if text.startswith("[")]
    assert np.allclose(printed, intervals, atol=0.5)


@with_cases
def test_the_dose_figure_has_a_line_for_each_filler_with_an_interval_at_each_length(
    conditions, correct, points
):
    conditions = {entry.name: entry for entry in map(as_condition, conditions)}
    verdicts = {name: {"correct": n, "incorrect": 200 - n} for name, n in correct.items()}
    table = compare(evaluation(verdicts_by_count(verdicts)).read())
    figure = draw_dose(table, conditions)
    assert_readable(figure)
    (axes,) = figure.axes
    assert axes.get_legend_handles_labels()[1] == ["/", "he"]
    lines = [line.get_xydata().round() for line in axes.lines if len(line.get_xdata()) == 3]
    assert np.array_equal(lines, points)
    intervals, marks = axes.collections[::2], axes.collections[1::2]
    rows = table.set_index("condition")[["low", "high"]]
    for drawn_intervals, names in zip(intervals, ("ba", "cd"), strict=True):
        segments = [segment[:, 1] for segment in drawn_intervals.get_segments()]
        assert np.array_equal(segments, rows.loc[[*names]])
    colours = [[to_hex(face) for face in mark.get_facecolors()] for mark in marks]
    colour = choose_styles(conditions)["a"].colour
    assert colours == [[colour, colour], ["#ffffff", "#ffffff"]]


def test_no_label_is_a_formula_or_breaks_a_figure(table, tmp_path):
    label = "$x$ _ \\frac{ ^\x1b\x00\u202e\nb <b>&amp;"

    def rename(rows):
        names = {"model": {next(iter(MODELS)): label}, "condition": {"mful": label}}
        return rows.astype({"model": str, "condition": str}).replace(names)

    spelt = "".join(
        character if character.isprintable() else f"<U+{ord(character):04X}>" for character in label
    )
    figure = draw_forest(rename(table))
    write_figure(figure, table, tmp_path, "forest", {"seed": 1})
    ElementTree.parse(tmp_path / "forest.svg")
    texts = [text.replace("\n", "" if "U+" in text else " ") for text, _ in words(figure)]
    assert any(spelt in text for text in texts)


def test_the_look_of_a_condition_does_not_depend_on_the_other_conditions():
    names = ["mless", "dots", "wo", "mless - dots", "pause"]
    chosen = choose_styles(names)
    assert list(chosen) == names and len(set(chosen.values())) == len(names)
    assert chosen["wo"] == STYLES["wo"] and chosen["mless"] == STYLES["mless"]
    for name in names:
        assert choose_styles([name])[name].colour == chosen[name].colour
    assert len(set(choose_styles(map(str, range(20))).values())) == 20


def test_each_of_many_conditions_has_a_row_with_its_name(frame):
    base = frame[frame["model"] == next(iter(MODELS))]
    names = [f"slash-{number}" for number in range(1, 25)]
    copies = [base[base["condition"] == "mful"].assign(condition=name) for name in names]
    table = compare(pandas.concat([base[base["condition"] == "wo"], *copies], ignore_index=True))
    figure = draw_forest(table)
    assert_readable(figure)
    assert set(names) <= {text.get_text() for text in figure.axes[0].texts}


def test_plots_of_a_run_are_files_with_their_numbers_and_receipt(succeed, tmp_path):
    folder = tmp_path / "figures"
    lines = [line.split() for line in succeed("plot", GREEDY_RUN, "-o", folder).splitlines()]
    assert lines == [[suffix, str(folder / f"forest.{suffix}")] for suffix in SUFFIXES]
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert set(files) == {f"forest.{suffix}" for suffix in SUFFIXES}
    assert all(len(content) > 500 for content in files.values())
    rows = pandas.read_csv(folder / "forest.csv").set_index("condition")
    differences = rows[rows["role"] != "baseline"]["difference"]
    expected = compare_rows(load_run(GREEDY_RUN), **REGISTERED)["difference"]
    assert differences.to_dict() == pytest.approx(expected[differences.index].to_dict())
    image = Image.open(folder / "forest.png")
    receipt = json.loads(image.text["Description"])
    assert (receipt["figure"], receipt["baseline"], len(receipt["runs"])) == ("forest", "wo", 1)
    assert image.width == 1380
    plot([str(GREEDY_RUN)], [FigureKind.FOREST], output=tmp_path / "again")
    for file in (tmp_path / "again").iterdir():
        assert file.read_bytes() == files[file.name]  # the same numbers make the same files


def lab(colour, matrix):
    """CIE Lab of a colour as seen through a matrix of linear RGB."""
    rgb = np.asarray(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    perceived = np.clip(np.asarray(matrix) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.asarray(to_xyz) @ perceived / [0.9505, 1.0, 1.089])
    return np.asarray([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@with_cases
def test_colours_of_conditions_differ_without_one_kind_of_cone(missing, matrix):
    colours = [style.colour for style in STYLES.values()]
    for pair in itertools.combinations(colours, 2):
        first, second = (lab(colour, matrix) for colour in pair)
        assert np.linalg.norm(first - second) > 15, (missing, pair)
