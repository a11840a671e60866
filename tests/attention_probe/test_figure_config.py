"""Figure configs: what each must say, what is refused, and that the shipped ones show what the study's figures show."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pandas
import pytest

from attention_probe.analysis.curves import leaves_out_first_token
from attention_probe.figures.config import load_figure_config
from attention_probe.figures.make_figure import make_figure
from attention_probe.prompts.choose_prompts import prompts_config
from attention_probe.traces import TraceHeader
from harness import resources
from harness.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
FIRST_MLP = sorted((ROOT / "configs/figures").glob("activations-*.yaml"))
CONFIGS = sorted({*(ROOT / "configs/figures").glob("*.yaml")} - {*FIRST_MLP})
STUDY = [path for path in CONFIGS if not path.stem.endswith("-demo")]

TITLES = {
    "figure-qwen-heads-12-13-14": [f"Qwen2.5-Math-7B Layer 1 Head {head}" for head in (12, 13, 14)] * 2,
    "figure-llama-heads-20-25-26": [f"Llama3.1-8B-Instruct Layer 1 Head {head}" for head in (20, 25, 26)] * 2,
    "figure-qwen-layers-1-2-3-head-22": [f"Qwen2.5-7B-Math Layer {layer} Head 22" for layer in (1, 2, 3)],
    "figure-mless-vs-random-sentence-three-models": [
        "Qwen2.5-7B-Math Layer 1 Head 1",
        "Llama3.1-8B-Instruct Layer 1 Head 27",
        "Gemma3-4b-it Layer 1 Head 8",
    ],
    "figure-accuracy-bars-and-head-14": ["Average attention on Head 14"] * 2,
}
LEGENDS = {
    "figure-qwen-heads-12-13-14": [
        {"w/o Meaningless tokens": "blue", "w/ Meaningless tokens": "red"},
        {"w/ Meaningless tokens": "red"},
    ],
    "figure-llama-heads-20-25-26": [
        {"w/o Meaningless tokens": "blue", "w/ Meaningless tokens": "red"},
        {"w/ Meaningless tokens": "blue"},
    ],
    "figure-qwen-layers-1-2-3-head-22": [{"None": "blue", "Mless": "red"}],
    "figure-mless-vs-random-sentence-three-models": [{"Meaningless tokens": "blue", "Random sentence": "orange"}],
    "figure-accuracy-bars-and-head-14": [
        {"None": "blue", "Mless": "red", "Mful": "green"},
        {"Mless": "blue", "Mful": "red"},
    ],
}
TOPS = {
    "figure-qwen-heads-12-13-14": [0.14] * 6,
    "figure-llama-heads-20-25-26": [0.08, 0.12, 0.14, 0.07, 0.04, 0.05],
    "figure-qwen-layers-1-2-3-head-22": [0.08, 0.2, 0.175],
    "figure-mless-vs-random-sentence-three-models": [0.14, 0.1, 0.6],
    "figure-accuracy-bars-and-head-14": [0.1, 0.1],
}
"""Where the study's axes end, panel by panel."""

MINIMAL = """
name: one
model: demo
prompts: {dataset: demo}
heads: [{layer: 0, head: 0, label: Layer 1 Head 1}]
rows: [{view: aligned, series: {wo: None, mless: Mless}}]
"""


def load(tmp_path, text=MINIMAL, *overrides):
    path = tmp_path / "figure.yaml"
    path.write_text(text)
    return load_figure_config(path, overrides)


def header(model_type):
    """Of traces of a model of this family."""
    return TraceHeader(model="m", layers=(0,), head_count=1, conditions=("wo",), options={"model_type": model_type})


SHAPES = {
    "Qwen/Qwen2.5-Math-7B": (28, 28),
    "meta-llama/Llama-3.1-8B-Instruct": (32, 32),
    "google/gemma-3-4b-it": (34, 8),
}
"""Layers and query heads, of the models' config.json."""


