import re
import subprocess

import pandas
import pytest

from attention_probe.analysis.average_curves import leaves_out_first_token
from attention_probe.figures.figure_config import load_figure_config
from attention_probe.figures.make_figure import make_figure
from harness.errors import ConfigError
from tests.make import ROOT, make_header

FIRST_MLP = sorted((ROOT / "configs/figures").glob("activations-*.yaml"))
CONFIGS = sorted({*(ROOT / "configs/figures").glob("*.yaml")} - {*FIRST_MLP})
STUDY = [path for path in CONFIGS if not path.stem.endswith(("-smollm2", "-products"))]
MODEL = "tests/data/toy/model"
MINIMAL = """
name: one
model: tests/data/toy/model
prompts: {dataset: math500}
heads: [{layer: 1, head: 1}]
rows: [{view: aligned, series: {wo: {label: None}, mless: {label: Mless}}}]
"""


def load(tmp_path, text=MINIMAL, *overrides):
    path = tmp_path / "figure.yaml"
    path.write_text(text)
    return load_figure_config(path, overrides)


SHAPES = {
    "Qwen/Qwen2.5-Math-7B": (28, 28),
    "meta-llama/Llama-3.1-8B-Instruct": (32, 32),
    "google/gemma-3-4b-it": (34, 8),
    "smollm2": (30, 9),
}
"""Layers and query heads, of the models' config.json."""


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_head_exists_and_is_named_in_its_title(path):
    config = load_figure_config(path)
    assert config.name == path.stem
    for panel in config.panels:
        layers, heads = SHAPES[panel.head.model]
        assert panel.head.layer <= layers and panel.head.head <= heads
        assert f"Head {panel.head.head}" in panel.title


