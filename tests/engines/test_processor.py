"""The type and the cores that vLLM computes with on a CPU: chosen once, and kept by a run."""

from __future__ import annotations

import pytest

from harness.engines import processor
from harness.execution import run
from harness.experiment.config import load_config
from harness.runs.folder import read_identity
from tests.make import GREEDY_RUN, right, write_run
from tests.make import ROOT as CHECKOUT


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        ("flags : fpu avx2 avx512f avx512_bf16", True),
        ("flags : avx512f amx_bf16 amx_tile", True),
        ("Features : asimd i8mm bf16", True),
        ("model name : EPYC\nflags : fpu avx2 avx512f avx512_vnni f16c", False),
    ],
)
def test_a_processor_says_whether_it_computes_in_bf16(flags, has, tmp_path):
    (tmp_path / "cpuinfo").write_text(flags)
    assert processor.computes_bf16(tmp_path / "cpuinfo") is has
    assert processor.computes_bf16(tmp_path / "none"), "nothing is changed where nothing is known"


@pytest.mark.parametrize(("cores", "own", "kept"), [(2, None, "0"), (8, None, None), (2, "1", "1")])
def test_few_cores_are_all_used_unless_the_user_says_otherwise(cores, own, kept, monkeypatch):
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setenv(processor.RESERVED, own or "")
    if own is None:
        monkeypatch.delenv(processor.RESERVED)
    said = processor.describe_processor({"dtype": "float32"})
    assert processor.os.environ.get(processor.RESERVED) == kept
    assert said.startswith("float32 (it has ") and f"{kept or 'one'} of {cores} cores kept back" in said


def test_a_new_run_is_in_float32_without_bf16_instructions_and_a_begun_one_keeps_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "device_type", lambda: "cpu")
    demo = CHECKOUT / "configs" / "runs" / "demo.yaml"

    def settled(dtype, *, folder=tmp_path / "new", bf16=False):
        monkeypatch.setattr(run, "computes_bf16", lambda: bf16)
        return run.settle(load_config(demo, [f"model.arguments.dtype={dtype}", "layouts=[]"]), folder)

    for named, chosen in (("null", "float32"), ("auto", "float32"), ("bfloat16", "bfloat16")):
        config = settled(named)
        assert config.model.arguments["dtype"] == config.identity()["model"]["arguments"]["dtype"] == chosen
    assert settled("auto", bf16=True).model.arguments["dtype"] == "auto"
    model = {"label": "made", "arguments": {"pretrained": "demo", "max_model_len": 4096}}
    begun = write_run(tmp_path / "begun", right, limit=1, model=model)
    assert settled("null", folder=begun).model.arguments["dtype"] is None, "it was begun in the model's own type"
    kept = settled("null", folder=GREEDY_RUN, bf16=True)
    assert kept.model.arguments["dtype"] == "float32" and kept.layouts == ("raw",), "on any machine"
    assert kept.identity()["layouts"] == read_identity(GREEDY_RUN).config["layouts"]
    monkeypatch.setattr(run, "device_type", lambda: "cuda")
    assert settled("null").model.arguments["dtype"] is None
