import dataclasses
import hashlib
import json
import logging
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from lm_eval.utils import hash_string
from msgspec.structs import replace

from harness import load_run, resources
from harness.errors import JournalError, RunError
from harness.execution.execute_plan import (
    _generation_config,
    engine_identity,
    execute,
    finish,
    run_identity,
)
from harness.execution.generate_samples import session_facts
from harness.execution.grade_again import regrade
from harness.experiment.plan import make_plan, make_requests, sample_key
from harness.experiment.prompt import hash_text
from harness.experiment.run_config import load_config
from harness.grading import GRADED, GRADERS
from harness.grading.same_answer import GRADER_VERSION
from harness.runs import journal, versions_and_hashes
from harness.runs.journal import expand, hash_stored, write_atomic, write_whole
from harness.runs.records import SESSION, Fingerprint, Sample, stored_prompts
from harness.runs.run_folder import (
    JOURNAL,
    PROMPTS,
    RECEIPT,
    SCORES,
    PromptIndex,
    RunFolder,
    changes,
    compress_finished,
    read_prompts,
    read_samples,
)
from tests.conftest import needs_vllm
from tests.make import GREEDY_RUN, ROOT, TOY_CONFIG, TOY_MODEL, small_run, table_page

CONFIG = TOY_CONFIG


@pytest.fixture(scope="module")
def plan():
    return make_plan(load_config(CONFIG), limit=5)


@pytest.fixture(scope="module")
def identity(plan):
    return run_identity(plan, plan.config.resolve_sampling({}))


@pytest.fixture(scope="module")
def regraded(tmp_path_factory):
    run = small_run(tmp_path_factory.mktemp("small") / "demo")
    same = f"{len(load_run(run))} samples, grader {GRADER_VERSION} -> {GRADER_VERSION}: 0 verdicts changed"
    assert regrade(run) == same
    expand(run)
    return run


@pytest.fixture
def demo_run(regraded, tmp_path):
    return Path(shutil.copytree(regraded, tmp_path / "demo"))


