"""Traces that the engine records, and figures of them, are those of the probe."""

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pandas
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from attention_probe.figures.figure_config import load_figure_config
from attention_probe.figures.probe_figure import make_figure
from attention_probe.measure.prompt_fields import RecordOptions
from attention_probe.probe_run import run_probe
from attention_probe.probe_settings import ProbeSettings
from attention_probe.traces import AttentionTraces
from harness import Run
from harness.analysis.problem_selection import Criterion
from harness.errors import ConfigError, PromptMismatchError
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.records import stored_prompts
from harness.runs.run_reader import source_of
from harness.yaml_settings import parse_overrides
from tests.attention_probe.conftest import save_model
from tests.attention_probe.test_figure_config import CONFIGS, FIRST_MLP
from tests.attention_probe.test_probe import assert_close, assert_same_traces
from tests.conftest import gpu_share
from tests.engines.test_interventions import config, plan_requests, slow_engine
from tests.make import GREEDY_RUN, ROOT, TOY_MODEL, read_data, read_source, with_cases

# of torch, as vllm is imported
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GEMMA_HEADS = 8
"""Query heads of Gemma3-4b-it, whose Head 8 is drawn."""
CHUNKS = {"enable_chunked_prefill": True, "max_num_batched_tokens": 64}

PROMPTS = f"prompts={{run: {GREEDY_RUN}, n: 4}}"


def save_causal_model(folder, model_type, **shape):
    """Save a small random model that vLLM can run: with a language head, and heads of 32 units."""
    save_model(folder, model_type, head_dim=32, **shape)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@slow_engine
@with_cases
def test_traces_of_the_engine_are_those_of_the_probe(model_type, rows, tmp_path):
    model = TOY_MODEL
    if model_type != "qwen2":
        # windows are shorter than the prompts
        model = save_causal_model(tmp_path / "model", model_type, sliding_window=32)
    source, criterion = read_source(GREEDY_RUN), Criterion(n=3)
    settings = ProbeSettings(
        model=str(model),
        layers=(0, 1, 2),
        conditions=("mless", "random"),
        record=RecordOptions(rows=rows),
    )
    run_probe(source, criterion, settings, tmp_path / "probe")
    settings = replace(settings, engine={"enforce_eager": True, **gpu_share()})
    run_probe(source, criterion, settings, tmp_path / "engine")
    assert_same_traces(tmp_path / "engine", tmp_path / "probe", problems=3)


def read_interventions(weight=10):
    """A prompt under interventions, as a run stores it."""
    conditions = read_data("interventions")["recorded"]
    conditions[2]["intervention"]["weight"] = weight
    conditions[-1]["intervention"]["file"] = __file__
    settings = config(conditions, arguments=gpu_share())
    prompts = msgspec.json.encode(stored_prompts(plan_requests(settings, 1)[0]))
    run = Run(
        name="RUN",
        about={"source": "run"},
        model=TOY_MODEL,
        model_arguments=settings.model_arguments(),
        receipt={"config": settings.as_written()},
        read=pytest.fail,
        read_prompts=lambda: msgspec.json.decode(prompts, type=list[AnsweredPrompt]),
    )
    return source_of(run)


@slow_engine
@pytest.mark.parametrize("engine", [{}, CHUNKS], ids=["whole", "chunks"])
def test_attention_under_interventions_follows_from_attention_without_them(engine, tmp_path):
    path, names = tmp_path / "t.traces", ("slashes", "sink", "hidden", "bias", "phantom")
    record = RecordOptions(rows="last:9")
    settings = ProbeSettings(layers=(0, 1, 2), conditions=names, record=record, engine=engine)
    run_probe(read_interventions(), Criterion(), settings, path)
    with AttentionTraces(path) as traces:
        by_condition = {trace.condition: trace for trace in traces}
    # [head, query, key] in Layer 1, where interventions change weights alone
    slashes, sink, hidden, bias, phantom = (by_condition[name].rows[0] for name in names)
    is_inserted = by_condition["slashes"].original_pos < 0
    counted = slashes * np.where(np.arange(len(is_inserted)), 1, 10)
    assert_close(sink, counted / counted.sum(-1, keepdims=True))
    original = np.where(is_inserted, 0, slashes)
    assert_close(hidden, original / original.sum(-1, keepdims=True))
    assert_close(bias, np.where(is_inserted, slashes, hidden))
    assert_close(phantom, slashes[..., ~is_inserted])
    shares = {name: by_condition[name].measures["lambda"][0] for name in names}
    assert_close(shares["phantom"], shares["slashes"])
    masses = by_condition["hidden"].measures["mass_filler"]
    assert (masses > 0).all(axis=-1).tolist() == [False, True, False]
    with pytest.raises(PromptMismatchError, match="under sink with another prompt or intervention"):
        run_probe(read_interventions(weight=3), Criterion(), settings, path)


def test_interventions_need_the_engine_and_the_function_of_the_run():
    source = read_interventions()
    assert ProbeSettings().complete_from(source).conditions == ("wo", "slashes")
    settings = ProbeSettings(conditions=("sink",))
    with pytest.raises(ConfigError, match="under sink, which only the engine does: add --engine"):
        settings.complete_from(source)
    source.problems[0].prompts["file"].intervention[0]["sha256"] = "another"
    with pytest.raises(ConfigError, match="has other content than when it was run"):
        ProbeSettings(engine={}).complete_from(source)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A function that records prompts of the run in the engine once for each model."""

    @cache
    def record_traces(model):
        path = tmp_path_factory.mktemp("recorded") / "run.traces"
        settings = ProbeSettings(
            model=str(model), layers=(0, 1, 2), engine={"enforce_eager": True, **gpu_share()}
        )
        run_probe(read_source(GREEDY_RUN), Criterion(n=4), settings, path)
        return path

    return record_traces


def assert_same_figure(path, model, folder, traces, *overrides):
    """The numbers of a figure from traces of the engine are those from the probe."""
    tables = []
    for name, source in (("engine", [f"traces={traces}"]), ("probe", [])):
        config = load_figure_config(path, parse_overrides([*overrides, *source]), model=model)
        make_figure(config, folder=folder / name)
        tables.append(pandas.read_csv(folder / name / f"{config.name}.csv"))
    pandas.testing.assert_frame_equal(*tables, check_exact=False, rtol=0, atol=1e-5)


@slow_engine
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_figure_of_attention_is_the_same_from_the_engine(path, record, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert_same_figure(path, TOY_MODEL, tmp_path, record(TOY_MODEL), PROMPTS)


@slow_engine
def test_the_panel_of_gemma_is_the_same_from_the_engine(record, tmp_path):
    shape = {"num_attention_heads": GEMMA_HEADS, "num_key_value_heads": 4}
    model = save_causal_model(tmp_path / "gemma", "gemma3_text", **shape)
    overrides = [
        f"heads=[{{model: {model}, layer: 1, head: {GEMMA_HEADS}}}]",
        "rows=[{view: full, series: {mless: {}, random: {}}}]",
        PROMPTS,
    ]
    path = ROOT / "configs/figures/mless-vs-random-sentence.yaml"
    assert_same_figure(path, None, tmp_path, record(model), *overrides)


@pytest.mark.parametrize("path", FIRST_MLP, ids=lambda path: path.stem)
def test_figures_of_activations_are_not_drawn_from_the_engine(path):
    with pytest.raises(ConfigError, match="the engine does not record them"):
        load_figure_config(path, {"traces": "run.traces"})
