import re

import pandas
import pytest

from attention_probe.analysis.average_curves import CurveSettings
from attention_probe.figures.figure_config import load_figure_config
from attention_probe.figures.probe_figure import make_figure
from harness.errors import ConfigError
from harness.yaml_settings import parse_overrides
from tests.conftest import mark_slow, run_program
from tests.make import (
    ROOT,
    TOY,
    make_header,
    make_trace,
    read_lines,
    with_cases,
    write_records,
    write_traces,
)
from tests.tiny_models import MODELS

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
    return load_figure_config(path, parse_overrides(overrides))


def assert_heads_exist(config):
    for panel in config.panels:
        _, layers, heads, _ = MODELS["study"][panel.model]
        assert panel.head.layer <= layers
        assert panel.head.head <= heads


@pytest.mark.parametrize("path", CONFIGS)
def test_every_head_exists_and_its_title_names_it(path):
    config = load_figure_config(path, {})
    assert config.name == path.stem
    assert_heads_exist(config)
    for panel in config.panels:
        assert f"Head {panel.head.head}" in panel.title


def scaled_heads(panels):
    """Layers and heads of the panels in SmolLM2, at the same share of all heads, once each."""
    scaled = []
    for panel in panels:
        layer, head = (
            panel.head.layer,
            -(-9 * panel.head.head // MODELS["study"][panel.model][2]),
        )
        scaled.append((layer, head if (layer, head) not in scaled else head + 1))
    return scaled


def test_every_study_figure_has_a_config_and_a_twin_on_smollm2_with_heads_by_the_rule():
    documents = {load_figure_config(path, {}).seed_document for path in STUDY}
    assert len(documents) == len(STUDY) == 5
    for path in STUDY:
        config = load_figure_config(path, {})
        twin = load_figure_config(path.with_name(f"{path.stem}-smollm2.yaml"), {})
        for row, twin_row in zip(config.rows, twin.rows, strict=True):
            assert row.y_limits
            # another model has other weights
            assert twin_row == row.model_copy(update={"y_limits": ()})
        for name in ("seed_document", "prompts", "y_label", "definition"):
            assert getattr(config, name) == getattr(twin, name)
        assert (config.bars is None) == (twin.bars is None)
        heads = [(head.layer, head.head) for head in twin.heads]
        assert heads == scaled_heads(config.panels[: len(config.heads)])
        assert {panel.model for panel in twin.panels} == {"smollm2"}


@with_cases
def test_the_first_token_is_left_out_for_llama_and_gemma_by_default(
    tmp_path, model_type, overrides, is_left_out
):
    header = make_header(options={"model_type": model_type})
    exclude_first = load(tmp_path, MINIMAL, *overrides).exclude_first_token
    settings = CurveSettings(layer=0, head=0, exclude_first=exclude_first)
    assert settings.first_x(header) == is_left_out


def test_a_head_without_a_model_has_that_of_the_figure(tmp_path):
    text = MINIMAL.replace("head: 1}", "head: 1}, {layer: 2, head: 5}")
    with_model = text.replace("{layer: 1,", "{model: a/Other-1B, name: Other, layer: 1,")
    panels = load(tmp_path, with_model).panels
    assert [(panel.title, panel.model) for panel in panels] == [
        ("Other Layer 1 Head 1", "a/Other-1B"),
        ("model Layer 2 Head 5", MODEL),
    ]
    config = load(tmp_path, text)
    assert config.title == "model"  # the only model is named once
    assert [panel.title for panel in config.panels] == ["Layer 1 Head 1", "Layer 2 Head 5"]


def test_another_model_has_no_titles_limits_or_bars_of_the_first(tmp_path):
    titled = MINIMAL.replace("head: 1}", "head: 1, title: Demo}")
    limited = titled.replace("aligned,", "aligned, y_limits: [[0, 1]],")
    text = "note: of demo\nmodel_name: Demo\nbars: {title: t, runs: [r]}\n" + limited
    changed = load(tmp_path, text, "model=a/Other-1B", "note=of the other")
    assert (changed.title, changed.note, changed.bars) == ("Other-1B", "of the other", None)
    (panel,) = changed.panels
    assert (panel.title, panel.y_limits) == ("Layer 1 Head 1", None)
    unchanged = load(tmp_path, text, f"model={MODEL}")
    assert unchanged == load(tmp_path, text)
    (panel,) = unchanged.panels
    assert unchanged.bars
    assert panel.title == "Demo"
    assert panel.y_limits
    text = (
        "name: x\nkind: histogram\nprompts: {dataset: math500}\n"
        "models: [{name: Demo, model: toy, c: 0.32}]"
    )
    (model,) = load(tmp_path, text, "models.0.model=smollm2").models
    assert (model.title, model.c) == ("SmolLM2-135M-Instruct, Q4_1", 0.1)
    assert load_figure_config(tmp_path / "figure.yaml", {}, model="smollm2").models == (model,)
    headless = MINIMAL.replace("{layer: 1, head: 1}", "{layer: 1}, {layer: 2}")
    (tmp_path / "figure.yaml").write_text(headless)
    heads = load_figure_config(tmp_path / "figure.yaml", {}, model="smollm2").heads
    assert [(head.layer, head.head) for head in heads] == [(1, 1), (2, 9)]


def test_traces_of_another_model_and_missing_heads_are_refused_before_a_measurement(tmp_path):
    traces = write_traces(tmp_path / "tiny.traces", [make_trace()])
    for override, message in (
        (f"traces={traces}", "traces of tiny, and the figure is of"),
        ("heads.0.head=99", r"^heads\.0: Head 99: .* has 6 heads\.$"),
    ):
        config = load(tmp_path, MINIMAL, override)
        with pytest.raises(ConfigError, match=message):
            make_figure(config, folder=tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


@with_cases
def test_a_faulty_figure_config_is_refused(tmp_path, old, new, message):
    text = MINIMAL.replace(old, new, 1)
    assert text != MINIMAL
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize("text", ["[a]", "heads: 3", "heads: [5]"])
def test_a_faulty_figure_config_is_refused_for_another_model_too(tmp_path, text):
    (tmp_path / "figure.yaml").write_text(text)
    with pytest.raises(ConfigError):
        load_figure_config(tmp_path / "figure.yaml", {}, model="smollm2")


def test_the_heads_of_the_appendix_exist():
    """The words of each `mless figure` command of the page are those that bash splits."""
    text = (ROOT / "docs/reproduce.md").read_text()
    (block,) = re.findall(r"```bash\n(qwen=.*?)```", text, re.DOTALL)
    script = "mless() { printf '%s\\0' \"$@\"; printf '\\n'; }\n" + block
    lines = run_program("bash", "-euc", script, check=True).stdout.splitlines()
    assert len(lines) == 9
    for line in lines:
        _, path, *options, _ = line.split("\0")
        assert set(options[::2]) == {"--set"}
        config = load_figure_config(ROOT / path, parse_overrides(options[1::2]))
        assert config.name.startswith("figure-")
        assert_heads_exist(config)
        assert not any(panel.y_limits for panel in config.panels)
        assert config.title == (config.model_name or config.model.rpartition("/")[2])


@pytest.mark.parametrize("path", mark_slow(STUDY, quick=[STUDY[2], STUDY[4]]))
def test_every_study_figure_is_drawn_once_with_a_model_with_as_many_heads_and_then_without(
    path, tiny_model, tmp_path, monkeypatch
):
    problems = tmp_path / "problems.jsonl"
    write_records(problems, read_lines(TOY / "demo.jsonl")[:4])
    monkeypatch.setenv("MATH500_PATH", str(problems))
    config = load_figure_config(path, {})
    overrides = {"prompts.n": 2}
    for index, panel in enumerate(config.panels[: len(config.heads)]):
        overrides[f"heads.{index}.model"] = str(tiny_model(panel.model))
    config_of_model = load_figure_config(path, overrides)
    files = make_figure(config_of_model, folder=tmp_path)
    monkeypatch.setattr("attention_probe.probe_settings.load_model", pytest.fail)
    assert make_figure(config_of_model, folder=tmp_path) == files
    if len({panel.model for panel in config.panels}) == 1:
        (stored,) = tmp_path.glob("traces/*")
        overrides["traces"] = stored.rename(tmp_path / "own.traces")
        assert make_figure(load_figure_config(path, overrides), folder=tmp_path) == files
    assert {file.suffix for file in files} == {".png", ".svg", ".pdf", ".csv"}
    assert {file.stem for file in files} == {path.stem}
    points = pandas.read_csv(tmp_path / f"{path.stem}.csv")
    heads = points.loc[points["kind"] == "curve", ["layer", "head"]].drop_duplicates()
    assert heads.to_numpy().tolist() == [[head.layer, head.head] for head in config.heads]
