"""`mless verify`: what it records can be derived again from its folder alone, and what was changed is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attention_probe.beside_eager import write_both
from harness.errors import ConfigError, RunError
from harness.run_folder import JOURNAL, SESSION, pack
from harness.verification import Settings, check, verifier, verify
from harness.verification.random_model import write_random_model
from harness.verification.steps import PUBLISHED, Bench, Step, steps
from tests.example_runs import GREEDY_RUN


def put_run(bench, folder):
    """The committed greedy run, packed, as the run of a step."""
    shutil.copytree(GREEDY_RUN, folder / "run", ignore=shutil.ignore_patterns("samples_*"))
    pack(folder / "run")


def put_killed_run(bench, folder):
    """The same in two sessions, the second after 700 samples."""
    shutil.copytree(GREEDY_RUN, folder / "run", ignore=shutil.ignore_patterns("samples_*"))
    lines = (folder / "run" / JOURNAL).read_text().splitlines()
    session = json.loads(next(line for line in lines if f'"key":"{SESSION}1"' in line))
    lines.insert(702, json.dumps({**session, "key": f"{SESSION}2"}, separators=(",", ":")))
    (folder / "run" / JOURNAL).write_text("\n".join([*lines, ""]))
    (folder / "processes.json").write_text('{"gone_after_seconds": [0.4, 1.25]}')


def put_repeated_run(bench, folder):
    shutil.copytree(bench.folder / "demo" / "run", folder / "run")


def put_logprobs(bench, folder):
    folder.mkdir()
    one = {"token_ids": [5, 7], "ours": [-0.5, -1.0], "theirs": [-0.50002, -1.0], "most_likely": 5}
    (folder / "logprobs.json").write_text(json.dumps({"engine": {}, "prompts": [one, {**one, "most_likely": 7}]}))


def put_curves(bench, folder):
    write_both(GREEDY_RUN, folder / "curves.npz", n=2, layers=(0, 1), device="cpu", model=None)


def put_sides(bench, folder):
    folder.mkdir()
    mless = {"samples": 1500, "tokens": 30_000, "generation_seconds": 10.0, "wall_seconds": 40.0}
    sides = {"mless": mless, "raw": {**mless, "generation_seconds": 9.5}}
    sides["stock"] = {"generation_seconds": 11.0, "wall_seconds": 60.0}
    (folder / "sides.json").write_text(json.dumps(sides))


MLESS = str(Path(sys.executable).with_name("mless"))
PUT = {
    "demo": put_run,
    "kill": put_killed_run,
    "logits": put_logprobs,
    PUBLISHED: put_run,
    "probe": put_curves,
    "throughput": put_sides,
}


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """A verification whose steps left real files, measured elsewhere; deriving and checking are the real thing."""
    folder = tmp_path_factory.mktemp("verify") / "folder"
    kept = [step for step in steps() if step.name in ("doctor", *PUT)]
    fields = ("name", "title", "minutes", "derive")
    made = [
        Step(**{name: getattr(step, name) for name in fields}, measure=PUT.get(step.name, step.measure))
        for step in kept
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("harness.verification.verifier.steps", lambda: tuple(made))
        unmet = verify(folder, Settings(model="demo"))
    return folder, unmet


@pytest.fixture
def copy(verified, tmp_path):
    return Path(shutil.copytree(verified[0], tmp_path / "folder"))


def found(folder, step):
    findings = json.loads((folder / "verify.json").read_text())["steps"][step]["findings"]
    return {finding["measure"]: finding for finding in findings}


def test_findings_are_those_of_the_files(verified):
    folder, unmet = verified
    table = found(folder, "demo")
    assert table["wo: accuracy"]["value"] == pytest.approx(86.8) and table["samples"]["value"] == 2000
    assert table["verdicts that grading again changes"]["holds"] is True
    kill = {measure: finding["value"] for measure, finding in found(folder, "kill").items()}
    assert kill["samples safe when killed"] == 700 and kill["sessions"] == 2
    assert kill["completions that differ from the whole run's, of 2000"] == 0 and kill["last one gone after"] == 1.25
    logits = found(folder, "logits")
    assert logits["largest difference of a log-probability"]["value"] == pytest.approx(2e-5)
    assert logits["prompts with the same first token"]["holds"] is False
    probe = found(folder, "probe")["largest difference of an average attention weight from eager attention"]
    assert 0 < probe["value"] < 1e-4 and probe["holds"]
    speeds = found(folder, "throughput")
    share = speeds["its share of raw vLLM's speed"]
    assert (share["value"], share["holds"]) == (0.95, True)
    assert speeds["stock lm-eval at its best, generation"]["value"] == 1.1
    assert unmet == ["First-token log-probabilities beside Hugging Face, float32"]


def test_the_page_shows_every_finding_and_what_did_not_hold(verified):
    page = (verified[0] / "README.md").read_text()
    record = json.loads((verified[0] / "verify.json").read_text())
    assert page.startswith("# mless verify: demo on cpu") and "| **no** |" in page
    for one in record["steps"].values():
        assert all(f"| {finding['measure']} |" in page for finding in one["findings"])


def test_an_untouched_folder_is_derived_again(verified):
    assert check(verified[0]) == []
    done = subprocess.run([MLESS, "verify", "--check", str(verified[0])], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("every number derived again, none differs\n"), done.stderr


def test_changed_numbers_and_files_are_named(copy):
    record = json.loads((copy / "verify.json").read_text())
    honest = json.dumps(record)
    record["steps"]["demo"]["findings"][0]["value"] = 99.0
    (copy / "verify.json").write_text(json.dumps(record))
    assert check(copy) == ["demo: wo: accuracy: recorded 99.0, derived 86.8", "README.md is not what the record says"]
    (copy / "verify.json").write_text(honest)
    sides = json.loads((copy / "throughput" / "sides.json").read_text())
    sides["mless"]["generation_seconds"] = 5.0
    (copy / "throughput" / "sides.json").write_text(json.dumps(sides))
    (copy / "logits" / "logprobs.json").unlink()
    (copy / "demo" / "new").write_text("")
    wrong = check(copy)
    assert "throughput/sides.json is not the file that was recorded" in wrong
    assert "throughput: its share of raw vLLM's speed: recorded 0.95, derived 1.9" in wrong
    assert "logits/logprobs.json is missing" in wrong and "demo/new was not there when the folder was recorded" in wrong
    assert any(line.startswith("logits: cannot be derived: ") for line in wrong)


def test_forged_verdicts_are_found_though_all_hashes_fit(copy):
    """Somebody who changes verdicts, and the record with them, is betrayed by the completions."""
    from harness.run_folder import SCORES, unpack

    run = copy / "demo" / "run"
    unpack(run)
    text = (run / SCORES).read_text()
    assert '"verdict":"incorrect"' in text
    (run / SCORES).write_text(text.replace('"verdict":"incorrect"', '"verdict":"correct"', 3))
    pack(run)
    record = json.loads((copy / "verify.json").read_text())
    record["files"] = verifier._hash_files(copy)
    (copy / "verify.json").write_text(json.dumps(record))
    assert "demo: verdicts that grading again changes: recorded 0, derived 3" in check(copy)


def test_a_verification_goes_on_where_it_was_and_keeps_its_settings(verified, copy, monkeypatch):
    record = json.loads((copy / "verify.json").read_text())
    del record["steps"]["throughput"]["findings"]
    (copy / "verify.json").write_text(json.dumps(record))
    kept = tuple(step for step in steps() if step.name in ("doctor", *PUT))
    done = []

    def measure(bench, folder):
        done.append(bench)
        put_sides(bench, folder)

    redone = [replace(step, measure=measure) for step in kept]
    monkeypatch.setattr("harness.verification.verifier.steps", lambda: tuple(redone))
    verify(copy, Settings(model="demo"))
    assert [bench.data for bench in done] == ["demo"], "one step, with the bundled problems"
    with pytest.raises(ConfigError, match=r"holds a verification with other settings: .*'limit': 3.* Choose another"):
        verify(copy, Settings(model="demo", limit=3))
    with pytest.raises(ConfigError, match=r"already holds files, and none is verify.json"):
        verify(GREEDY_RUN, Settings(model="demo"))
    with pytest.raises(RunError, match=r"holds no verification: verify.json cannot be read"):
        check(GREEDY_RUN)


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
    def changes(**facts):
        return Bench(folder=tmp_path, model="m", device="cuda", limit=None, random=True, **facts).changes(replay=True)

    assert "model.arguments.replay_solutions=true" in changes(replays=True)
    assert "max_gen_toks=256" in changes(replays=False)


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
