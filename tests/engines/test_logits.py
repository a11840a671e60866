"""The engine computes what Hugging Face computes in float32, on a CPU and on a GPU.

The log-probabilities of the first token are compared for 20 prompts. tf32 stores 10 of the 23 bits
of a float32 factor, and no other test detects it. On the bundled model vLLM on a CPU differs from
Hugging Face by at most 1.2e-5, and by 3.8e-6 on average. If attention rounds its factors to tf32,
these are 4.4e-3 and 7.8e-4. The limits lie between the two.
"""

from contextlib import closing

import pytest
import torch

from harness.engines.vllm_engine import VLLMEngine
from tests.conftest import gpu_share, ignore_warnings, load_eager, report, slow_engine
from tests.engines.test_interventions import ARGUMENTS
from tests.experiment.test_checked_prompts import MLESS, build
from tests.make import TOY_MODEL, TOY_PROBLEMS

TOP = 20
"""Tokens compared for each prompt: the engine's most likely ones. 20 is vLLM's own limit."""
LARGEST, MEAN = 1e-3, 1e-4
"""Under these differences, in nats, both compute in float32."""


def first_logprobs(engine, prompt):
    """Log-probabilities of the TOP most likely first tokens of a completion."""
    from vllm import SamplingParams, TokensPrompt

    parameters = SamplingParams(temperature=0, max_tokens=1, logprobs=TOP)
    engine._engine.add_request("logprobs", TokensPrompt(prompt_token_ids=list(prompt)), parameters)
    while not (outputs := [output for output in engine._engine.step() if output.finished]):
        pass
    return {token: entry.logprob for token, entry in outputs[0].outputs[0].logprobs[0].items()}


def measure_differences(prompts):
    """The differences [prompt, token] of the real engine from Hugging Face, and the engine's facts.

    Both have the same most likely token.
    """
    reference = load_eager(TOY_MODEL)
    arguments = {"pretrained": TOY_MODEL, **ARGUMENTS, "max_model_len": 1024, **gpu_share()}
    differences = []
    with closing(VLLMEngine(arguments, has_sampled_requests=False)) as engine:
        for prompt in prompts:
            logprobs = first_logprobs(engine, prompt)
            with torch.inference_mode():
                logits = reference(torch.tensor([list(prompt)])).logits[0, -1]
            expected = logits.double().log_softmax(dim=-1)
            differences.append(
                [abs(value - float(expected[token])) for token, value in logprobs.items()]
            )
            assert max(logprobs, key=logprobs.get) == int(expected.argmax())
        return torch.tensor(differences), engine.facts()


@pytest.mark.gpu
@slow_engine
@ignore_warnings
def test_first_token_log_probabilities_agree_with_hugging_face(toy_tokenizer):
    (built,) = build(toy_tokenizer, MLESS, problems=TOY_PROBLEMS[:20])
    differences, facts = measure_differences([prompt.token_ids for prompt in built.prompts])
    assert differences.shape == (20, TOP) and facts["dtype"] == "float32"
    largest, mean = differences.max(), differences.mean()
    report(f"log-probabilities differ by {largest:.1e} at most, {mean:.1e} on average")
    limits = (1e-4, 1e-5) if facts["device"] == "cpu" else (LARGEST, MEAN)
    assert largest < limits[0] and mean < limits[1]
    names = (
        "device device_names model_runner max_num_seqs max_num_batched_tokens block_size "
        "compute_capability attention_backends"
    )
    assert all(facts[name] for name in names.split())
    assert facts["max_model_len"] == 1024 and facts["triton_f32_default"] == "ieee"
