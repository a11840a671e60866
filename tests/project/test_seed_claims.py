"""What docs/seeds.md says of the bundled model is what its command measures."""

import re
from pathlib import Path

import numpy as np
import pytest

from attention_probe.traces import AttentionTraces
from benchmarks.seed_claims import DEFINITIONS, PROMPTS, Traces, load, page
from tests.make import aligned_curve, full_curve

PAGE = Path(__file__).resolve().parents[2] / "docs/seeds.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("seed-claims")


@pytest.fixture(scope="module")
def bundled(folder) -> Traces:
    return load(folder)


def test_the_first_table_of_the_page_is_what_is_printed_for_the_bundled_model(bundled):
    table = re.search(r"^\| number .*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    printed = next(page(bundled))
    assert table[0].strip() == printed and printed.count("\n") == 6


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("view", ["aligned", "full"])
def test_the_means_are_those_of_the_curves_that_figures_draw(bundled, folder, definition, view):
    curves = bundled.curves(definition, view, layer=1)
    draw = aligned_curve if view == "aligned" else full_curve
    with AttentionTraces.open(next(folder.glob("*.traces"))) as traces:
        drawn = draw(traces, condition="mless", layer=1, head=3, definition=definition, exclude_first=True)
    shown = np.isin(drawn.x, curves.x)
    assert np.allclose(drawn.mean[shown], curves.means["mless"][3])
    assert drawn.count[shown].min() >= PROMPTS.n / 2 > drawn.count[~shown].max()