def test_every_seed_figure_has_a_config_and_a_twin_on_smollm2_with_heads_by_the_rule():
    study = {load_figure_config(path).seed_document for path in STUDY}
    assert len(study) == len(STUDY) == 5
    for path in STUDY:
        config, twin = (
            load_figure_config(path),
            load_figure_config(path.with_name(f"{path.stem}-smollm2.yaml")),
        )
        for row, other in zip(config.rows, twin.rows, strict=True):
            assert (
                row.y_limits and row.model_copy(update={"y_limits": ()}) == other
            )  # another model has other weights
        for name in ("seed_document", "prompts", "y_label", "definition"):
            assert getattr(config, name) == getattr(twin, name)
        assert (config.bars is None) == (twin.bars is None)
        places = []
        for panel in config.panels[: len(config.heads)]:
            head = -(-9 * panel.head.head // SHAPES[panel.head.model][1])
            layer = panel.head.layer
            places.append((layer, head if (layer, head) not in places else head + 1))
        assert [(head.layer, head.head) for head in twin.heads] == places
        assert {panel.head.model for panel in twin.panels} == {"smollm2"}


def test_the_first_token_is_left_out_for_llama_and_gemma_unless_told(tmp_path):
    assert load(tmp_path).exclude_first_token is None
    assert [
        leaves_out_first_token(make_header(options={"model_type": t}))
        for t in ("llama", "gemma3_text", "qwen2")
    ] == [True, True, False]
    assert load(tmp_path, MINIMAL, "exclude_first_token=false").exclude_first_token is False


def test_what_a_head_leaves_out_is_the_figures(tmp_path):
    text = MINIMAL.replace("head: 1}", "head: 1}, {layer: 2, head: 5}")
    first, second = load(
        tmp_path, text.replace("{layer: 1,", "{model: a/Other-1B, name: Other, layer: 1,")
    ).panels
    assert (first.title, first.head.model) == ("Other Layer 1 Head 1", "a/Other-1B")
    assert (second.title, second.head.model) == ("model Layer 2 Head 5", MODEL)
    one = load(tmp_path, text)  # of one model, which is named once
    assert [one.title, *(panel.title for panel in one.panels)] == [
        "model",
        "Layer 1 Head 1",
        "Layer 2 Head 5",
    ]


def test_another_model_keeps_nothing_that_was_said_of_the_first(tmp_path):
    said = "note: of demo\nmodel_name: Demo\nbars: {title: t, runs: [r]}\n"
    text = said + MINIMAL.replace("head: 1}", "head: 1, title: Demo}").replace(
        "aligned,", "aligned, y_limits: [[0, 1]],"
    )
    other = load(tmp_path, text, "model=a/Other-1B", "note=of the other")
    assert (other.title, other.note, other.bars) == ("Other-1B", "of the other", None)
    assert [(panel.title, panel.y_limits) for panel in other.panels] == [("Layer 1 Head 1", None)]
    same = load(tmp_path, text, f"model={MODEL}")
    assert (
        same == load(tmp_path, text)
        and same.bars
        and same.panels[0].title == "Demo"
        and same.panels[0].y_limits
    )
    first_mlp = "name: x\nkind: histogram\nprompts: {dataset: math500}\nmodels: [{name: Demo, model: toy, c: 0.32}]"
    (model,) = load(tmp_path, first_mlp, "models.0.model=smollm2").models
    assert (model.title, model.c) == ("SmolLM2-135M-Instruct, Q4_1", 0.1)


@pytest.mark.parametrize(
    ("was", "becomes", "key"),
    [
        ("head: 1", "haed: 1", r"unknown key 'heads.0.haed'"),
        ("head: 1", "head: 0", r"heads.0.head: .*greater than or equal to 1"),
        (
            "dataset: math500",
            "n: 3",
            r"prompts: expected exactly one of `run`, `logs` and `dataset`",
        ),
        ("dataset: math500", "run: x, flip: changed", r"expected `controls: true`"),
        ("dataset: math500", "run: x, controls: true", r"matched to problems that flipped"),
        (f"model: {MODEL}\n", "", r"heads.0: needs `model`"),
        ("view: aligned", "view: full", r"series: view full has no line of 'wo'"),
        ("view: aligned", "view: difference", r"series: view difference has no line of 'wo'"),
        ("view: aligned", "view: aligned, y_limits: [[0, 1], [0, 2]]", r"rows.0: y_limits"),
        (
            "rows:",
            "bars: {title: t}\nrows:",
            r"bars: expected exactly one of `runs` and `reference`",
        ),
        ("name: one", "name: one\nkind: histogram", r"kind: histogram needs `models`"),
        ("rows:", "models: [{name: x, model: y}]\nrows:", r"kind: curves needs `heads` and `rows`"),
    ],
)
def test_what_is_refused(tmp_path, was, becomes, key):
    text = MINIMAL.replace(was, becomes, 1)
    assert text != MINIMAL
    with pytest.raises(ConfigError, match=key):
        load(tmp_path, text)


def appendix_commands():
    """The words of each `mless figure` command for the appendix's heads, as bash splits them."""
    text = (ROOT / "docs/reproduce.md").read_text()
    (block,) = re.findall(r"```bash\n(qwen=.*?)```", text, re.DOTALL)
    script = "mless() { printf '%s\\0' \"$@\"; printf '\\n'; }\n" + block
    said = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, check=True
    ).stdout
    return [line.split("\0")[:-1] for line in said.splitlines()]


def test_the_appendixs_heads_exist():
    commands = appendix_commands()
    assert len(commands) == 9
    for _, path, *options in commands:
        config = load_figure_config(ROOT / path, options[1::2])
        assert set(options[::2]) == {"--set"} and config.name.startswith("figure-")
        for panel in config.panels:
            layers, heads = SHAPES[panel.head.model]
            assert (
                panel.head.layer <= layers and panel.head.head <= heads and panel.y_limits is None
            )
        assert config.title == (config.model_name or config.model.rpartition("/")[2])


@pytest.mark.parametrize("path", STUDY, ids=lambda path: path.stem)
def test_every_seed_figure_is_drawn_from_a_model_with_as_many_heads(
    path, tiny_model, tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT)  # the reference numbers' path is of the repository
    config = load_figure_config(path)
    chosen = [
        f"heads.{index}.model={tiny_model(panel.head.model)}"
        for index, panel in enumerate(config.panels[: len(config.heads)])
    ]
    config = load_figure_config(path, [*chosen, "prompts.n=2"])
    files = make_figure(config, folder=tmp_path)
    assert {file.name for file in files} == {
        f"{path.stem}.{kind}" for kind in ("png", "svg", "pdf", "csv")
    }
    points = pandas.read_csv(tmp_path / f"{path.stem}.csv")
    layer_heads = points.loc[points["kind"] == "curve", ["layer", "head"]].drop_duplicates()
    assert layer_heads.to_numpy().tolist() == [[head.layer, head.head] for head in config.heads]