def shape(panel):
    """Layers and query heads of a panel's model."""
    if panel.head.model == "demo":
        config = json.loads((resources.demo_model() / "config.json").read_text())
    else:
        return SHAPES[panel.head.model]
    return config["num_hidden_layers"], config["num_attention_heads"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_head_exists_and_its_label_counts_from_one(path):
    config = load_figure_config(path)
    assert config.name == path.stem
    for panel in config.panels:
        layers, heads = shape(panel)
        assert panel.head.layer < layers and panel.head.head < heads
        assert panel.head.label == f"Layer {panel.head.layer + 1} Head {panel.head.head + 1}"
        assert panel.title.endswith(panel.head.label) or f"Head {panel.head.head + 1}" in panel.title


def test_every_seed_figure_has_a_config_and_a_twin_on_the_bundled_model():
    study = {load_figure_config(path).seed_document for path in STUDY}
    assert study == set(TITLES)
    for path in STUDY:
        config, twin = load_figure_config(path), load_figure_config(path.with_name(f"{path.stem}-demo.yaml"))
        for row, other in zip(config.rows, twin.rows, strict=True):
            assert row.y_limits and row.model_copy(update={"y_limits": ()}) == other  # another model has other weights
        assert len(config.heads) == len(twin.heads) and config.one_prompt
        for name in ("seed_document", "y_label", "definition", "one_prompt"):
            assert getattr(config, name) == getattr(twin, name)
        assert (config.bars is None) == (twin.bars is None)
        assert {panel.head.model for panel in twin.panels} == {"demo"}


@pytest.mark.parametrize("path", STUDY, ids=lambda path: path.stem)
def test_panels_titles_legends_and_limits_are_the_studys(path):
    config = load_figure_config(path)
    assert [panel.title for panel in config.panels] == TITLES[config.seed_document]
    shown = [{one.label: one.colour for one in panel.shows.series.values()} for panel in config.panels]
    columns = len(config.heads)
    assert shown == [legend for legend in LEGENDS[config.seed_document] for _ in range(columns)]
    assert [row.limits for row in config.rows] == [
        (0, 60) if row.view == "aligned" else (0, 120) for row in config.rows
    ]
    tops = [panel.y_limits[1] for panel in config.panels]
    assert tops == TOPS[config.seed_document] and {panel.y_limits[0] for panel in config.panels} == {0}
    for panel in config.panels:
        assert bool(panel.head.exclude_first_token) == panel.head.model.startswith(("meta-llama/", "google/"))


def test_the_first_token_is_left_out_for_llama_and_gemma_unless_told(tmp_path):
    (panel,) = load(tmp_path).panels
    assert panel.head.exclude_first_token is None
    assert [leaves_out_first_token(header(t)) for t in ("llama", "gemma3_text", "qwen2")] == [True, True, False]
    (panel,) = load(tmp_path, MINIMAL, "exclude_first_token=false").panels
    assert panel.head.exclude_first_token is False


def test_panels_of_one_model_share_one_probe():
    config = load_figure_config(Path("qwen-layers-1-2-3-head-22.yaml"))
    (panels,) = config.groups
    assert panels == list(config.panels) and config.conditions == ("wo", "mless")
    assert [(panel.head.model, panel.head.layer) for panel in panels] == [
        ("Qwen/Qwen2.5-Math-7B", layer) for layer in (0, 1, 2)
    ]
    config = load_figure_config(Path("mless-vs-random-sentence.yaml"))
    assert [panel.head.model.rpartition("/")[2] for (panel,) in config.groups] == [
        "Qwen2.5-Math-7B",
        "Llama-3.1-8B-Instruct",
        "gemma-3-4b-it",
    ]
    assert config.conditions == ("wo", "mless", "random")


def test_what_a_head_leaves_out_is_the_figures(tmp_path):
    text = MINIMAL.replace(
        "label: Layer 1 Head 1}", "label: Layer 1 Head 1}, {layer: 1, head: 4, label: Layer 2 Head 5}"
    )
    first, second = load(tmp_path, text.replace("{layer: 0,", "{model: a/Other-1B, name: Other, layer: 0,")).panels
    assert (first.title, first.head.model) == ("Other Layer 1 Head 1", "a/Other-1B")
    assert (second.title, second.head.model) == ("demo Layer 2 Head 5", "demo")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("definition: x",), r"figure.yaml: definition: .*'common' or 'published', got 'x'"),
        (("heads.0", "head: 0", "haed: 0"), r"unknown key 'heads.0.haed'"),
        (
            ("series", "wo: None", "wo: {label: a, color: red}"),
            r"unknown key 'rows.0.series.wo.color'",
        ),
        (
            ("prompts", "dataset: demo", "dataset: demo, m: 1"),
            r"unknown key 'prompts.m'",
        ),
        (
            ("label", "Layer 1 Head 1", "Layer 0 Head 0"),
            r"heads.0: label counts from 1, layer and head from 0: expected 'Layer 1 Head 1' for layer 0, head 0, got "
            r"'Layer 0 Head 0'",
        ),
        (("prompts", "dataset: demo", "n: 3"), r"prompts: expected exactly one of `run`, `logs` and `dataset`"),
        (("prompts", "dataset: demo", "dataset: demo, flip: both_right"), r"`flip` selects by what a model answered"),
        (("prompts", "dataset: demo", "run: x, flip: changed"), r"expected `controls: true` in `prompts`"),
        (("prompts", "dataset: demo", "run: x, controls: true"), r"`controls` are matched to problems that flipped"),
        (("prompts", "prompts: {dataset: demo}\n", ""), r"prompts: Field required"),
        (("model", "model: demo\n", ""), r"heads.0: needs `model`, here or for the whole figure"),
        (("view", "view: aligned", "view: full"), r"view: full shows prompts with a filler, and 'wo' has none"),
        (("limits", "view: aligned", "view: aligned, y_limits: [1, 0]"), r"y_limits must be pairs that grow, got"),
        (
            ("limits", "view: aligned", "view: aligned, y_limits: [[0, 1], [0, 2]]"),
            r"rows.0: y_limits are one pair for the row or one for each of the 1 heads, got 2",
        ),
        (("view", "view: aligned", "view: difference"), r"view: difference subtracts 'wo': expected other conditions"),
        (("series", "mless: Mless", "dots: Dots"), r"know the conditions wo, mless, mful, random, got dots"),
        (("bars", "rows:", "bars: {title: t}\nrows:"), r"bars: expected exactly one of `runs` and `reference`"),
    ],
)
def test_what_is_refused_and_how_it_is_said(tmp_path, change, message):
    text = MINIMAL + change[0] if len(change) == 1 else MINIMAL.replace(*change[1:])
    assert text != MINIMAL
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_missing_figure_config_names_where_the_shipped_ones_are():
    with pytest.raises(ConfigError, match=r"Config nothing.yaml: No such file.*configs/figures"):
        load_figure_config(Path("nothing.yaml"))