@pytest.fixture(scope="module")
def finished(plan, tmp_path_factory):
    return filled(plan, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def own_run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def begun(path, identity, plan):
    """A run with one sample: without any it would protect nothing."""
    with RunFolder(path, identity, stored_prompts(plan)) as folder:
        folder.journal.append({"key": "k", "task": "t"})


def filled(plan, folder):
    """The run of a plan, its samples taken from the committed greedy run: keys do not depend on the limit."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed, and its version is part of each sample's key")
    sampling = plan.config.resolve_sampling(_generation_config(plan))
    identity = run_identity(plan, sampling)
    setting = identity.hash_setting()
    recorded = {(s.task, s.problem_id): s for s in read_samples(GREEDY_RUN)}
    with RunFolder(folder, identity, stored_prompts(plan)) as opened:
        opened.note(SESSION, session_facts(plan))
        for request in make_requests(plan, sampling):
            sample = recorded[request.task, request.problem_id]
            assert sample.key == sample_key(request, setting), (
                "the example was made with these very settings"
            )
            if sample.key not in opened.sample_keys:
                opened.journal.append(sample)
    execute(plan, output=folder, quiet=True)
    expand(folder)  # for tests that read and change its lines
    return folder


@pytest.mark.parametrize("name", [JOURNAL, SCORES, RECEIPT])
def test_another_format_is_refused_by_its_number(tmp_path, name):
    run = small_run(tmp_path / "run")
    text = (run / name).read_text()
    first, rest = (text, "") if name == RECEIPT else text.split("\n", 1)
    (run / name).write_text(json.dumps({**json.loads(first), "format": 2}) + "\n" + rest)
    with pytest.raises(RunError, match=rf"{name}: Expected `int`.* at `\$.format`"):
        regrade(run) if name == SCORES else load_run(run)


def test_a_first_line_that_is_torn_or_lacks_an_arm_and_a_session_without_its_config_are_named(
    tmp_path,
):
    run = small_run(tmp_path / "run")
    first, rest = (run / JOURNAL).read_text().split("\n", 1)
    (run / JOURNAL).write_text(first + "\n" + rest.replace('"config"', '"other"'))
    with pytest.raises(RunError, match=r"journal.jsonl: Object missing required field `config`"):
        finish(run)
    header = json.loads(first)
    header["arms"].pop("demo_wo")
    (run / JOURNAL).write_text(json.dumps(header) + "\n" + rest)
    with pytest.raises(
        JournalError, match=r"prompts.jsonl is missing or damaged: its prompts are not those"
    ):
        load_run(run)
    (run / JOURNAL).write_text("")
    with pytest.raises(
        JournalError, match=r"journal.jsonl is empty, or its first line is incomplete"
    ):
        load_run(run)


def test_a_key_changes_with_all_that_can_change_the_sample_and_with_nothing_else(plan, identity):
    sampling, setting = plan.config.resolve_sampling({}), identity.hash_setting()
    request = next(iter(make_requests(plan, sampling)))
    key = sample_key(request, setting)
    moved = replace(
        identity,
        model=replace(identity.model, name="elsewhere"),
        config={**identity.config, "seed": 5},
    )
    assert moved.hash_setting() == setting, (
        "the folder's name, and settings that each request holds itself"
    )
    assert sample_key(dataclasses.replace(request, task="demo_other"), setting) == key, (
        "the condition's name"
    )
    arguments = {**identity.config["model"], "model_args": {"dtype": "bfloat16"}}
    changed_identities = [
        replace(identity, prompt_version=2),
        replace(identity, engine=replace(identity.engine, device="cuda")),
        replace(identity, engine=replace(identity.engine, version="9")),
        replace(identity, model=Fingerprint(name="model", sha256={"config.json": "0"})),
        replace(identity, config={**identity.config, "model": arguments}),
    ]
    changes = (
        {"prompt_token_sha256": "0"},
        {"sampling": dataclasses.replace(sampling, max_tokens=7)},
        {"seed": 3},
        {"problem_id": "x"},
        {"sample_index": 1},
        {"replicate": 1},
        {"again": 1},
        {"intervention": {"layer": 0}},
    )
    keys = [sample_key(request, changed.hash_setting()) for changed in changed_identities]
    keys += [sample_key(dataclasses.replace(request, **change), setting) for change in changes]
    assert len({key, *keys}) == 1 + len(changed_identities) + len(changes)


def test_a_sample_finds_its_prompt(tmp_path):
    rows = read_prompts(small_run(tmp_path / "run"))
    sample = next(read_samples(tmp_path / "run"))
    assert rows[PromptIndex(rows).find(sample)].doc["id"] == sample.problem_id
    with pytest.raises(RunError, match=r"prompts.jsonl lacks the prompt of problem"):
        PromptIndex(rows[:0]).find(sample)


def test_first_samples_of_all_problems_come_before_second_ones():
    config = load_config(CONFIG, ["gen_kwargs={temperature: 0.7}", "repeats=3"])
    plan = make_plan(config, limit=4)
    requests = [
        (request.sample_index, request.problem_id, request.task)
        for request in make_requests(plan, config.resolve_sampling({}))
    ]
    prompts = [(problem.id, task) for task, _, problem, _ in plan.rows]
    assert requests == [(index, *prompt) for index in range(3) for prompt in prompts]


def test_other_token_ids_under_the_same_text_are_another_run(plan, identity, tmp_path):
    begun(tmp_path / "run", identity, plan)
    tokenizer = shutil.copytree(TOY_MODEL, tmp_path / "tokenizer")
    state = json.loads((tokenizer / "tokenizer.json").read_text())
    vocabulary = state["model"]["vocab"]
    vocabulary["."], vocabulary[","] = vocabulary[","], vocabulary["."]
    (tokenizer / "tokenizer.json").write_text(json.dumps(state))
    changed_plan = make_plan(
        load_config(CONFIG, [f"model.model_args.tokenizer={tokenizer}"]), limit=5
    )
    assert [row.prompt for row in stored_prompts(changed_plan)] == [
        row.prompt for row in stored_prompts(plan)
    ]
    (changed,) = changes(
        tmp_path / "run",
        run_identity(changed_plan, plan.config.resolve_sampling({})),
        stored_prompts(changed_plan),
    )
    assert changed.startswith("prompts_sha256: ")


def test_a_continued_run_has_the_config_of_its_last_session(own_run):
    (own_run / SCORES).unlink()  # so that something is left to do
    execute(
        make_plan(load_config(CONFIG, ["model.label=renamed"]), limit=5), output=own_run, quiet=True
    )
    receipt = json.loads((own_run / RECEIPT).read_text())
    assert [session["config"]["model"]["label"] for session in receipt["sessions"]][-1] == "renamed"
    assert receipt["config"]["model"]["label"] == "renamed" and set(load_run(own_run)["model"]) == {
        "renamed"
    }


def test_a_run_without_a_sample_gives_way_to_another(plan, identity, tmp_path):
    typo = replace(identity, config={**identity.config, "max_gen_toks": 9})
    with RunFolder(tmp_path / "run", typo, stored_prompts(plan)) as folder:
        folder.note(SESSION, session_facts(plan))
    with RunFolder(tmp_path / "run", identity, stored_prompts(plan)) as folder:
        assert not folder.journal.keys
        folder.journal.append({"key": "k", "task": "t"})
    with pytest.raises(
        JournalError, match=r"begun with other settings. Changed: config.max_gen_toks"
    ):
        RunFolder(tmp_path / "run", typo, stored_prompts(plan))


def test_the_receipt_tells_samples_and_verdicts_by_their_hashes(demo_run):
    files = json.loads((demo_run / RECEIPT).read_text())["files"]
    assert files == {
        name: hashlib.sha256((demo_run / name).read_bytes()).hexdigest() for name in files
    }
    assert set(files) == {JOURNAL, PROMPTS, SCORES}
    lines = (demo_run / JOURNAL).read_text().splitlines(keepends=True)
    forged = [line.replace('"completion":"', '"completion":"so ') for line in lines]
    (demo_run / JOURNAL).write_text("".join(forged))
    regrade(demo_run)
    again = json.loads((demo_run / RECEIPT).read_text())["files"]
    assert again[JOURNAL] != files[JOURNAL] and again[PROMPTS] == files[PROMPTS]
    assert f"samples {again[JOURNAL][:8]}" in " ".join(table_page(demo_run).split())


def test_a_served_model_is_never_looked_up_and_a_local_folder_is_still_hashed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(versions_and_hashes, "_hub_commit", None)  # a look-up would fail
    assert versions_and_hashes.model_fingerprint("any-name", served=True) == Fingerprint(
        name="any-name"
    )
    (tmp_path / "config.json").write_text("{}")
    assert versions_and_hashes.model_fingerprint(str(tmp_path), served=True).sha256.keys() == {
        "config.json"
    }
    assert engine_identity("local-completions", {}).device == "server"


def test_a_folder_has_one_writer(plan, identity, tmp_path):
    with RunFolder(tmp_path / "run", identity, stored_prompts(plan)):
        with pytest.raises(
            JournalError,
            match=r"is in use by another mless process. Wait for it, or choose another",
        ):
            RunFolder(tmp_path / "run", identity, stored_prompts(plan))
    RunFolder(tmp_path / "run", identity, stored_prompts(plan)).__exit__()


def test_a_folder_with_other_files_is_refused_and_left_alone(plan, identity, tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(JournalError, match=r"already holds files, and none is journal.jsonl"):
        RunFolder(tmp_path, identity, stored_prompts(plan))
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_a_finished_run_is_compressed_and_read_so_and_regrading_leaves_it_so(demo_run):
    before = load_run(demo_run)
    compress_finished(demo_run)
    assert {p.name for p in demo_run.glob("*.xz")} == {
        f"{name}.xz" for name in (JOURNAL, SCORES, PROMPTS)
    }
    assert not any((demo_run / name).exists() for name in (JOURNAL, SCORES, PROMPTS))
    pandas.testing.assert_frame_equal(load_run(demo_run), before)
    assert "0 verdicts changed" in regrade(demo_run)
    assert (demo_run / f"{JOURNAL}.xz").exists() and not (demo_run / JOURNAL).exists()
    ours = [
        name for name in before if name not in GRADERS
    ]  # on a busy machine another grader may take too long
    pandas.testing.assert_frame_equal(load_run(demo_run)[ours], before[ours])


def test_a_kill_while_compressing_loses_nothing_and_another_file_of_the_name_is_refused(
    plan, identity, own_run
):
    content = (own_run / JOURNAL).read_bytes()
    compress_finished(own_run)
    (own_run / JOURNAL).write_bytes(
        content
    )  # a kill after the compressed form is whole, before the other goes
    with RunFolder(own_run, identity, stored_prompts(plan)) as folder:
        assert (own_run / JOURNAL).exists() and len(folder.sample_keys) == plan.size
    assert (own_run / f"{JOURNAL}.xz").exists() and not (own_run / JOURNAL).exists(), (
        "continued, and compressed again"
    )
    (own_run / JOURNAL).write_bytes(content[: content.index(b"\n") + 1])
    for change in (regrade, lambda run: RunFolder(run, identity, stored_prompts(plan))):
        with pytest.raises(JournalError, match=r"journal.jsonl and journal.jsonl.xz differ"):
            change(own_run)
    assert lzma.decompress((own_run / f"{JOURNAL}.xz").read_bytes()) == content, (
        "nothing is written over it"
    )


def test_a_damaged_compressed_file_is_named(demo_run):
    compress_finished(demo_run)
    for name in (JOURNAL, SCORES):
        file = demo_run / f"{name}.xz"
        content = file.read_bytes()
        for bad in (content[: len(content) // 2], b"no xz" + content[5:]):
            file.write_bytes(bad)
            for read in (load_run, table_page, regrade):
                with pytest.raises(
                    JournalError, match=rf"{name}.xz is damaged \(.*\). Restore it from a copy"
                ):
                    read(demo_run)
            assert not list(demo_run.glob("*.part"))
        file.write_bytes(content)
        compress_finished(demo_run)
    (demo_run / f"{PROMPTS}.xz").write_bytes(b"")
    with pytest.raises(JournalError, match=r"prompts.jsonl is missing or damaged"):
        load_run(demo_run)


def test_changed_settings_are_named(plan, identity, tmp_path):
    begun(tmp_path / "run", identity, plan)
    for change, message in (
        (
            {"contrasts": [("mless", "wo")]},
            r"contrasts: \[\[\"mless\", \"wo\"\], .* -> \[\[\"mless\", \"wo\"",
        ),
        ({"engine": replace(identity.engine, device="cuda")}, r"engine.device: .* -> \"cuda\""),
        (
            {"config": {**identity.config, "max_gen_toks": 7}},
            "config.max_gen_toks: 2048 -> 7. Undo",
        ),
    ):
        changed = replace(identity, **change)
        with pytest.raises(JournalError, match=f"begun with other settings. Changed: {message}"):
            RunFolder(tmp_path / "run", changed, stored_prompts(plan))
        assert changes(tmp_path / "run", identity, stored_prompts(plan)) == []
        assert changes(tmp_path / "run", changed, stored_prompts(plan))


@pytest.mark.parametrize("killed", [JOURNAL, PROMPTS])
def test_a_larger_limit_continues_a_run_also_after_a_kill_while_it_is_made_larger(
    plan, own_run, monkeypatch, killed
):
    before, larger = (
        {sample.key for sample in read_samples(own_run)},
        make_plan(load_config(CONFIG), limit=7),
    )
    real = journal.write_atomic
    with monkeypatch.context() as patched, pytest.raises(JournalError):
        patched.setattr(
            journal,
            "write_atomic",
            lambda path: real(path / "in a file" if path.name == killed else path),
        )
        filled(larger, own_run)
    execute(plan, output=own_run, quiet=True)
    assert len(load_run(own_run)) == 20, "it is still whole"
    filled(
        larger, own_run
    )  # which generates nothing, and asks the first problems' samples of nobody
    receipt = json.loads((own_run / RECEIPT).read_text())
    assert (
        receipt["limit"],
        receipt["problems"],
        len(read_prompts(own_run)),
        len(load_run(own_run)),
    ) == (7, 7, 28, 28)
    assert before < {sample.key for sample in read_samples(own_run)}
    assert len((own_run / receipt["tasks"][0]["samples"]).read_text().splitlines()) == 7
    with pytest.raises(JournalError, match="Changed: limit: 7 -> 5"):
        execute(plan, output=own_run, quiet=True)


@needs_vllm
def test_a_new_task_version_grades_again_and_keeps_every_sample(own_run, monkeypatch):
    before = (own_run / JOURNAL).read_text()
    monkeypatch.setattr(resources, "task_version", lambda: 99.0)
    plan = make_plan(load_config(CONFIG), limit=5)
    identity = run_identity(plan, plan.config.resolve_sampling(_generation_config(plan)))
    assert changes(own_run, identity, stored_prompts(plan)) == []
    assert regrade(own_run).endswith("0 verdicts changed")
    assert json.loads((own_run / RECEIPT).read_text())["task_version"] == 99
    expand(own_run)
    assert (own_run / JOURNAL).read_text() == before
    monkeypatch.setattr(resources, "task_version", lambda: 100.0)
    regrade(own_run)
    expand(own_run)
    old = [
        json.loads((own_run / f"old-scores-{number}.jsonl").read_text().partition("\n")[0])
        for number in (1, 2)
    ]
    assert [header["task_version"] for header in old] == [6, 99], "no scores are lost"


def test_a_journal_of_which_only_the_torn_header_is_left_begins_again_with_its_own_prompts(
    plan, identity, tmp_path
):
    RunFolder(tmp_path / "run", identity, stored_prompts(plan)).__exit__()
    (tmp_path / "run" / JOURNAL).write_text('{"config": {"la')
    shorter = make_plan(plan.config, limit=2)
    shorter_identity = run_identity(shorter, plan.config.resolve_sampling({}))
    RunFolder(tmp_path / "run", shorter_identity, stored_prompts(shorter)).__exit__()
    assert len(read_prompts(tmp_path / "run")) == 8


def test_a_kill_while_the_prompts_are_written_locks_nobody_out(plan, identity, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "prompts.jsonl.part").write_text('{"half')
    RunFolder(tmp_path / "run", identity, stored_prompts(plan)).__exit__()
    assert len(read_prompts(tmp_path / "run")) == 20


def test_prompts_that_are_not_the_journals_are_refused(plan, identity, tmp_path):
    begun(tmp_path / "run", identity, plan)
    path = tmp_path / "run" / PROMPTS
    content = path.read_text()
    for damaged in (content[:-9], content.replace("expert", "novice", 1), ""):
        path.write_text(damaged)
        with pytest.raises(JournalError, match=r"prompts.jsonl is missing or damaged"):
            RunFolder(tmp_path / "run", identity, stored_prompts(plan))


def test_half_a_surrogate_pair_in_a_completion_is_spelt_out(plan, identity):
    request = next(iter(make_requests(plan, plan.config.resolve_sampling({}))))
    assert Sample.of(request, "k", "a\ud800").completion == "a\\ud800", (
        "a server may send one, and no file can hold it"
    )


def test_a_prompts_hash_is_lm_evals(demo_run):
    rows = read_prompts(demo_run)
    assert all(
        row.prompt_sha256 == hash_text(row.prompt) == hash_string(row.prompt) for row in rows
    )


def test_a_sample_of_another_run_in_the_journal_is_refused(plan, own_run):
    with (own_run / JOURNAL).open("a") as journal:
        journal.write('{"key":"0123","task":"demo_wo"}\n')
    with pytest.raises(
        JournalError, match=r"holds 1 samples that are none of this run's, such as 0123"
    ):
        execute(plan, output=own_run, quiet=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [("run.json", None), ("run.json", '{"ta'), ("samples_demo_wo_*.jsonl", None)],
)
def test_what_a_kill_while_finishing_lost_is_made_again(plan, own_run, name, content):
    (file,) = own_run.glob(name)
    file.unlink() if content is None else file.write_text(content)
    execute(plan, output=own_run, quiet=True)
    assert len(list(own_run.glob(name))) == 1 and len(load_run(own_run)) == 20


def test_a_full_disk_while_finishing_is_told_and_mended(plan, own_run):
    """lm-eval itself would only warn, and leave a log that is cut in the middle of a line."""
    (own_run / "run.json").unlink()
    code = (
        "import resource, sys; from pathlib import Path; from harness.execution.execute_plan import finish\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1)); finish(Path(sys.argv[1]))"
    )
    largest = max(path.stat().st_size for path in own_run.glob("samples_*.jsonl"))
    command = [sys.executable, "-c", code, str(own_run), str(largest - 1000)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert "JournalError" in process.stderr and "could not be written whole" in process.stderr
    assert not (own_run / "run.json").exists(), "it does not count as finished"
    execute(plan, output=own_run, quiet=True)
    assert len(load_run(own_run)) == 20


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_a_file_is_written_whole_or_not_at_all_whatever_happens(tmp_path, error):
    write_whole(tmp_path / "file", "before")
    with pytest.raises(error), write_atomic(tmp_path / "file") as partial:
        partial.write_text("half")
        raise error
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "before")]


def test_regrading_that_fails_leaves_nothing_half(demo_run):
    before = {path.name: path.read_bytes() for path in demo_run.iterdir()}
    (demo_run / PROMPTS).write_bytes(before[PROMPTS][:-9])
    with pytest.raises(JournalError, match=r"prompts.jsonl is missing or damaged"):
        regrade(demo_run)
    expand(demo_run)
    assert {path.name for path in demo_run.iterdir()} == before.keys()
    assert (demo_run / SCORES).read_bytes() == before[SCORES]


def test_an_unfinished_run_is_no_table(plan, identity, tmp_path):
    RunFolder(tmp_path / "run", identity, stored_prompts(plan)).__exit__()
    with pytest.raises(RunError, match=r"has no finished run: repeat the command that began it"):
        load_run(tmp_path / "run")


def test_a_finished_run_is_not_run_again(plan, own_run, capsys):
    compress_finished(own_run)
    before = {p.name: hash_stored(p) for p in own_run.iterdir() if p.name != ".lock"}
    execute(plan, output=own_run, quiet=True)
    assert "is finished, nothing was left to do" in capsys.readouterr().err
    assert {p.name: hash_stored(p) for p in own_run.iterdir() if p.name != ".lock"} == before


def test_regrading_says_what_changed_and_restores_lost_scores(demo_run):
    lines = (demo_run / SCORES).read_text().splitlines(keepends=True)
    wrong = [line.replace('"verdict":"correct"', '"verdict":"no_box"') for line in lines[:11]]
    (demo_run / SCORES).write_text("".join([*wrong, *lines[11:-5]]))
    message = regrade(demo_run)
    changed = sum(a != b for a, b in zip(wrong, lines, strict=False))
    assert (
        changed > 0
        and f"{changed} verdicts changed\n" in message
        and "no_box -> correct\n" in message
    )
    assert len(re.findall(r"\n  no_box -> correct: demo_\w+ demo/\S+ sample 0", message)) == changed
    assert len(load_run(demo_run)) == len(lines) - 1


def test_lm_evals_files_say_what_the_journal_says(demo_run):
    frame = load_run(demo_run)
    receipt = json.loads((demo_run / "run.json").read_text())
    for task in receipt["tasks"]:
        results = json.loads((demo_run / task["results"]).read_text())
        chosen = frame[
            (frame["condition"] == task["condition"]) & (frame["layout"] == task["layout"])
        ]
        result = results["results"][task["task"]]
        assert result["accuracy,graded"] == pytest.approx(chosen["correct"].mean())
        assert result["graded,graded"] == pytest.approx(chosen["verdict"].isin(GRADED).mean())
        assert result["truncated,graded"] == pytest.approx(
            (chosen["verdict"] == "truncated").mean()
        )


def test_finishing_a_run_leaves_the_process_as_it_was(demo_run, monkeypatch):
    def state():
        numbers = numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        return sys.stderr, logging.getLogger("lm_eval").level, dict(os.environ), *numbers

    monkeypatch.setattr(logging.getLogger("lm_eval"), "level", logging.INFO)
    before, states = state(), set()
    for seed in (1, 2):
        random.seed(seed)
        finish(demo_run)
        states.add(random.random())
    assert state() == before
    assert len(states) == 2, "Python's generator was not seeded anew"
    assert (
        json.loads(next(demo_run.glob("results_*.json")).read_text())["config"]["random_seed"]
        == 1234
    )


def test_a_run_is_finished_outside_git_without_a_word(demo_run, tmp_path):
    code = "import sys; from pathlib import Path; from harness.execution import execute_plan"
    code += "; execute_plan.finish(Path(sys.argv[1]))"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GIT_CEILING_DIRECTORIES": str(tmp_path.parent),
    }
    command = [sys.executable, "-c", code, str(demo_run)]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
