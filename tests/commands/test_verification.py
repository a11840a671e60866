"""`mless verify`: what it records can be derived again from its folder alone, and what was changed is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from attention_probe.self_check import write_both
from harness.errors import ConfigError, RunError
from harness.runs.folder import JOURNAL, RECEIPT, SCORES, pack
from harness.runs.records import SESSION
from harness.runs.stored_files import hash_stored, unpack_files
from harness.verification import Settings, check, verify
from harness.verification.model_under_test import PUBLISHED, RANDOM_TOKENS, Bench, write_random_model
from harness.verification.processes import run_logged
from harness.verification.record import read_record, write_page, write_record
from harness.verification.steps import STEPS
from harness.verification.verifier import _hash_files
from tests.conftest import needs_vllm
from tests.example_runs import GREEDY_RUN, ROOT, small_run

pytestmark = needs_vllm


def put_run(bench, folder):
    """A part of the committed greedy run, packed, as the run of a step."""
    folder.mkdir()
    pack(small_run(folder / "run"))


def put_killed_run(bench, folder):
    """The same in two sessions, the second after 70 samples."""
    folder.mkdir()
    small_run(folder / "run")
    lines = (folder / "run" / JOURNAL).read_text().splitlines()
    session = json.loads(next(line for line in lines if f'"key":"{SESSION}1"' in line))
    lines.insert(72, json.dumps({**session, "key": f"{SESSION}2"}, separators=(",", ":")))
    (folder / "run" / JOURNAL).write_text("\n".join([*lines, ""]))
    receipt = json.loads((folder / "run" / RECEIPT).read_text())
    receipt["files"][JOURNAL] = hash_stored(folder / "run" / JOURNAL)
    (folder / "run" / RECEIPT).write_text(json.dumps(receipt))
    (folder / "processes.json").write_text('{"all": 2, "alive": 0, "seconds": 1.25}')


def put_repeated_run(bench, folder):
    shutil.copytree(bench.folder / "demo" / "run", folder / "run")


def put_logprobs(bench, folder):
    folder.mkdir()
    one = {"token_ids": [5, 7], "ours": [-0.5, -1.0], "theirs": [-0.50002, -1.0], "most_likely": 5}
    (folder / "logprobs.json").write_text(json.dumps({"engine": {}, "prompts": [one, {**one, "most_likely": 7}]}))


def put_curves(bench, folder):
    write_both(GREEDY_RUN, folder / "curves.npz", n=2, layers=(0, 1), device="cpu", model=None)


def put_raw_speed(bench, folder):
    shutil.copytree(
        ROOT / "tests" / "data" / "greedy_run", folder / "run"
    )  # its speed counts: it has over 1,000 samples
    timing = json.loads((folder / "run" / "run.json").read_text())["timing"]
    raw = {"tokens": timing["tokens"], "generation_seconds": 0.95 * timing["generation_seconds"]}
    (folder / "raw.json").write_text(json.dumps(raw))
    shutil.copytree(folder / "run", folder / "engines")
    receipt = json.loads((folder / "engines" / "run.json").read_text())
    receipt["sessions"][-1]["engine"] |= {"engines": 1}
    (folder / "engines" / "run.json").write_text(json.dumps(receipt))


UNMET = "logits: prompts with the same first token: 1, expected 2"
MLESS = str(Path(sys.executable).with_name("mless"))
PUT = {
    "demo": put_run,
    "kill": put_killed_run,
    "logits": put_logprobs,
    PUBLISHED: put_run,
    "probe": put_curves,
    "throughput": put_raw_speed,
}


@pytest.fixture(scope="module", autouse=True)
def made():
    """The steps that need no engine; the files that others would measure were measured elsewhere, by real runs."""
    kept = [step for step in STEPS if step.name in ("doctor", *PUT)]
    some = tuple(replace(step, measure=PUT.get(step.name, step.measure)) for step in kept)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("harness.verification.verifier.STEPS", some)
        yield some


@pytest.fixture(scope="module")
def verified(made, tmp_path_factory):
    """A verification's folder, and what it says is not as expected."""
    folder = tmp_path_factory.mktemp("verify") / "folder"
    return folder, verify(folder, Settings(model="demo"))


@pytest.fixture
def copy(verified, tmp_path):
    return Path(shutil.copytree(verified[0], tmp_path / "folder"))


def found(folder, step):
    findings = json.loads((folder / "verify.json").read_text())["steps"][step]["findings"]
    return {finding["measure"]: finding for finding in findings}


