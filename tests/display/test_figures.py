import itertools
import json
from xml.etree import ElementTree

import numpy as np
import pandas
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text
from PIL import Image

from harness import load_run
from harness.analysis import compare
from harness.commands.plot import plot
from harness.constants import Kind
from harness.display.figures.figure_style import LOOKS, looks, save_figure
from harness.display.figures.interval_rows import draw_accuracies, draw_forest
from harness.display.figures.lines import draw_completion_lengths, length_shares
from harness.display.format_values import MINUS
from tests.commands.test_cli import here, refused
from tests.make import CONTROL, GREEDY_RUN, REGISTERED, drawn, evaluation

MODELS = {
    "Qwen2.5-Math-1.5B": (0.5, 0.25),
    "Qwen2.5-Math-7B": (0.7, 0.0),
    "Llama-3.1-8B-Instruct": (0.5, -0.25),
}
"""The chance to be right of each model, and what `mless` changes: it gains, stays, or loses."""


@pytest.fixture(scope="module")
def frame():
    """Samples of three models, with a second run of both sides of a contrast and a positive control."""
    frames = []
    for seed, (model, (base, effect)) in enumerate(MODELS.items()):
        chances = dict.fromkeys(("wo", "wo again", "random", "mful"), base) | {"control": base / 3}
        chances |= dict.fromkeys(("mless", "mless again"), base + effect)
        frames.append(evaluation(drawn(seed, 240, 1, chances), model=model).read())
    samples = pandas.concat(frames, ignore_index=True)
    order = ["wo", "random", "mful", "mless", "control"]
    samples = samples.sort_values(
        "condition", key=lambda names: names.map(order.index), kind="stable"
    )
    return samples.assign(
        completion_tokens=np.random.default_rng(5).integers(20, 900, len(samples))
    )


@pytest.fixture(scope="module")
def table(frame):
    return compare(frame, reference_conditions=CONTROL)


def draw_all(table, frame):
    return {
        "accuracy": draw_accuracies(table, title="Results"),
        "forest": draw_forest(table),
        "completion-lengths": draw_completion_lengths(
            length_shares(frame[frame["condition"] != "control"])
        ),
    }


def words(figure):
    """Every text that is on the page, with its box."""
    figure.draw_without_rendering()
    found = [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()
    ]
    ticks = {
        tick
        for axes in figure.findobj(lambda a: hasattr(a, "get_xticklabels"))
        for tick in _hidden_ticks(axes)
    }
    return [(text.get_text(), text.get_window_extent()) for text in found if text not in ticks]


def _hidden_ticks(axes):
    """Labels of ticks that are outside of the axes' limits, which matplotlib keeps and does not draw."""
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        low, high = sorted((low, high))
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            shown = axes.get_visible() and low <= tick.get_loc() <= high
            yield from (
                label
                for label in (tick.label1, tick.label2)
                if not shown or not label.get_visible()
            )
        yield axis.get_offset_text()


def cut_off(figure):
    page = figure.bbox
    return [
        text
        for text, box in words(figure)
        if box.x0 < -1 or box.y0 < -1 or box.x1 > page.x1 + 1 or box.y1 > page.y1 + 1
    ]


