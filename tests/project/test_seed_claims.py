"""What docs/seeds.md says of the bundled model is what its command measures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attention_probe.analysis.averaging import aligned_curve, full_curve
from attention_probe.traces import AttentionTraces
from benchmarks.seed_claims import BUNDLED, DEFINITIONS, StandIn, load, over_draws, page

PAGE = Path(__file__).resolve().parents[2] / "docs/seeds.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("seed-claims")


@pytest.fixture(scope="module")
def bundled(folder) -> StandIn:
    return load(BUNDLED, folder)


def test_the_first_table_of_the_page_is_what_is_printed_for_the_bundled_model(bundled):
    lines = re.findall(r"^\| (.+?) \| (published|common) \| .+ \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    first = next(page([[bundled]]))
    printed = re.findall(r"^\| (.+?) \| (published|common) \| (.+?) \|$", first, re.MULTILINE)
    assert lines == printed and len(printed) == 10


def test_each_number_of_random_weights_is_given_from_its_least_to_its_greatest():
    draws = ["0.69 (0.59 to 0.76)", "0.66 (0.61 to 0.76)", "0.71 (0.60 to 0.76)"]
    assert over_draws(draws) == "0.66..0.71 (0.59..0.61 to 0.76)"
    assert over_draws(["9 of 28", "20 of 28"]) == "9..20 of 28"
    assert over_draws(["15 %, 0 %"]) == "15 %, 0 %"


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("view", ["aligned", "full"])
def test_the_means_are_those_of_the_curves_that_figures_draw(bundled, folder, definition, view):
    curves = bundled.curves(definition, view, layer=1)
    draw = aligned_curve if view == "aligned" else full_curve
    with AttentionTraces.open(next(folder.glob("*.traces"))) as traces:
        drawn = draw(traces, condition="mless", layer=1, head=3, definition=definition, exclude_first=True, draws=1)
    shown = np.isin(drawn.x, curves.x)
    assert np.allclose(drawn.mean[shown], curves.means["mless"][3])
    assert drawn.count[shown].min() >= BUNDLED.n / 2 > drawn.count[~shown].max()


def test_without_math_500_the_bundled_problems_stand_in_and_the_page_says_so(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MATH500_PATH", str(tmp_path / "absent.jsonl"))
    one = load(replace(BUNDLED, dataset="math500", layers=(0,), n=2), tmp_path)
    assert one.about.startswith("2 problems of demo, layout raw")
    assert "bundled problems instead of MATH-500. Data file" in capsys.readouterr().err