def test_findings_are_those_of_the_files(verified):
    folder, unmet = verified
    table = found(folder, "demo")
    assert table["wo: accuracy"]["value"] == pytest.approx(76.0) and table["samples"]["value"] == 100
    kill = {measure: finding["value"] for measure, finding in found(folder, "kill").items()}
    assert kill["samples safe when killed"] == 70 and kill["sessions"] == 2
    assert kill["completions that differ from the whole run's, of 100"] == 0 and kill["last one gone after"] == 1.25
    logits = found(folder, "logits")
    assert logits["largest difference of a log-probability"]["value"] == pytest.approx(2e-5)
    assert logits["prompts with the same first token"]["holds"] is False
    probe = found(folder, "probe")["largest difference of an average attention weight from eager attention"]
    assert 0 < probe["value"] < 1e-4 and probe["holds"]
    speeds = found(folder, "throughput")
    share = speeds["its share of raw vLLM's speed"]
    assert (share["value"], share["holds"]) == (0.95, True)
    assert speeds["engines in Ray actors"]["value"] == 1
    assert speeds["their speed, in that of one engine without Ray"]["holds"] is True
    assert unmet == [UNMET]


def test_the_page_shows_every_finding_and_what_did_not_hold(verified):
    page = (verified[0] / "README.md").read_text()
    record = json.loads((verified[0] / "verify.json").read_text())
    assert page.startswith("# mless verify: demo on cpu") and "| **no** |" in page
    for one in record["steps"].values():
        assert all(f"| {finding['measure']} |" in page for finding in one["findings"])


def test_an_untouched_folder_is_derived_again(verified):
    assert check(verified[0]) == [UNMET], "nothing else"
    done = subprocess.run([MLESS, "verify", "--check", str(verified[0])], capture_output=True, text=True)
    assert done.returncode == 2 and UNMET in done.stdout.splitlines(), done.stderr
    assert "repeat-float32: not done: not done" in done.stdout, "the command knows all steps"


def test_changed_numbers_and_files_are_named(copy):
    record = json.loads((copy / "verify.json").read_text())
    honest = json.dumps(record)
    record["steps"]["demo"]["findings"][0]["value"] = 99.0
    (copy / "verify.json").write_text(json.dumps(record))
    changed = "demo: wo: accuracy: recorded 99.0, derived 76.0"
    assert check(copy) == [changed, UNMET, "README.md is not what the record says"]
    (copy / "verify.json").write_text(honest)
    raw = json.loads((copy / "throughput" / "raw.json").read_text())
    raw["generation_seconds"] *= 2
    (copy / "throughput" / "raw.json").write_text(json.dumps(raw))
    (copy / "logits" / "logprobs.json").unlink()
    (copy / "demo" / "new").write_text("")
    wrong = check(copy)
    assert "throughput/raw.json is not the file that was recorded" in wrong
    assert "throughput: its share of raw vLLM's speed: recorded 0.95, derived 1.9" in wrong
    assert "logits/logprobs.json is missing" in wrong and "demo/new was not there when the folder was recorded" in wrong
    assert any(line.startswith("logits: cannot be derived: ") for line in wrong)


def test_findings_that_were_turned_or_cut_out_are_named(copy):
    record = read_record(copy)
    logits = record.steps["logits"].findings
    assert logits[-1].holds is False
    logits[-1] = msgspec.structs.replace(logits[-1], holds=True)
    del record.steps["demo"].findings[-1]
    write_record(copy, record)
    wrong = check(copy)
    assert any(line.startswith("demo: recorded ") and " findings, derived " in line for line in wrong), wrong
    (turned,) = [line for line in wrong if line.startswith("logits: prompts with the same first token: recorded ")]
    assert "holds=True" in turned and turned.endswith("holds=False)") and UNMET in wrong


def test_a_record_of_another_format_is_refused(copy):
    text = (copy / "verify.json").read_text()
    assert text.count('"format": 2') == 1
    (copy / "verify.json").write_text(text.replace('"format": 2', '"format": 3'))
    with pytest.raises(RunError, match=r"verify.json: expected format 2, got 3\. Read it with the mless that wrote it"):
        check(copy)


def rehash(folder):
    """Make all hashes fit, and the page: what somebody would do who forges."""
    record = read_record(folder)
    record.files = _hash_files(folder)
    write_record(folder, record)
    (folder / "README.md").write_text(write_page(record))


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (SCORES, '"verdict":"incorrect"', '"verdict":"correct"', "demo: grading again changes 3 verdicts"),
        (JOURNAL, '"completion":"', '"completion":"so ', "kill: completions that differ from the whole run's, of 100"),
    ],
)
def test_forged_runs_are_found_though_all_hashes_of_the_folder_fit(copy, name, old, new, said):
    run = copy / "demo" / "run"
    unpack_files(run)
    text = (run / name).read_text()
    assert text.count(old) >= 3
    (run / name).write_text(text.replace(old, new, 3))
    pack(run)
    rehash(copy)
    wrong = check(copy)
    assert any(line.startswith(said) for line in wrong), wrong
    assert f"demo: its receipt has the hash of another {name}" in wrong


