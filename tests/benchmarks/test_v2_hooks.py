"""The hooks of vLLM's V2 runner, on a GPU or under Triton's interpreter."""

import json
import os
import sys

import pytest
import torch

from tests.conftest import PATIENCE, needs_vllm, run_program, succeeded
from tests.make import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.engine, needs_vllm]

TRITON = os.environ.get("TRITON_FOLDER", ROOT / ".venv/triton")
"""Without a GPU Triton is not in the environment, because vLLM and torch would then use it."""


def run_module(module, *arguments):
    """The JSON that a module of the hooks prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if not torch.cuda.is_available():
        if not os.path.isdir(TRITON):
            pytest.skip("Triton is not installed: make .venv/triton/installed")
        environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{TRITON}", "TRITON_INTERPRET": "1"}
    program = (sys.executable, "-m", f"benchmarks.v2_hooks.{module}", *arguments)
    process = succeeded(run_program(*program, env=environment, cwd=ROOT, timeout=PATIENCE))
    return json.loads(process.stdout)


def test_the_kernel_has_the_attention_of_our_arithmetic():
    errors = run_module("check_kernel")
    assert len(errors) == 10
    for shape, error in errors.items():
        # a bfloat16 has seven bits after the first; the interpreter does not round, but cuts off
        bound = 2**-7 if "bfloat16" in shape else 2e-6
        assert error < bound, shape
