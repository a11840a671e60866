import dataclasses
import hashlib
import json
import lzma
import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas
import pytest
from msgspec.structs import replace

from harness import load_config, load_run, resources
from harness.errors import JournalError, RunError
from harness.execution.regrading import regrade
from harness.execution.run_execution import (
    _generation_config,
    engine_identity,
    execute,
    run_identity,
    write_receipt,
)
from harness.execution.sample_generation import session_facts
from harness.experiment.plan import make_plan, sample_key
from harness.grading import GRADERS
from harness.grading.answer_grading import GRADER_VERSION
from harness.runs.records import SESSION_PREFIX, Fingerprint, Sample, stored_prompts
from harness.runs.run_files import JOURNAL, PROMPTS, RECEIPT, SCORES, RunFiles
from harness.runs.run_folder import RunFolder, extend_identity
from harness.runs.stored_files import hash_stored, open_atomic, write_whole
from harness.runs.versions_and_hashes import model_fingerprint
from tests.conftest import needs_vllm, run_program
from tests.make import (
    GREEDY_RUN,
    ROOT,
    TOY_CONFIG,
    TOY_MODEL,
    list_requests,
    module_fixture,
    one_line,
    read_lines,
    run_plan,
    small_run,
    table_page,
    with_cases,
)


@module_fixture
def plan():
    return make_plan(load_config(TOY_CONFIG), limit=5)


@module_fixture
def identity(plan):
    return run_identity(plan, plan.config.resolve_sampling({}))


@pytest.fixture
def open_run(plan, identity, tmp_path):
    """Opens a folder for the run of a plan."""

    def open_folder(identity=identity, plan=plan, path=tmp_path / "run"):
        return RunFolder(path, identity, stored_prompts(plan))

    return open_folder


@pytest.fixture
def started_run(open_run, tmp_path):
    """A run with one sample: without any it would protect nothing."""
    with open_run() as folder:
        folder.journal.append({"key": "k", "task": "t"})
    return tmp_path / "run"


@module_fixture
def regraded(tmp_path_factory):
    run = small_run(tmp_path_factory.mktemp("small") / "demo")
    assert regrade(RunFiles(run)) == (
        f"{len(load_run(run))} samples, grader {GRADER_VERSION} -> {GRADER_VERSION}: "
        "0 verdicts changed"
    )
    return run


@pytest.fixture
def demo_run(regraded, tmp_path):
    return Path(shutil.copytree(regraded, tmp_path / "demo"))