def covered(figure):
    return [
        (one, other)
        for (one, a), (other, b) in itertools.combinations(words(figure), 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1.5
    ]


def test_every_word_is_on_the_page_and_no_two_cover_each_other(table, frame):
    for kind, figure in draw_all(table, frame).items():
        assert len(words(figure)) > 10, kind
        assert not cut_off(figure), kind
        assert not covered(figure), kind


def estimates(axes):
    """What each row of dots shows: the marker, the colour, whether it is filled, the value and its interval, by y."""
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    marks = {line.get_ydata()[0]: line for line in drawn if line.get_marker() in "osv^PXDph"}
    lines = {line.get_ydata()[0]: line for line in drawn if line.get_marker() == "None"}
    return {
        y: (
            mark.get_marker(),
            to_hex(mark.get_color()),
            to_hex(mark.get_markerfacecolor()) != "#ffffff",
            [float(x) for x in (*mark.get_xdata(), *(lines[y].get_xdata() if y in lines else ()))],
        )
        for y, mark in sorted(marks.items())
    }


def test_the_forest_shows_noise_first_then_one_interval_of_every_row_and_fills_only_what_passed(
    table,
):
    axes = draw_forest(table).axes[0]
    shown = iter(estimates(axes).values())
    rows, intervals = [], []
    assert set(table["verdict"]) > {"better", "worse"}
    for model in MODELS:
        mine = table[table["model"] == model].set_index("condition")
        assert next(shown) == (*LOOKS["mless"][1::-1], False, [mine.loc["mless", "aa_difference"]])
        for condition in ("random", "mful", "mless"):
            row = mine.loc[condition]
            assert next(shown) == (
                *LOOKS[condition][1::-1],
                row["verdict"] in ("better", "worse"),
                [row["difference"], row["low"], row["high"]],
            )
            rows.append(row)
            intervals.append([row["low"], row["high"]])
    assert list(shown) == []
    texts = [text.get_text().replace(MINUS, "-") for text in axes.texts]
    verdicts = [row["verdict"] for row in rows]
    assert [text for text in texts if text in verdicts] == verdicts
    ends = [
        [float(end) for end in text[1:-1].split(", ")] for text in texts if text.startswith("[")
    ]
    assert np.allclose(ends, intervals, atol=0.5)


def test_dots_have_the_accuracies_and_their_intervals_in_the_tables_order(table):
    axes = draw_accuracies(table, title="Results").axes[0]
    rows = table[table["condition"] != "control"]
    assert list(estimates(axes).values()) == [
        (
            *LOOKS[row["condition"]][1::-1],
            True,
            [float(row[name]) for name in ("accuracy", "accuracy_low", "accuracy_high")],
        )
        for row in rows.to_dict("records")
    ]
    texts = [text.get_text() for text in axes.texts]
    assert [f"{value:.1f}" for value in rows["accuracy"]] == [
        one for one in texts if one.replace(".", "").isdigit()
    ]
    low, high = axes.get_xlim()
    assert low < rows["accuracy_low"].min() and high > rows["accuracy_high"].max()


def test_no_label_is_a_formula_or_breaks_a_figure(table, frame, tmp_path):
    label = "$x$ _ \\frac{ ^\x1b\x00\u202e\nb <b>&amp;"

    def named(rows):
        known = rows.assign(model=rows["model"].map(str), condition=rows["condition"].map(str))
        return known.replace({"model": {next(iter(MODELS)): label}, "condition": {"mful": label}})

    spelt = "".join(one if one.isprintable() else f"<U+{ord(one):04X}>" for one in label)
    for kind, figure in draw_all(named(table), named(frame)).items():
        save_figure(figure, tmp_path / kind, {"seed": 1})
        ElementTree.parse(tmp_path / f"{kind}.svg")
        shown = [text.replace("\n", "" if "U+" in text else " ") for text, _ in words(figure)]
        assert any(spelt in text for text in shown), kind


def test_lengths_are_shares_of_the_first_replicate_and_end_at_all(frame):
    shares = length_shares(frame)
    for names, rows in shares.groupby(["model", "layout", "condition"]):
        mine = frame[
            (frame["model"] == names[0])
            & (frame["condition"] == names[2])
            & (frame["replicate"] == 0)
        ]
        assert rows["share"].iloc[-1] == 100 and (rows["samples"] == len(mine)).all()
        middle = rows.iloc[len(rows) // 2]
        assert middle["share"] == pytest.approx(
            100 * (mine["completion_tokens"] <= middle["length"]).mean()
        )
    figure = draw_completion_lengths(shares[shares["condition"] != "control"])
    for axes, model in zip(figure.axes, MODELS, strict=True):
        medians = [int(number) for number in axes.get_title().split("median ")[1].split(" / ")]
        kept = frame[(frame["model"] == model) & (frame["replicate"] == 0)]
        expected = [
            kept[kept["condition"] == c]["completion_tokens"]
            for c in ("wo", "random", "mful", "mless")
        ]
        assert medians == [
            int(np.percentile(sizes, 50, method="inverted_cdf")) for sizes in expected
        ]


def test_a_condition_looks_the_same_whatever_else_is_shown():
    names = ["mless", "dots", "wo", "mless - dots", "pause"]
    shown = looks(names)
    assert list(shown) == names and len(set(shown.values())) == len(names)
    assert shown["wo"] == LOOKS["wo"] and shown["mless"] == LOOKS["mless"]
    assert looks(["dots", "pause"]) == {name: shown[name] for name in ("dots", "pause")}
    assert len(set(looks(map(str, range(20))).values())) == 20


def test_no_figure_reorders_the_conditions_of_a_run(frame):
    kept = frame[frame["condition"] != "control"].assign(repeats=0)
    order = ["mful", "wo", "random", "mless"]
    mixed = pandas.concat([kept[kept["condition"] == name] for name in order])
    table = compare(mixed)
    names = {"wo": "w/o", "mless": "w/ Mless", "mful": "w/ Mful", "random": "Random sentence"}
    for figure in (draw_accuracies(table, title=""), draw_forest(table)):
        shown = [
            text.get_text() for text in figure.axes[0].texts if text.get_text() in names.values()
        ]
        assert shown[: len(set(shown))] == [names[one] for one in order if names[one] in shown]
    (legend,) = draw_completion_lengths(length_shares(mixed)).legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == [names[one] for one in order if names[one] in shown] and len(shown) >= 3


def test_plots_of_a_run_are_files_with_their_numbers_and_receipt(tmp_path):
    plot([str(GREEDY_RUN)], output=tmp_path / "figures")
    files = list((tmp_path / "figures").iterdir())
    assert {file.name for file in files} == {
        f"{kind}.{suffix}"
        for kind in Kind
        if kind not in ("dose", "instructions", "causes")
        for suffix in ("png", "svg", "pdf", "csv")
    }
    assert all(file.stat().st_size > 500 for file in files)
    shown = pandas.read_csv(tmp_path / "figures" / "forest.csv")
    expected = compare(load_run(GREEDY_RUN), **REGISTERED).set_index("condition")
    for condition, row in shown.set_index("condition").iterrows():
        if row["role"] != "baseline":
            assert row["difference"] == pytest.approx(expected.loc[condition, "difference"])
    image = Image.open(tmp_path / "figures" / "forest.png")
    receipt = json.loads(image.text["Description"])
    assert (
        receipt["figure"] == "forest" and receipt["baseline"] == "wo" and len(receipt["runs"]) == 1
    )
    assert image.width == 2100
    plot([str(GREEDY_RUN)], [Kind.ACCURACY], output=tmp_path / "again")
    for file in (tmp_path / "again").iterdir():
        assert file.read_bytes() == (tmp_path / "figures" / file.name).read_bytes(), (
            "the same numbers, the same files"
        )


def test_the_command_names_its_files_and_refuses_what_it_cannot_write(
    capsys, monkeypatch, tmp_path
):
    done = here(
        capsys, monkeypatch, "plot", str(GREEDY_RUN), "--kind", "forest", "-o", str(tmp_path)
    )
    assert done.returncode == 0
    assert done.stdout.split() == [
        word
        for suffix in ("png", "svg", "pdf", "csv")
        for word in (suffix, str(tmp_path / f"forest.{suffix}"))
    ]
    (tmp_path / "file").write_text("")
    arguments = ("--kind", "accuracy", "-o", str(tmp_path / "file"))
    refused(
        here(capsys, monkeypatch, "plot", str(GREEDY_RUN), *arguments),
        "cannot be written: File exists. ",
    )


MACHADO = {  # Machado, Oliveira and Fernandes (2009), severity 1: how linear RGB looks without one kind of cone
    "none": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(colour, kind):
    """CIE Lab of a colour as seen with one kind of cone missing."""
    rgb = np.asarray(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(MACHADO[kind]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.asarray(to_xyz) @ seen / [0.9505, 1.0, 1.089])
    return np.asarray([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", MACHADO)
def test_conditions_are_told_apart_without_one_kind_of_cone(kind):
    for one, other in itertools.combinations((look.colour for look in LOOKS.values()), 2):
        assert np.linalg.norm(lab(one, kind) - lab(other, kind)) > 15, (one, other)
