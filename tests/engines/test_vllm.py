"""What the engine does before and after vLLM; with the real engine: test_engine.py, test_faults.py."""

import os
from types import SimpleNamespace

import pytest

from harness.engines import vllm
from harness.engines.vllm import VLLMEngine
from harness.errors import ConfigError, ModelError


def test_an_engine_that_does_not_start_leaves_the_environment_as_it_was(monkeypatch):
    def prepare():
        os.environ["VLLM_LOGGING_LEVEL"] = os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"  # as vLLM itself sets some
        raise ModelError("it does not start")

    monkeypatch.setattr(vllm, "_prepare_environment", prepare)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    before = dict(os.environ)
    with pytest.raises(ModelError, match="it does not start"):
        VLLMEngine({"pretrained": "x", "dtype": "float32", "batch_invariant": True})
    assert dict(os.environ) == before


def test_two_engines_that_compute_otherwise_are_not_alive_at_once(monkeypatch):
    monkeypatch.setattr(vllm, "_alive", [SimpleNamespace(_invariant=False)])
    with pytest.raises(ConfigError, match="close that one first"):
        VLLMEngine({"pretrained": "x", "batch_invariant": True})


@pytest.mark.parametrize(
    ("given", "fetched"),
    [
        ({"model": "org/name", "revision": "abc"}, [("org/name", "abc", True)]),
        ({"model": "/"}, []),
        ({"model": "org/name", "load_format": "dummy"}, []),
        ({"model": "org/name", "download_dir": "/data"}, []),
    ],
)
def test_weights_are_fetched_before_the_engine_starts(given, fetched, monkeypatch):
    calls = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        vllm, "fetch_repository", lambda name, revision, weights: calls.append((name, revision, weights))
    )
    vllm.fetch_weights(given)
    assert calls == fetched
