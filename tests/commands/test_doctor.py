import torch

from harness import check_installation
from tests.conftest import needs_vllm
from tests.make import TOY_MODEL, with_cases

SUBJECTS = "python lm-eval vllm device tokenizer data hub".split()


def check(subject, model=None):
    findings = check_installation.check_installation(model)
    (finding,) = [finding for finding in findings if finding.subject == subject]
    return finding


@needs_vllm
def test_the_installation_is_sound(mless):
    process = mless("doctor", "--model", TOY_MODEL)
    assert process.returncode == 0, process.stdout
    # a long path makes the table too wide, and then its lines begin with `ok, python`
    lines = [line for line in process.stdout.splitlines() if line.startswith(("ok", "note"))]
    assert [line.split()[1] for line in lines] == SUBJECTS


def test_a_failure_is_named_with_its_fix(mless):
    process = mless("doctor", MATH500_PATH="nowhere.jsonl")
    assert process.returncode == 2 and "FAIL    data" in process.stdout
    assert "\ndata: Data file nowhere.jsonl: No such file" in process.stdout


def test_an_unreachable_hub_is_a_failure_only_if_a_model_of_the_hub_was_named():
    assert check("hub").fix and not check("hub").is_fatal and not check("hub", "/nothing").is_fatal
    finding = check("hub", "some/model")
    assert finding.is_fatal and finding.state == "some/model is out of reach"
    assert "HF_HUB_OFFLINE" in finding.fix


def test_a_build_for_gpus_that_sees_none_is_reported(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finding = check("device")
    assert not finding.is_fatal
    assert finding.fix.startswith("torch is built for 13.0 and sees no GPU")


def test_the_process_that_holds_a_gpu_is_a_note(nvidia_smi, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    nvidia_smi("GPU-aa11, 4711, /usr/bin/python3, 67000")
    finding = check("device")
    assert finding.state.startswith("1 x H100, torch ") and not finding.is_fatal
    assert "It is held by /usr/bin/python3 (process 4711, 67000 MiB)." in finding.fix


@with_cases
def test_the_bounds_of_versions_are_those_of_our_metadata(monkeypatch, subject, version, fix):
    monkeypatch.setattr(check_installation, "package_version", lambda name: version)
    finding = check(subject)
    assert (finding.state, finding.fix) == (version, fix)
