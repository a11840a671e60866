"""The engine computes what Hugging Face computes in float32, on a CPU and on a GPU.

First-token log-probabilities of 20 prompts, side by side. tf32 keeps 10 of float32's 23 bits of a factor, and nothing
else shows that it was used. On the bundled model vLLM on a CPU is 1.2e-5 away from Hugging Face at most, 3.8e-6 in the
mean; attention whose factors were rounded to tf32 was 4.4e-3 and 7.8e-4 away. The limits lie between the two.
"""

import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM

from harness.engines.vllm_engine import VLLMEngine
from harness.experiment.built_prompts import measure_prompt
from harness.experiment.conditions import as_condition
from harness.experiment.prompt import Layout, PromptSettings, build_prompt
from harness.experiment.tokenizer import fit_filler
from tests.conftest import gpu_share, report
from tests.make import TOY_MODEL, TOY_PROBLEMS

TOP = 20
"""Tokens compared for each prompt: the engine's most likely ones. 20 is vLLM's own limit."""
LARGEST, MEAN = 1e-3, 1e-4
"""Under these differences, in nats, both compute in float32."""
ARGUMENTS = {
    "pretrained": TOY_MODEL,
    "dtype": "float32",
    "max_model_len": 1024,
    "enforce_eager": True,
}


@pytest.fixture(scope="module")
def prompts(toy_tokenizer):
    condition = as_condition("mless")
    text = fit_filler(condition, toy_tokenizer)
    return [
        measure_prompt(
            build_prompt(problem.problem, condition, filler_text=text, settings=PromptSettings()),
            Layout.RAW,
            toy_tokenizer,
        ).token_ids
        for problem in TOY_PROBLEMS[:20]
    ]


def first_logprobs(engine, prompt):
    """Log-probabilities of the TOP most likely first tokens of a completion."""
    from vllm import SamplingParams, TokensPrompt

    parameters = SamplingParams(temperature=0, max_tokens=1, logprobs=TOP)
    engine._engine.add_request("logprobs", TokensPrompt(prompt_token_ids=list(prompt)), parameters)
    while not (outputs := [output for output in engine._engine.step() if output.finished]):
        pass
    return {token: entry.logprob for token, entry in outputs[0].outputs[0].logprobs[0].items()}


@pytest.fixture(scope="module")
def checked(prompts):
    """The real engine's facts, and its differences [prompt, token] from Hugging Face with the same first tokens."""
    reference = AutoModelForCausalLM.from_pretrained(
        TOY_MODEL, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    differences, first = [], []
    with warnings.catch_warnings(action="ignore"):  # those of vLLM and torch are not ours
        engine = VLLMEngine({**ARGUMENTS, **gpu_share()}, sampled=False)
        try:
            for prompt in prompts:
                logprobs = first_logprobs(engine, prompt)
                with torch.inference_mode():
                    expected = (
                        reference(torch.tensor([list(prompt)]))
                        .logits[0, -1]
                        .double()
                        .log_softmax(dim=-1)
                    )
                differences.append(
                    [abs(value - float(expected[token])) for token, value in logprobs.items()]
                )
                first.append(max(logprobs, key=logprobs.get) == int(expected.argmax()))
            return engine.facts(), torch.tensor(differences), all(first)
        finally:
            engine.close()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.engine
def test_first_token_log_probabilities_agree_with_hugging_face(checked):
    facts, differences, same_first = checked
    assert differences.shape == (20, TOP) and same_first and facts["dtype"] == "float32"
    report(
        f"log-probabilities differ by {differences.max():.1e} at most, {differences.mean():.1e} on average"
    )
    largest, mean = (1e-4, 1e-5) if facts["device"] == "cpu" else (LARGEST, MEAN)
    assert differences.max() < largest and differences.mean() < mean
    names = (
        "device",
        "device_names",
        "model_runner",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
    )
    assert all(
        facts[name]
        for name in (*names, "compute_capability", "attention_backends", "multiprocessing")
    )
    assert facts["max_model_len"] == 1024 and facts["triton_f32_default"] == "ieee"
