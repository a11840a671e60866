"""Traces that the engine records are those of the probe."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from attention_probe.figures.figure_config import load_figure_config
from attention_probe.measure.prompt_fields import MeasurementOptions
from attention_probe.probe_run import run_probe
from attention_probe.probe_settings import ProbeSettings
from attention_probe.traces import AttentionTraces
from harness import Run
from harness.analysis.problem_selection import Criterion
from harness.errors import ConfigError, PromptMismatchError
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.records import stored_prompts
from harness.runs.run_reader import source_of
from tests.attention_probe.conftest import save_model
from tests.attention_probe.test_figure_config import FIRST_MLP
from tests.attention_probe.test_probe import assert_close, assert_same_traces
from tests.conftest import gpu_share, slow_engine
from tests.engines.test_interventions import config, plan_requests
from tests.make import GREEDY_RUN, TOY_MODEL, read_data, read_source, with_cases

# of torch, as vllm is imported
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@slow_engine
@with_cases
def test_traces_of_the_engine_are_those_of_the_probe(model_type, rows, tmp_path):
    model = TOY_MODEL
    if model_type != "qwen2":
        # with heads of 32 units, which vLLM needs, and windows shorter than the prompts
        model = save_model(tmp_path / "model", model_type, head_dim=32, sliding_window=32)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).save_pretrained(model)
    source, criterion = read_source(GREEDY_RUN), Criterion(n=3)
    settings = ProbeSettings(
        model=str(model),
        layers=(0, 1, 2),
        conditions=("mless", "random"),
        record=MeasurementOptions(rows=rows),
    )
    run_probe(source, criterion, settings, tmp_path / "probe")
    settings = replace(settings, engine={"enforce_eager": True, **gpu_share()})
    run_probe(source, criterion, settings, tmp_path / "engine")
    assert_same_traces(tmp_path / "engine", tmp_path / "probe", problems=3)


def change(activations, _):
    """The function of the condition `file`, whose file is this one."""
    return activations


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
        receipt={"config": settings.values_with_defaults(), "model": {}},
        read=pytest.fail,
        read_prompts=lambda: msgspec.json.decode(prompts, type=list[AnsweredPrompt]),
    )
    return source_of(run)


@slow_engine
@with_cases
def test_attention_under_interventions_follows_from_attention_without_them(engine, tmp_path):
    path, names = tmp_path / "t.traces", ("slashes", "sink", "hidden", "bias", "phantom")
    record = MeasurementOptions(rows="last:9")
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
    missing = source.interventions["file"][0].model_copy(update={"file": "missing.py"})
    source.interventions["file"] = [missing]
    with pytest.raises(ConfigError, match=r"file missing.py: No such file"):
        ProbeSettings(engine={}).complete_from(source)


@pytest.mark.parametrize("path", FIRST_MLP)
def test_figures_of_activations_are_not_drawn_from_the_engine(path):
    with pytest.raises(ConfigError, match="the engine does not record them"):
        load_figure_config(path, {"traces": "run.traces"})
