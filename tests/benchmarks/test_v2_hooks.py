"""The hooks of vLLM's V2 runner, on a GPU or under Triton's interpreter."""

import json
import os
import sys
from contextlib import closing

import pytest
import torch
import yaml

from harness.engines.interventions.intervention_check import ask_reference
from harness.engines.interventions.open_layers import opened_layers
from harness.engines.vllm_engine import VLLMEngine
from tests.conftest import PATIENCE, gpu_share, needs_vllm, report, run_program, succeeded
from tests.engines.test_interventions import ARGUMENTS, ARM, PRODUCTS, config, plan_requests
from tests.make import ROOT, TOY_MODEL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),
    needs_vllm,
]

TRITON = os.environ.get("TRITON_FOLDER", ROOT / ".venv/triton")
"""Without a GPU Triton is not in the environment, because vLLM and torch would then use it."""
BOUND = 1e-4 if torch.cuda.is_available() else 2e-5
"""The largest difference of a log-probability."""
FOR_TOY_MODEL = {
    "4-10": "2-3",
    "6-12": "3-4",
    "2-30": "2-4",
    "layers: 20": "layers: 4",
    "name: first, unit: /": "name: first, unit: /, count: 60",
}


def run_module(module, *arguments):
    """Run a module of the hooks."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    environment["TRITON_F32_DEFAULT"] = "ieee"
    if not torch.cuda.is_available():
        if not os.path.isdir(TRITON):
            pytest.skip("Triton is not installed: make .venv/triton/installed")
        environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{TRITON}", "TRITON_INTERPRET": "1"}
    program = (sys.executable, "-m", f"benchmarks.v2_hooks.{module}", *arguments)
    return run_program(*program, env=environment, cwd=ROOT, timeout=2 * PATIENCE)


def read_output(process):
    """The JSON that a module prints last."""
    return json.loads(succeeded(process).stdout.splitlines()[-1])


def test_the_kernel_has_the_attention_of_our_arithmetic():
    errors = read_output(run_module("check_kernel"))
    assert len(errors) == 10
    report(f"the kernel's largest errors are {errors}")
    for shape, error in errors.items():
        # a bfloat16 has seven bits after the first; the interpreter does not round, but cuts off
        bound = 2**-7 if "bfloat16" in shape else 2e-6
        assert error < bound, shape


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """Answers of Hugging Face under all arms, and the layers that they change."""
    folder = tmp_path_factory.mktemp("arms")
    text = (ROOT / "tests/data/interventions.yaml").read_text()
    for smollm2_value, toy_value in FOR_TOY_MODEL.items():
        text = text.replace(smollm2_value, toy_value)
    (folder / "halve.py").write_text("def change(activations, _): return activations / 2\n")
    halve = {"kind": "function", "layers": "1-2", "file": str(folder / "halve.py")}
    function = {"name": "function", "intervention": [halve, ARM["intervention"]]}
    settings = config([*yaml.safe_load(text)["arms"], function], **PRODUCTS)
    plan, requests = plan_requests(settings, 2)
    reference = ask_reference(plan, requests, folder, print)
    return reference, opened_layers(settings.interventions)


def test_hooks_of_the_v1_runner_have_the_same_answers(arms):
    """So the answers of both runners are the same."""
    reference, layers = arms
    interventions = {"layers": layers, "reference": reference}
    arguments = {
        "pretrained": TOY_MODEL,
        **ARGUMENTS,
        **gpu_share(),
        "interventions": interventions,
    }
    with closing(VLLMEngine(arguments, sampled=False)) as engine:
        assert engine.facts()["interventions"]["largest"] < BOUND


def run_engine(arms, folder, **options):
    """Compare an engine's answers with those of Hugging Face."""
    sizes = {"max_num_seqs": 80, "block_size": 32, "kv_cache_memory_bytes": 2**27}
    options = {**ARGUMENTS, **sizes, **gpu_share(), **options}
    if torch.cuda.is_available():
        options["attention_backend"] = "TRITON_ATTN"  # FlashAttention has no float32
    (folder / "job.json").write_text(json.dumps([*arms, {"model": TOY_MODEL, **options}]))
    return run_module("check_engine", folder / "job.json")


CHUNKS = {
    "long_prefill_token_threshold": 32,
    "max_num_seqs": 32,
    # so small a cache that requests in the middle of their prompts are preempted
    "num_gpu_blocks_override": 48,
    "scheduler_reserve_full_isl": False,
}
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


@pytest.mark.parametrize(
    ("options", "count"),
    [
        pytest.param({}, "prefix_cache_hits", id="whole"),
        pytest.param(CHUNKS, "num_preemptions", id="chunks"),
        pytest.param({"enforce_eager": False}, "prefix_cache_hits", id="graphs", marks=NEEDS_GPU),
    ],
)
def test_a_batch_of_all_arms_has_the_answers_of_hugging_face(options, count, arms, tmp_path):
    reference, layers = arms
    questions = reference["questions"]
    if "enforce_eager" in options:  # a function of the user would exclude full graphs
        others = {name: arm for name, arm in questions["arms"].items() if name != "function"}
        reference = {**reference, "questions": {**questions, "arms": others}}
    agreement = read_output(run_engine((reference, layers), tmp_path, **options))
    report(f"log-probabilities differ by at most {agreement['largest']:.1g}")
    assert agreement["agreements"] == agreement["prompts"]
    assert agreement["largest"] < BOUND
    assert agreement[f"vllm:{count}"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="the caches are those of a CPU")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "fp8"}, "layer 1: these hooks do not support caches of"),
        ({"dtype": "bfloat16"}, "do not support caches of CPU_ATTN in torch.bfloat16"),
    ],
)
def test_a_cache_that_the_kernel_cannot_read_is_refused_at_the_start(
    options, message, arms, tmp_path
):
    process = run_engine(arms, tmp_path, **options)
    assert process.returncode and message in process.stderr
