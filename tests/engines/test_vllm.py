"""The engine's own work around vLLM. Tests with the real vLLM are in test_engine.py."""

import os
import time
from types import SimpleNamespace

import pytest

from harness.engines import vllm_engine
from harness.engines.engine_options import compilation_settings
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import ConfigError, ModelError
from tests.make import with_cases


def test_an_engine_that_does_not_start_leaves_the_environment_as_it_was(monkeypatch):
    def prepare():  # vLLM itself sets some variables too
        os.environ.update({"VLLM_LOGGING_LEVEL": "1", "VLLM_USE_BREAKABLE_CUDAGRAPH": "1"})
        raise ModelError("it does not start")

    monkeypatch.setattr(vllm_engine, "_prepare_environment", prepare)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    before = dict(os.environ)
    with pytest.raises(ModelError, match="it does not start"):
        VLLMEngine({"pretrained": "x", "dtype": "float32", "batch_invariant": True})
    assert dict(os.environ) == before


@with_cases
def test_batch_invariance_uses_vllms_kernel_of_rmsnorm_on_cuda(
    monkeypatch, device, compilation, expected
):
    monkeypatch.setattr(vllm_engine.os, "environ", {})
    monkeypatch.setattr(vllm_engine, "device_type", lambda: device)
    options = {"batch_invariant": True, "compilation_config": compilation}
    assert vllm_engine._choose_kernels(options) == {"compilation_config": expected}
    assert os.environ["VLLM_BATCH_INVARIANT"] == "1"
    options = {"batch_invariant": False, "compilation_config": compilation}
    assert vllm_engine._choose_kernels(options) == {"compilation_config": compilation}


def test_compilation_settings_that_are_no_mapping_are_refused():
    message = "compilation_config: expected a mapping, got 3"
    with pytest.raises(ConfigError, match=message):
        compilation_settings({"compilation_config": 3})


def test_steps_are_taken_until_a_request_finishes_or_the_time_is_over(monkeypatch):
    engine = VLLMEngine.__new__(VLLMEngine)
    steps = iter([[], [], ["finished"], ["finished later"]])
    # like vLLM's state of an unfinished request
    state = SimpleNamespace(detokenizer=SimpleNamespace(num_output_tokens=lambda: 3))
    processor = SimpleNamespace(request_states={"0-a8f3": state})
    engine._engine = SimpleNamespace(step=steps.__next__, output_processor=processor)
    assert engine._take_steps() == ["finished"]
    assert engine.token_counts == [3]  # progress is known between two completions
    assert engine._take_steps() == ["finished later"]
    monkeypatch.setattr(vllm_engine, "STEP_LOOP_SECONDS", 0.02)
    engine._engine = SimpleNamespace(step=lambda: time.sleep(0.01) or [])
    assert engine._take_steps() == []