@module_fixture
def finished(plan, tmp_path_factory):
    return finish_run(plan, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def finished_run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def finish_run(plan, folder):
    """The run of a plan, with samples of the committed run: keys do not depend on the limit."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed, and its version is part of each sample's key")
    recorded = {
        (sample.task, sample.problem_id): sample for sample in RunFiles(GREEDY_RUN).journal.records
    }

    def find_sample(request, key):
        sample = recorded[request.task, request.problem_id]
        assert sample.key == key  # of the committed run's settings
        return sample

    return run_plan(plan, folder, find_sample)


def hash_files(run):
    return {path.name: hash_stored(path) for path in run.iterdir() if path.name != ".lock"}


def test_scores_of_another_format_are_not_replaced(demo_run):
    scores = (demo_run / SCORES).read_text()
    (demo_run / SCORES).write_text(scores.replace('"format":1', '"format":2', 1))
    with pytest.raises(RunError, match=r"scores.jsonl: Expected `int`.* at `\$.format`"):
        regrade(RunFiles(demo_run))


def test_damaged_headers_and_a_session_without_config_are_named(demo_run):
    first, rest = (demo_run / JOURNAL).read_text().split("\n", 1)
    (demo_run / JOURNAL).write_text(first + "\n" + rest.replace('"config"', '"other"'))
    with pytest.raises(RunError, match=r"journal.jsonl: Object missing required field `config`"):
        write_receipt(RunFiles(demo_run))
    header = json.loads(first)
    header["arms"].pop("demo_wo")
    for text, message in (
        (json.dumps(header) + "\n" + rest, "prompts.jsonl is missing or damaged: its prompts"),
        ("", "journal.jsonl is empty, or its first line is incomplete"),
    ):
        (demo_run / JOURNAL).write_text(text)
        with pytest.raises(JournalError, match=message):
            load_run(demo_run)


@with_cases
def test_a_key_changes_with_all_that_can_change_the_sample_and_with_nothing_else(
    plan, identity, request_changes
):
    request, setting = list_requests(plan)[0], identity.hash_setting()
    model, engine, config = identity.model, identity.engine, identity.config
    moved = replace(identity, model=replace(model, name="elsewhere"), config={**config, "seed": 5})
    assert moved.hash_setting() == setting  # the folder's name, and a setting of each request
    renamed = dataclasses.replace(request, task="demo_other")
    assert sample_key(renamed, setting) == sample_key(request, setting)  # the condition's name
    identity_changes = (
        {"prompt_version": 2},
        {"engine": replace(engine, device="cuda")},
        {"engine": replace(engine, version="9")},
        {"model": Fingerprint(name="model", sha256={"config.json": "0"})},
        {"config": {**config, "model": {**config["model"], "model_args": {"dtype": "bfloat16"}}}},
    )
    settings = [replace(identity, **change).hash_setting() for change in identity_changes]
    requests = [dataclasses.replace(request, **change) for change in request_changes]
    other_sampling = dataclasses.replace(request.sampling, max_tokens=7)
    requests.append(dataclasses.replace(request, sampling=other_sampling))
    keys = [sample_key(request, changed) for changed in settings]
    keys += [sample_key(changed, setting) for changed in requests]
    assert len({*keys}) == len(keys) == 5 + 9


def test_first_samples_of_all_problems_come_before_second_samples():
    config = load_config(TOY_CONFIG, {"gen_kwargs.temperature": 0.7, "repeats": 3})
    plan = make_plan(config, limit=4)
    requests = [
        (request.sample_index, request.problem_id, request.task) for request in list_requests(plan)
    ]
    prompts = [(problem.id, task) for task, _, problem, _ in plan.rows]
    assert requests == [(index, *prompt) for index in range(3) for prompt in prompts]


def test_other_token_ids_under_the_same_text_are_another_run(plan, started_run, tmp_path):
    tokenizer = shutil.copytree(TOY_MODEL, tmp_path / "tokenizer")
    state = json.loads((tokenizer / "tokenizer.json").read_text())
    vocabulary = state["model"]["vocab"]
    vocabulary["."], vocabulary[","] = vocabulary[","], vocabulary["."]
    (tokenizer / "tokenizer.json").write_text(json.dumps(state))
    changed = load_config(TOY_CONFIG, {"model.model_args.tokenizer": tokenizer})
    changed_plan = make_plan(changed, limit=5)
    prompts = stored_prompts(changed_plan)
    assert [row.prompt for row in prompts] == [row.prompt for row in stored_prompts(plan)]
    identity = run_identity(changed_plan, plan.config.resolve_sampling({}))
    with pytest.raises(JournalError, match=r"problem \S+, prompt_token_sha256: .* -> "):
        extend_identity(RunFiles(started_run), identity, prompts)


def test_a_continued_run_has_the_config_of_its_last_session(finished_run):
    (finished_run / SCORES).unlink()  # so that something remains to be done
    renamed = load_config(TOY_CONFIG, {"model.label": "renamed"})
    execute(make_plan(renamed, limit=5), output=finished_run, quiet=True)
    receipt = RunFiles(finished_run).receipt
    first, *_, last = receipt["sessions"]
    assert first["config"]["model"]["label"] == "mless-demo"
    assert receipt["config"]["model"]["label"] == "renamed"
    assert {"key", "started"} <= last.keys() and not {"config", "versions"} & last.keys()
    assert receipt["sampling"]["max_tokens"] == 2048
    assert set(load_run(finished_run)["model"]) == {"renamed"}


def test_a_run_without_a_sample_is_replaced_by_another(plan, identity, open_run):
    mistaken = replace(identity, engine=replace(identity.engine, device="cuda"))
    with open_run(mistaken) as folder:
        folder.note(SESSION_PREFIX, session_facts(plan))
    with open_run() as folder:
        assert not folder.journal.keys
        folder.journal.append({"key": "k", "task": "t"})
    with pytest.raises(JournalError, match=r'Changed: engine.device: .* -> "cuda"'):
        open_run(mistaken)


def test_the_receipt_identifies_samples_and_verdicts_by_their_hashes(demo_run):
    files = RunFiles(demo_run).receipt["files"]
    assert set(files) == {JOURNAL, PROMPTS, SCORES}
    for name, digest in files.items():
        assert digest == hashlib.sha256((demo_run / name).read_bytes()).hexdigest()
    journal = (demo_run / JOURNAL).read_text()
    (demo_run / JOURNAL).write_text(journal.replace('"completion":"', '"completion":"so '))
    regrade(RunFiles(demo_run))
    forged = RunFiles(demo_run).receipt["files"]
    assert forged[JOURNAL] != files[JOURNAL] and forged[PROMPTS] == files[PROMPTS]
    assert f"samples {forged[JOURNAL][:8]}" in one_line(table_page(demo_run))


def test_the_local_folder_of_a_served_model_is_hashed(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    fingerprint = model_fingerprint(str(tmp_path), is_served=True)
    assert fingerprint.sha256.keys() == {"config.json"}
    assert engine_identity("local-completions", {}, {}).device == "server"


def test_a_folder_has_one_writer(open_run):
    message = "is in use by another mless process. Wait for it, or choose another"
    with open_run(), pytest.raises(JournalError, match=message):
        open_run()
    open_run().__exit__()


def compress(run):
    """Compress the files of a run, as those of the committed runs are."""
    for name in (JOURNAL, SCORES, PROMPTS):
        (run / f"{name}.xz").write_bytes(lzma.compress((run / name).read_bytes(), preset=0))
        (run / name).unlink()


def test_a_finished_run_can_be_read_and_graded_in_compressed_form(demo_run):
    before = load_run(demo_run)
    compress(demo_run)
    pandas.testing.assert_frame_equal(load_run(demo_run), before)
    assert "0 verdicts changed" in regrade(RunFiles(demo_run))
    assert (demo_run / f"{JOURNAL}.xz").exists() and not (demo_run / JOURNAL).exists()
    columns = [name for name in before if name not in GRADERS]  # others may take too long
    pandas.testing.assert_frame_equal(load_run(demo_run)[columns], before[columns])


def test_a_compressed_run_is_unpacked_when_it_continues(plan, open_run, finished_run):
    before = hash_files(finished_run)
    compress(finished_run)
    with open_run() as folder:
        assert len(folder.sample_keys) == plan.completion_count
    assert hash_files(finished_run) == before


def test_a_damaged_compressed_file_is_named(demo_run):
    compress(demo_run)
    for name in (SCORES, JOURNAL):
        file = demo_run / f"{name}.xz"
        content = file.read_bytes()
        message = rf"{name}.xz is damaged \(.*\). Restore it from a copy"
        for damaged in (content[: len(content) // 2], b"no xz" + content[5:]):
            file.write_bytes(damaged)
            for read in (load_run, table_page, lambda run: regrade(RunFiles(run))):
                with pytest.raises(JournalError, match=message):
                    read(demo_run)
            assert not list(demo_run.glob("*.part"))
        file.write_bytes(content)
    (demo_run / f"{PROMPTS}.xz").write_bytes(b"")
    with pytest.raises(JournalError, match=r"prompts.jsonl is missing or damaged"):
        load_run(demo_run)


@pytest.mark.parametrize("killed", [JOURNAL, PROMPTS])
def test_a_larger_limit_continues_a_run_also_after_a_kill_while_it_grows(
    plan, finished_run, monkeypatch, killed
):
    keys = {sample.key for sample in RunFiles(finished_run).journal.records}
    larger = make_plan(load_config(TOY_CONFIG), limit=7)

    def fail_to_write(path):
        return open_atomic(path / "in a file" if path.name == killed else path)

    with monkeypatch.context() as patched, pytest.raises(JournalError):
        for module in ("journal", "run_folder"):
            patched.setattr(f"harness.runs.{module}.open_atomic", fail_to_write)
        finish_run(larger, finished_run)
    execute(plan, output=finished_run, quiet=True)
    assert len(load_run(finished_run)) == 20  # it is still complete
    finish_run(larger, finished_run)  # which generates no sample
    receipt = RunFiles(finished_run).receipt
    assert (receipt["limit"], receipt["problems"]) == (7, 7)
    assert len(RunFiles(finished_run).prompts) == len(load_run(finished_run)) == 28
    assert keys < {sample.key for sample in RunFiles(finished_run).journal.records}
    with pytest.raises(JournalError, match=r"Changed: limit: 7 -> 5\. .*--output"):
        execute(plan, output=finished_run, quiet=True)


@needs_vllm
def test_a_new_task_version_grades_again_and_keeps_every_sample(finished_run, monkeypatch):
    journal = (finished_run / JOURNAL).read_text()
    monkeypatch.setattr(resources, "task_version", lambda: 99.0)
    plan = make_plan(load_config(TOY_CONFIG), limit=5)
    identity = run_identity(plan, plan.config.resolve_sampling(_generation_config(plan)))
    assert extend_identity(RunFiles(finished_run), identity, stored_prompts(plan)) == identity
    assert regrade(RunFiles(finished_run)).endswith("0 verdicts changed")
    assert RunFiles(finished_run).receipt["task_version"] == 99
    monkeypatch.setattr(resources, "task_version", lambda: 100.0)
    regrade(RunFiles(finished_run))
    assert (finished_run / JOURNAL).read_text() == journal
    for number, version in ((1, 7), (2, 99)):
        header, *_ = read_lines(finished_run / f"old-scores-{number}.jsonl")
        assert header["task_version"] == version  # no scores are lost


def test_a_journal_with_only_a_torn_header_begins_again_with_new_prompts(plan, open_run, tmp_path):
    open_run().__exit__()
    (tmp_path / "run" / JOURNAL).write_text('{"config": {"la')
    shorter = make_plan(plan.config, limit=2)
    open_run(run_identity(shorter, plan.config.resolve_sampling({})), shorter).__exit__()
    assert len(RunFiles(tmp_path / "run").prompts) == 8


def test_a_kill_while_the_prompts_are_written_locks_nobody_out(open_run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "prompts.jsonl.part").write_text('{"half')
    open_run().__exit__()
    assert len(RunFiles(tmp_path / "run").prompts) == 20


def test_damaged_prompts_are_written_again_when_the_run_is_continued(open_run, started_run):
    content = (started_run / PROMPTS).read_text()
    for damaged in (content[:-9], content.replace("expert", "novice", 1), ""):
        assert damaged != content
        (started_run / PROMPTS).write_text(damaged)
        with pytest.raises(JournalError, match=r"prompts.jsonl is missing or damaged"):
            list(RunFiles(started_run).prompts)
        open_run().__exit__()
        assert (started_run / PROMPTS).read_text() == content


def test_half_a_surrogate_pair_in_a_completion_is_spelt_out(plan):
    request = list_requests(plan)[0]
    # a server may send one, and no file can hold it
    assert Sample.of(request, "k", "a\ud800").completion == "a\\ud800"


def test_a_sample_of_another_run_in_the_journal_is_refused(plan, finished_run):
    with (finished_run / JOURNAL).open("a") as journal:
        journal.write('{"key":"0123","task":"demo_wo"}\n')
    with pytest.raises(JournalError, match="1 samples that are not this run's, such as 0123"):
        execute(plan, output=finished_run, quiet=True)


@with_cases
def test_what_a_kill_while_finishing_lost_is_written_again(plan, finished_run, name, content):
    (file,) = finished_run.glob(name)
    file.unlink() if content is None else file.write_text(content)
    execute(plan, output=finished_run, quiet=True)
    assert len(list(finished_run.glob(name))) == 1 and len(load_run(finished_run)) == 20


LIMITED = """
import resource, sys
from pathlib import Path
from harness.execution.run_execution import write_receipt
from harness.runs.run_files import RunFiles
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
write_receipt(RunFiles(Path(sys.argv[1])))
"""


def test_a_full_disk_while_finishing_is_reported_and_the_run_can_be_finished_later(
    plan, finished_run
):
    (finished_run / RECEIPT).unlink()
    process = run_program(sys.executable, "-c", LIMITED, finished_run, 1000)
    assert "JournalError" in process.stderr and "free some space" in process.stderr
    assert not (finished_run / RECEIPT).exists()  # it does not count as finished
    execute(plan, output=finished_run, quiet=True)
    assert len(load_run(finished_run)) == 20


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_a_file_is_written_whole_or_not_at_all_whatever_happens(tmp_path, error):
    write_whole(tmp_path / "file", "before")
    with pytest.raises(error), open_atomic(tmp_path / "file") as partial:
        partial.write(b"half")
        raise error
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "before")]


def test_regrading_that_fails_leaves_all_files_as_they_were(demo_run):
    (demo_run / PROMPTS).write_bytes((demo_run / PROMPTS).read_bytes()[:-9])
    before = hash_files(demo_run)
    with pytest.raises(JournalError, match=r"prompts.jsonl is missing or damaged"):
        regrade(RunFiles(demo_run))
    assert hash_files(demo_run) == before


def test_an_unfinished_run_is_not_a_table(started_run):
    with pytest.raises(RunError, match=r"has no finished run: repeat the command that began it"):
        load_run(started_run)


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "compressed"])
def test_a_finished_run_is_not_run_again(plan, finished_run, is_packed, capsys):
    if is_packed:
        compress(finished_run)
    before = hash_files(finished_run)
    execute(plan, output=finished_run, quiet=True)
    assert "is finished, nothing was left to do" in capsys.readouterr().err
    assert hash_files(finished_run) == before


def test_regrading_reports_what_changed_and_restores_lost_and_damaged_scores(demo_run):
    columns = [name for name in load_run(demo_run) if name not in GRADERS]  # may take too long
    before = load_run(demo_run)[columns]
    lines = (demo_run / SCORES).read_text().splitlines(keepends=True)
    text = "".join(lines[:11]).replace('"verdict":"correct"', '"verdict":"no_box"')
    changed = "".join(lines[:11]).count('"verdict":"correct"')
    (demo_run / SCORES).write_text(text + "".join(lines[11:-5]))
    message = regrade(RunFiles(demo_run))
    assert changed > 0 and f"{changed} verdicts changed\n" in message
    assert "no_box -> correct\n" in message
    assert len(re.findall(r"\n  no_box -> correct: demo_\w+ demo/\S+ sample 0", message)) == changed
    (demo_run / SCORES).write_text(text.replace("verdict", "other"))
    with pytest.raises(RunError, match=r"scores.jsonl, line 2: .*verdict"):
        load_run(demo_run)
    # changes of damaged scores are unknown
    assert regrade(RunFiles(demo_run)).endswith(": 0 verdicts changed")
    assert load_run(demo_run)[columns].equals(before)


def test_a_run_is_finished_outside_git_without_output(demo_run, tmp_path):
    code = "import sys; from pathlib import Path; from harness.execution import run_execution"
    code += "; run_execution.write_receipt(run_execution.RunFiles(Path(sys.argv[1])))"
    variables = {"PYTHONPATH": str(ROOT), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    options = {"cwd": tmp_path, "env": {**os.environ, **variables}}
    process = run_program(sys.executable, "-c", code, demo_run, **options)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
