"""`mless doctor` on this machine, and on machines that a program named nvidia-smi pretends."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest
import torch

from harness import check_installation as doctor
from tests.conftest import needs_vllm

SUBJECTS = "python lm-eval torch vllm gpu cores compiler tokenizer data hub shm".split()


def found(subject, model=None):
    (finding,) = [finding for finding in doctor.check_installation(model) if finding.subject == subject]
    return finding


@needs_vllm
def test_it_finds_the_installation_sound(mless):
    done = mless("doctor")
    assert done.returncode == 0, done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if not line.startswith(" ")] == SUBJECTS


def test_it_names_the_fix(mless):
    done = mless("doctor", MATH500_PATH="nowhere.jsonl")
    assert done.returncode == 2
    assert "FAIL  data" in done.stdout and "fix: Data file nowhere.jsonl does not exist" in done.stdout


@pytest.mark.slow
@needs_vllm
def test_a_hub_that_does_not_answer_is_asked_once_and_costs_no_failure(mless):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = mless("doctor", MATH500_PATH="", HF_HUB_OFFLINE="", HF_ENDPOINT=hub, HF_HOME="/nowhere")
        silent.setblocking(False)
        asked = []
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = silent.accept()
                with connection:
                    asked.append(connection.recv(4096))
    assert sum(b"MATH-500" in request for request in asked) <= 1  # the hub's client has a question of its own first
    assert done.returncode == 0 and done.stderr == ""
    assert "note  data       MATH-500 is neither in the cache nor" in done.stdout
    assert "note  hub        HuggingFaceH4/MATH-500 is out of reach" in done.stdout


def test_the_hub_is_not_waited_for_longer_than_its_time(monkeypatch):
    monkeypatch.setattr(doctor, "HUB_SECONDS", 0.2)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    # looking up a name may block like this
    monkeypatch.setattr(doctor._HubQuestion, "_ask", lambda self: os.read(blocked, 1))
    blocked, release = os.pipe()
    question = doctor._HubQuestion("some/model")
    assert isinstance(question.error(), TimeoutError)
    assert doctor._hub(question).fatal, "a model was asked for by name"
    os.write(release, b"x")
    question._answer.result()
    os.close(blocked)
    os.close(release)


@pytest.mark.parametrize("model", ["/nothing", "./nothing", "~/nothing", None])
def test_the_hub_is_not_asked_for_a_path(model):
    assert doctor._HubQuestion(model).model is None
    assert doctor._HubQuestion("some/model").model == "some/model"


def test_a_driver_too_old_for_the_wheel_is_a_failure(nvidia_smi, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    finding = found("gpu")
    assert finding.found == "1 x NVIDIA H100 80GB HBM3, driver 550.54.15, 12 of 80 GiB free"
    assert finding.fatal and finding.fix.startswith("The driver is too old for torch's CUDA 13.0, which needs 580")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert found("gpu").fix == ""


def test_who_holds_a_gpu_is_a_note(nvidia_smi, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)  # whatever torch is installed, the driver is new enough
    nvidia_smi(f"{os.getpid()}, /usr/bin/python3, 67000")
    finding = found("gpu")
    assert not finding.fatal
    told = f"An engine wants 90 % of it. It is held by /usr/bin/python3 (process {os.getpid()}, 67,000 MiB)."
    assert finding.fix == told


def test_a_rocm_build_is_called_so(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finding = found("torch")
    assert "(ROCm 6.4.1)" in finding.found and "A ROCm 6.4.1 build of torch, and it sees no GPU" in finding.fix
    assert not finding.fatal


@pytest.mark.parametrize(
    ("version", "sound"), [("0.4.12", False), ("0.4.13", True), ("0.4.14rc1", True), ("0.5", False)]
)
def test_the_bounds_of_lm_eval_are_those_of_our_own_metadata(monkeypatch, version, sound):
    monkeypatch.setattr(doctor, "package_version", lambda name: version)
    finding = found("lm-eval")
    assert finding.found == version and finding.fix == ("" if sound else "pip install 'lm-eval<0.5,>=0.4.13'")


def test_an_old_vllm_is_told_the_bound_of_the_gpu_extra(monkeypatch):
    versions = {"vllm": "0.23.1+cpu"}
    monkeypatch.setattr(doctor, "package_version", versions.get)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    assert found("vllm").fix == "pip install 'vllm>=0.24'"
    versions["vllm"] = "0.24.0"
    assert found("vllm").fix == ""


def test_few_cores_for_an_engine_are_a_note(nvidia_smi, monkeypatch):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        finding = found("cores")
    finally:
        os.sched_setaffinity(0, cores)
    assert finding.found == "1 usable" and "Under 4 for each engine" in finding.fix and not finding.fatal


def test_a_missing_compiler_fails_where_there_is_a_gpu(nvidia_smi, monkeypatch, tmp_path):
    assert found("compiler").fix == ""
    monkeypatch.setenv("CC", str(tmp_path / "nocc"))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    finding = found("compiler")
    assert finding.fatal and "no C compiler: install gcc and g++" in finding.fix


def test_small_shared_memory_is_a_note(monkeypatch):
    monkeypatch.setattr(doctor, "NEEDED_SHARED_MEMORY_GIB", 10**6)
    finding = found("shm")
    assert "--shm-size=8g" in finding.fix and not finding.fatal
