"""The hooks of vLLM's V2 runner, on a GPU or under Triton's interpreter."""

import json
import os
import re
import sys
from contextlib import closing

import pytest
import torch

from harness.engines.interventions.intervention_check import ask_reference
from harness.engines.interventions.open_layers import opened_layers
from harness.engines.vllm_engine import VLLMEngine
from tests.conftest import PATIENCE, gpu_share, needs_vllm, report, run_program, succeeded
from tests.engines.test_interventions import ARGUMENTS, ARM, PRODUCTS, config, plan_requests
from tests.make import ROOT, TOY_MODEL, read_data, with_cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),
    needs_vllm,
]

HAS_GPU = torch.cuda.is_available()
TRITON = os.environ.get("TRITON_FOLDER", ROOT / ".venv/triton")
"""Without a GPU Triton is not in the environment, because vLLM and torch would then use it."""
BOUND = 1e-4 if HAS_GPU else 2e-5
"""The largest difference of a log-probability."""
FOR_TOY_MODEL = {
    '"4-10"': '"2-3"',
    '"6-12"': '"3-4"',
    '"2-30"': '"2-4"',
    '"layers": 20': '"layers": 4',
    '"unit": "/", "placement"': '"unit": "/", "count": 60, "placement"',
}
"""Arms for four layers, with fillers that the interpreter computes in minutes."""


def run_module(module, *arguments):
    """Run a module of the hooks."""
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TRITON_F32_DEFAULT": "ieee"}
    environment["PYTHONPATH"] = str(ROOT)
    if not HAS_GPU:
        if not os.path.isdir(TRITON):
            pytest.skip("Triton is not installed: make .venv/triton/installed")
        environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{TRITON}", "TRITON_INTERPRET": "1"}
    program = (sys.executable, "-m", f"benchmarks.v2_hooks.{module}", *arguments)
    return run_program(*program, env=environment, cwd=ROOT, timeout=2 * PATIENCE)


def test_the_kernel_has_the_attention_of_our_arithmetic():
    errors = json.loads(succeeded(run_module("check_kernel")).stdout)
    largest = {dtype: max(values) for dtype, values in errors.items()}
    report(f"the kernel's largest errors are {largest}")
    # a bfloat16 has seven bits after the first; the interpreter does not round, but cuts off
    bounds = {"float32": 2e-6, "bfloat16": 2**-7}
    assert errors.keys() == bounds.keys()
    for dtype, bound in bounds.items():
        assert all(error < bound for error in errors[dtype]), dtype


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """Answers of Hugging Face under all arms, and the layers that they change, as JSON."""
    folder = tmp_path_factory.mktemp("arms")
    text = json.dumps(read_data("interventions")["arms"])
    for value, toy_value in FOR_TOY_MODEL.items():
        text = text.replace(value, toy_value)
    (folder / "halve.py").write_text("def change(activations, _): return activations / 2\n")
    halve = {"kind": "function", "layers": "1-2", "file": str(folder / "halve.py")}
    function = {"name": "function", "intervention": [halve, ARM["intervention"]]}
    settings = config([*json.loads(text), function], **PRODUCTS)
    plan, _ = plan_requests(settings, 2)
    reference = ask_reference(plan, print)
    return json.dumps([reference, opened_layers(settings.interventions)])


def test_hooks_of_the_v1_runner_have_the_answers_of_hugging_face(arms):
    reference, layers = json.loads(arms)
    interventions = {"layers": layers, "reference": reference}
    arguments = {
        "pretrained": TOY_MODEL,
        **ARGUMENTS,
        **gpu_share(),
        "interventions": interventions,
    }
    with closing(VLLMEngine(arguments, has_sampled_requests=False)) as engine:
        assert engine.facts()["interventions"]["largest"] < BOUND


def run_engine(arms, folder, options):
    """Compare the answers of an engine with V2 hooks with those of Hugging Face."""
    sizes = {"max_num_seqs": 80, "block_size": 32, "kv_cache_memory_bytes": 2**27}
    if HAS_GPU:  # FlashAttention has no float32
        sizes = {**gpu_share(), "attention_backend": "TRITON_ATTN"}
    reference, layers = json.loads(arms)
    if "enforce_eager" in options:  # a function of the user excludes full graphs
        del reference["questions"]["arms"]["function"]
    job = [reference, layers, {"model": TOY_MODEL, **ARGUMENTS, **sizes, **options}]
    (folder / "job.json").write_text(json.dumps(job))
    return run_module("check_engine", folder / "job.json")


@with_cases
def test_a_batch_of_all_arms_has_the_answers_of_hugging_face(options, count, arms, tmp_path):
    if "enforce_eager" in options and not HAS_GPU:
        pytest.skip("CUDA graphs need a GPU")
    output = succeeded(run_engine(arms, tmp_path, options)).stdout
    agreement = json.loads(output.splitlines()[-1])
    report(f"log-probabilities differ by at most {agreement['largest']:.1g}")
    assert len(agreement["prompts"]) >= 32
    assert agreement["largest"] < BOUND and agreement[f"vllm:{count}"] > 0


@with_cases
def test_what_the_kernel_does_not_support_is_refused_at_the_start(
    options, obstacle, arms, tmp_path
):
    process = run_engine(arms, tmp_path, options)
    assert process.returncode
    assert re.search(f"layer 1: these hooks do not support {obstacle}", process.stderr)
