"""Tables and bars from a tidy frame."""

from __future__ import annotations

import json

import pandas
import pytest

from harness.errors import RunError
from harness.figures import draw_accuracy_bars, save_figure
from harness.leaderboard import accuracy_table
from harness.records import load_run


@pytest.fixture
def frame():
    rows = []
    for condition, right in (("wo", 6), ("mless", 8)):
        for i in range(10):
            verdict = "correct" if i < right else ("no_box", "truncated", "incorrect", "crashed")[i % 4]
            rows.append(
                {
                    "model": "m",
                    "condition": condition,
                    "layout": "raw",
                    "problem_id": str(i),
                    "repeat": 0,
                    "verdict": verdict,
                    "correct": verdict == "correct",
                    "math_verify": verdict == "correct",
                }
            )
    return pandas.DataFrame(rows)


def test_accuracy_standard_error_and_counts(frame):
    table = accuracy_table(frame).set_index("condition")
    wo = table.loc["wo"]
    assert (wo["n"], wo["accuracy"], wo["correct"]) == (10, 60.0, 6)
    assert wo["standard_error"] == pytest.approx(100 * (0.24 / 9) ** 0.5)
    assert (wo["no_box"], wo["truncated"], wo["ungraded"]) == (1, 1, 1)


def test_repeats_of_a_problem_are_averaged_before_the_error(frame):
    doubled = accuracy_table(pandas.concat([frame, frame.assign(repeat=1)]))
    assert list(doubled["standard_error"]) == list(accuracy_table(frame)["standard_error"])


def test_the_figure_carries_its_receipt(frame, tmp_path):
    from PIL import Image

    figure = draw_accuracy_bars(accuracy_table(frame), title="Results")
    (axes,) = figure.axes
    assert [bar.get_height() for bars in axes.containers if hasattr(bars, "patches") for bar in bars.patches] == [
        60,
        80,
    ]
    png, svg = save_figure(figure, tmp_path / "x", {"seed": 7})
    assert json.loads(Image.open(png).text["Description"]) == {"seed": 7}
    assert "<svg" in svg.read_text()


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"holds no finished run: expected run.json"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text('{"tasks": [')
    with pytest.raises(RunError, match="is torn"):
        load_run(tmp_path)
