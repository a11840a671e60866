"""The type and the cores that vLLM computes with on a CPU: chosen once, and kept by a run."""

from __future__ import annotations

import pytest

from harness.engines import processor
from harness.execution import run
from harness.experiment.config import load_config
from tests.make import GREEDY_RUN, TOY_CONFIG, TOY_MODEL, right, write_run


def test_a_processor_says_whether_it_computes_in_bf16(tmp_path):
    file = tmp_path / "cpuinfo"
    assert processor.computes_bf16(file), "nothing is changed where nothing is known"
    for flags in ("flags : avx512f avx512_bf16", "flags : avx512f amx_bf16 amx_tile", "Features : asimd bf16 i8mm"):
        file.write_text(f"model name : x\n{flags}\n")
        assert processor.computes_bf16(file)
    file.write_text("model name : EPYC\nflags : fpu avx2 avx512f avx512_vnni f16c\n")
    assert not processor.computes_bf16(file)


@pytest.mark.parametrize(("cores", "own", "kept"), [(2, {}, "0"), (8, {}, None), (2, {processor.RESERVED: "1"}, "1")])
def test_few_cores_are_all_used_unless_the_user_says_otherwise(cores, own, kept, monkeypatch):
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(processor.os, "environ", own)
    assert f"vLLM keeps {kept or 'one'} of {cores} cores back" in processor.describe_processor({"dtype": "float32"})
    assert own.get(processor.RESERVED) in (None, "1"), "to describe changes nothing"
    processor.use_all_cores()
    assert own.get(processor.RESERVED) == kept


def test_a_new_run_is_in_float32_without_bf16_instructions_and_a_begun_one_keeps_its_own(tmp_path, monkeypatch):
    def settled(dtype, *, folder=tmp_path / "new", bf16=False, device="cpu"):
        monkeypatch.setattr(run, "computes_bf16", lambda: bf16)
        monkeypatch.setattr(run, "device_type", lambda: device)
        changes = [f"model.arguments.dtype={dtype}", "layouts=[]"]
        return run.settle(load_config(TOY_CONFIG, changes), folder)

    for named, chosen in (("null", "float32"), ("auto", "float32"), ("bfloat16", "bfloat16")):
        assert settled(named).identity()["model"]["arguments"]["dtype"] == chosen
        assert settled(named, device="cuda") == settled(named, bf16=True)
    model = {"label": "made", "arguments": {"pretrained": TOY_MODEL, "max_model_len": 4096}}
    begun = write_run(tmp_path / "begun", right, limit=1, model=model)
    assert settled("null", folder=begun).model.arguments["dtype"] is None, "it was begun in the model's own type"
    kept = settled("null", folder=GREEDY_RUN, bf16=True)
    assert (kept.model.arguments["dtype"], kept.layouts) == ("float32", ("raw",)), "on any machine"
