import torch

from harness import installation
from tests.conftest import needs_vllm, slow_engine, succeeded
from tests.make import with_cases

SUBJECTS = "python lm-eval transformers vllm device data".split()


def check(subject):
    return installation.check_installation()[subject]


@needs_vllm
def test_the_installation_is_sound(mless):
    process = mless("doctor")
    succeeded(process)
    lines = [line for line in process.stdout.splitlines() if line.startswith(("ok", "note"))]
    assert [line.split()[1] for line in lines] == SUBJECTS


def test_a_failure_is_named_with_its_fix(command, monkeypatch):
    monkeypatch.setenv("MATH500_PATH", "nowhere.jsonl")
    process = command("doctor")
    assert process.returncode == 2 and "FAIL    data" in process.stdout
    assert "\nData file nowhere.jsonl: No such file" in process.stdout


def test_a_build_for_gpus_that_sees_none_is_reported(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finding = check("device")
    assert not finding.is_fatal
    assert finding.fix.startswith("torch is built for 13.0 and sees no GPU")


@with_cases
def test_the_bounds_of_versions_are_those_of_our_metadata(monkeypatch, subject, version, fix):
    monkeypatch.setattr(installation, "version", lambda name: version)
    finding = check(subject)
    assert (finding.state, finding.fix) == (version, fix)


@needs_vllm
@slow_engine
def test_a_model_is_run_and_compared_and_a_failure_is_on_the_page(mless, tmp_path):
    page = tmp_path / "page.md"
    process = mless("doctor", "--model", "smollm2", "-o", page)
    succeeded(process)
    text = page.read_text()
    assert all(
        word in text for word in ("ok      vllm", "receipt:", "\nhidden ", "ok      Attention")
    )
    process = mless("doctor", "--model", tmp_path, "-o", page)
    assert process.returncode == 2
    assert f"FAIL    {tmp_path}" in page.read_text()


def test_before_a_run_a_line_names_each_untested_version(monkeypatch, command):
    versions = {"lm-eval": "0.4.13", "transformers": "9.9", "vllm": "0.32.0+cpu"}
    monkeypatch.setattr(installation, "version", versions.get)
    monkeypatch.setattr(installation, "package_version", versions.get)
    remark, refusal = command("run", "missing.yaml").stderr.splitlines()
    assert remark.startswith(
        "mless: transformers 9.9 was not tested with mless: pip install 'transformers<"
    )
    assert "missing.yaml" in refusal