def test_steps_that_were_cut_out_left_out_or_failed_are_named(copy):
    record = json.loads((copy / "verify.json").read_text())
    del record["steps"]["kill"]
    record["steps"]["probe"] = {"title": "The probe", "skipped": "Not done."}
    record["steps"]["demo"] = {"title": "The demo", "error": "boom"}
    (copy / "verify.json").write_text(json.dumps(record))
    rehash(copy)
    wrong = check(copy)
    assert wrong == [
        "demo: not done: boom",
        "kill: not done: not done",
        UNMET,
        "probe: left out, though this device can do it",
    ]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}"])
def test_files_that_hold_anything_are_named(copy, content):
    for file in ("probe/curves.npz", "throughput/raw.json", "kill/processes.json"):
        (copy / file).write_bytes(content)
    wrong = check(copy)
    for step in ("probe", "throughput", "kill"):
        assert any(line.startswith(f"{step}: cannot be derived: ") for line in wrong)
    (copy / "verify.json").write_bytes(content)
    with pytest.raises(RunError, match=r"verify.json cannot be read|verify.json: expected format 2, got none"):
        check(copy)


def test_a_verification_goes_on_where_it_was_and_keeps_its_settings(copy, made, monkeypatch):
    record = json.loads((copy / "verify.json").read_text())
    del record["steps"]["throughput"]["findings"]
    (copy / "verify.json").write_text(json.dumps(record))
    done = []

    def measure(bench, folder):
        done.append(bench)
        put_raw_speed(bench, folder)

    redone = tuple(replace(step, measure=measure) for step in made)
    monkeypatch.setattr("harness.verification.verifier.STEPS", redone)
    assert verify(copy, Settings(model="demo")) == [UNMET]
    assert [bench.data for bench in done] == ["demo"], "one step, with the bundled problems"
    with pytest.raises(ConfigError, match=r"begun with other settings, .* Changed: settings.limit: null -> 3. Choose"):
        verify(copy, Settings(model="demo", limit=3))
    record["machine"]["vllm"] = "0.24.0"
    (copy / "verify.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"other machine or with other versions. Changed: machine.vllm: \"0.24.0\""):
        verify(copy, Settings(model="demo"))
    with pytest.raises(ConfigError, match=r"already holds files, and none is verify.json"):
        verify(GREEDY_RUN, Settings(model="demo"))
    with pytest.raises(ConfigError, match=r"--random-weights takes the place of --model demo"):
        verify(copy, Settings(model="demo", random_weights=True))


def test_a_step_that_fails_leaves_the_others_to_be_done(tmp_path, made, monkeypatch):
    def fail(bench, folder):
        raise KeyError("boom")

    some = (replace(made[0], measure=fail), replace(made[1], derive=lambda folder: []))
    monkeypatch.setattr("harness.verification.verifier.STEPS", some)
    assert verify(tmp_path / "folder", Settings(model="demo")) == ["doctor: not done: KeyError: 'boom'"]


def test_what_stops_us_stops_a_command_and_all_that_it_started(tmp_path):
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '300']).pid, flush=True); time.sleep(300)"
    log = tmp_path / "log"

    def interrupt():
        while not (log.exists() and log.read_text().endswith("\n")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_logged([sys.executable, "-c", code], log)
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(int(log.read_text()))
        for _ in range(100):  # it was told to end, and takes a moment
            if started.status() == psutil.STATUS_ZOMBIE:
                return
            time.sleep(0.1)
        pytest.fail(f"{started} goes on")


@pytest.mark.slow
def test_random_weights_have_the_exact_shape_and_a_word_for_every_token(tmp_path):
    from transformers import AutoConfig, AutoTokenizer

    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}
    folder = write_random_model(tmp_path / "model", small)
    config = AutoConfig.from_pretrained(folder)
    assert (config.vocab_size, config.num_attention_heads, config.hidden_size) == (151936, 12, 64)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 151936 and tokenizer.decode([151935]).strip() == "w151935"
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert write_random_model(folder) == folder and (folder / "model.safetensors").stat().st_mtime_ns == before


def test_random_weights_replay_solutions_where_they_can(tmp_path):
    def changes(replays):
        settings = Settings(random_weights=True)
        bench = Bench(folder=tmp_path, settings=settings, model="m", device="cuda", replays=replays)
        return bench.changes(replay=True)

    assert "model.arguments.replay_solutions=true" in changes(replays=True)
    assert f"max_gen_toks={RANDOM_TOKENS}" in changes(replays=False)


@pytest.mark.slow
@pytest.mark.engine
def test_the_whole_of_it_runs_on_a_cpu(tmp_path):
    folder = tmp_path / "verify"
    line = [sys.executable, "-m", "harness.cli", "verify", "--model", "demo", "--limit", "20", "-o", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((folder / "verify.json").read_text())
    assert [name for name, one in record["steps"].items() if "findings" not in one] == ["repeat-batch-invariant"]
    assert check(folder) == []
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 10e6