def test_prompts_chosen_on_the_command_line_are_checked_as_in_a_config():
    assert prompts_config(dataset="demo", run=None, n=3, flip=None).n == 3
    with pytest.raises(ConfigError, match=r"^prompts: expected exactly one of `run`, `logs` and `dataset`"):
        prompts_config(run=None, dataset=None)
    with pytest.raises(
        ConfigError, match=r"^prompts: layout: .*'raw', 'chat', 'as_published' or 'as_printed', got 'x'"
    ):
        prompts_config(dataset="demo", layout="x")


def appendix_commands():
    """The words of each `mless figure` command for the appendix's heads, as bash splits them."""
    text = (ROOT / "docs/reproduce.md").read_text()
    (block,) = re.findall(r"```bash\n(free=.*?)```", text, re.DOTALL)
    script = "mless() { printf '%s\\0' \"$@\"; printf '\\n'; }\n" + block
    said = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout
    return [line.split("\0")[:-1] for line in said.splitlines()]


def test_the_appendixs_heads_exist():
    commands = appendix_commands()
    assert len(commands) == 9
    for _, path, *options in commands:
        config = load_figure_config(ROOT / path, options[1::2])
        assert set(options[::2]) == {"--set"} and config.name.startswith("figure-")
        for panel in config.panels:
            layers, heads = shape(panel)
            assert panel.head.layer < layers and panel.head.head < heads and panel.y_limits is None
            assert panel.title.startswith(config.model_name or config.model.rpartition("/")[2])


@pytest.mark.parametrize("path", STUDY, ids=lambda path: path.stem)
def test_every_seed_figure_is_drawn_from_a_model_with_as_many_heads(path, tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # the reference numbers' path is of the repository
    config = load_figure_config(path)
    chosen = [
        f"heads.{place}.model={tiny_model(panel.head.model)}"
        for place, panel in enumerate(config.panels[: len(config.heads)])
    ]
    config = load_figure_config(path, [*chosen, "prompts.dataset=demo", "prompts.n=2"])
    files = make_figure(config, folder=tmp_path)
    assert {file.name for file in files} == {
        f"{path.stem}{which}.{kind}" for which in ("", "-one-prompt") for kind in ("png", "svg", "pdf", "csv")
    }
    drawn = pandas.read_csv(tmp_path / f"{path.stem}.csv")
    assert list(dict.fromkeys(drawn.loc[drawn["kind"] == "curve", "label"])) == [head.label for head in config.heads]
