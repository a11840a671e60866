"""The engine computes what Hugging Face computes in float32: on a CPU here, on a GPU with the marker `gpu`."""

from __future__ import annotations

import warnings

import pytest

from harness import resources
from harness.conditions import named_condition
from harness.datasets import load_demo
from harness.logit_check import check_logits
from harness.prompts import Layout, build_prompt
from harness.tokenization import fit_filler, measure
from harness.vllm_adapter import VLLMEngine

pytestmark = pytest.mark.engine

DEMO = str(resources.demo_model())
ARGUMENTS = {"pretrained": DEMO, "dtype": "float32", "max_model_len": 1024, "enforce_eager": True}


@pytest.fixture(scope="module")
def checked(demo_tokenizer):
    """20 prompts of 20 problems with 55 slashes before them, through the real engine, and what it ran on."""
    condition = named_condition("mless")
    text = fit_filler(condition, demo_tokenizer)
    prompts = [
        measure(
            build_prompt(problem.problem, condition, filler_text=text, layout=Layout.RAW), Layout.RAW, demo_tokenizer
        ).prompt_token_ids
        for problem in load_demo().problems[:20]
    ]
    with warnings.catch_warnings(action="ignore"):  # those of vLLM and torch are not ours
        engine = VLLMEngine(ARGUMENTS, sampled=False)
        try:
            return engine.facts(), check_logits(engine, DEMO, prompts)
        finally:
            engine.close()


@pytest.mark.slow
def test_on_a_cpu_logits_agree_with_hugging_face(checked):
    facts, check = checked
    if facts["device"] != "cpu":
        pytest.skip("the engine runs on a GPU here; the test with the marker gpu looks at that")
    assert (check.prompts, check.same_first) == (20, 20)
    assert check.mean < 1e-6 < 1e-4 > check.largest
    assert facts["dtype"] == "float32" and facts["attention_backends"] == ["CPU_ATTN"]


@pytest.mark.gpu
def test_on_a_gpu_float32_is_float32(checked):
    facts, check = checked
    assert facts["device"] == "cuda" and facts["triton_f32_default"] == "ieee"
    assert (check.prompts, check.same_first) == (20, 20)
    assert check.largest < 1e-3 and check.mean < 1e-4


@pytest.mark.slow
def test_the_engine_says_what_it_runs_on(checked):
    facts, _ = checked
    known = ("device", "device_names", "model_runner", "dtype", "max_num_seqs", "max_num_batched_tokens", "block_size")
    assert all(facts[name] for name in (*known, "compute_capability", "attention_backends", "multiprocessing"))
    assert facts["max_model_len"] == 1024 and facts["triton_f32_default"] == "ieee"
