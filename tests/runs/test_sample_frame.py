"""Outcomes as columns: the same as the frame with the texts, whatever state the files are in."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import JournalError, RunError
from harness.execution.regrade import regrade
from harness.grading import COLUMNS
from harness.runs.folder import JOURNAL, SCORES, read_prompts, read_scores
from harness.runs.records import Score
from harness.runs.repetition import LOOP_COUNT, LOOP_LENGTH, loops
from harness.runs.sample_frame import load_run, read_frame, read_receipt
from harness.runs.stored_files import expand
from tests.make import GREEDY_RUN, right, write_run


@pytest.fixture
def demo_run(tmp_path):
    shutil.copytree(GREEDY_RUN, tmp_path / "demo")
    return tmp_path / "demo"


def read_outcomes(folder):
    return read_frame(folder, read_receipt(folder), read_prompts(folder))


def assert_same(folder):
    outcomes, frame = read_outcomes(folder), load_run(folder)
    shared = [name for name in outcomes if name in frame]
    assert len(outcomes) == len(frame) and len(shared) == 19
    for name in shared:
        ours, theirs = (f[name].astype(object).where(f[name].notna(), None).tolist() for f in (outcomes, frame))
        assert ours == theirs, name
    assert outcomes["characters"].tolist() == [len(text) for text in frame["completion"]]
    assert outcomes["looping"].tolist() == [loops(text) for text in frame["completion"]]


def test_outcomes_are_those_of_the_frame_with_texts():
    assert_same(GREEDY_RUN)


def test_files_that_are_not_plain_are_read_all_the_same(demo_run):
    lines = (demo_run / JOURNAL).read_bytes().splitlines(keepends=True)
    odd = [line for line in lines if b'"completion"' in line][7]
    sample = json.loads(odd)
    sample["completion"] += "\ud800 half a pair"
    new = json.dumps(sample, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    torn = b'{"key":"torn", "completion": "'
    (demo_run / JOURNAL).write_bytes(b"".join([*(new if line == odd else line for line in lines), torn]))
    outcomes = read_outcomes(demo_run)
    assert len(outcomes) == 2000
    before = read_outcomes(GREEDY_RUN)
    assert outcomes["verdict"].tolist() == before["verdict"].tolist()
    assert outcomes["characters"].sum() == before["characters"].sum() + len("\ud800 half a pair")


def test_what_is_damaged_or_missing_is_named(demo_run):
    journal, scores = (demo_run / JOURNAL).read_text(), (demo_run / SCORES).read_text()
    lines = journal.splitlines(keepends=True)
    (demo_run / JOURNAL).write_text("".join([*lines[:5], "garbage\n", *lines[5:]]))
    with pytest.raises(JournalError, match=r"journal.jsonl, line 6: damaged"):
        read_outcomes(demo_run)
    (demo_run / JOURNAL).write_text("".join([*lines[:5], lines[5].replace('"sample_index":0', '"sample_index":"x"')]))
    with pytest.raises(
        RunError, match=r"journal.jsonl, line 6: sample_index: expected `int`, got 'x'. Restore the file"
    ):
        read_outcomes(demo_run)
    (demo_run / JOURNAL).write_text(journal)
    (demo_run / SCORES).write_text("".join(scores.splitlines(keepends=True)[:-1]))
    with pytest.raises(RunError, match=r"the score of problem .* is missing. Run `mless regrade`"):
        read_outcomes(demo_run)
    (demo_run / SCORES).unlink()
    with pytest.raises(JournalError, match=r"scores.jsonl does not exist"):
        read_outcomes(demo_run)
    (demo_run / SCORES).write_text(scores)
    (demo_run / JOURNAL).write_text("".join(lines[:2]))
    with pytest.raises(RunError, match="holds no sample"):
        read_outcomes(demo_run)


def without(path, drop):
    """The file without the records of which `drop` is true."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not drop(json.loads(line))))


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        (
            lambda r: int(r.get("problem_id", "//999.").split("/")[2].split(".")[0]) < 100,
            r"samples are missing: expected 2000, got 1600. They lack for problem demo/number_theory/0.json, demo_wo; "
            r"problem .*, demo_mless; .* and 397 more. Continue the run by the command that began it, or restore",
        ),
        (
            lambda r: r.get("task") == "demo_mful",
            r"expected 2000, got 1500. They lack for problem \S+, demo_mful; .* and 497 more",
        ),
        (
            lambda r: r.get("task") == "demo_wo" and "/7.json" in r["problem_id"],
            r"lack for problem \S+/7.json, demo_wo\.",
        ),
    ],
    ids=["problems under every condition", "a condition", "one sample"],
)
def test_a_finished_run_of_which_samples_were_lost_is_refused(demo_run, drop, message):
    without(demo_run / JOURNAL, drop)
    for read in (read_outcomes, load_run):
        with pytest.raises(RunError, match=message):
            read(demo_run)


def test_a_lost_replicate_is_missed_too(tmp_path):
    run = write_run(tmp_path / "r", right, replicates=2, sampling={"temperature": 1}, samples_per_problem=2, limit=3)
    assert len(read_outcomes(run)) == len(load_run(run, replicates=True)) == 3 * 2 * 3
    without(run / JOURNAL, lambda r: r.get("replicate") == 1 and r["sample_index"] == 1)
    for read in (read_outcomes, load_run):
        with pytest.raises(
            RunError, match=r"samples are missing: expected 18, got 15. They lack for problem .*demo_wo"
        ):
            read(run)


@pytest.mark.parametrize("verdict", ["Correct", "right", "", None])
def test_a_verdict_that_no_grader_gives_is_refused(demo_run, verdict):
    lines = (demo_run / SCORES).read_text().splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), "verdict": verdict})
    (demo_run / SCORES).write_text("\n".join(lines) + "\n")
    for read in (read_outcomes, load_run):
        with pytest.raises(
            RunError, match=rf"line 4: verdict: expected (one of correct, .*|`str`, )got {verdict!r}. .*regrade"
        ):
            read(demo_run)


def changed(**changes):
    def change(receipt):
        for path, value in changes.items():
            *way, last = path.split("__")
            inner = receipt
            for name in way:
                inner = inner[name]
            if value is ...:
                del inner[last]
            else:
                inner[last] = value
        return json.dumps(receipt).encode()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b'{"tasks":\xff}', r"run.json is torn or damaged \('utf-8' codec can't decode"),
        (lambda _: b'{"tasks": [', r"run.json is torn or damaged \(Expecting value"),
        (lambda _: b"[" * 100_000, r"run.json is torn or damaged \(maximum recursion depth"),
        (lambda _: b"[]", r"run.json: the whole: expected `object`, got \[\]"),
        (changed(config=...), r"run.json: config: it is missing. Run the command that made it again, or restore it"),
        (changed(model={}), r"run.json: model.name: it is missing"),
        (changed(model=3), r"run.json: model: expected `object`, got 3"),
        (changed(tasks=[1]), r"run.json: tasks.0: .*, got 1"),
        (changed(tasks=[]), r"run.json: tasks: expected `array` of length >= 1"),
        (changed(config__model__label="a\ud800"), r"run.json: the whole: 'utf-8' codec can't encode .*surrogates"),
        (
            changed(config__samples_per_problem="many"),
            r"run.json: config.samples_per_problem: expected `int`, got 'many'",
        ),
        (changed(task_version=float("nan")), r"run.json: the whole: Out of range float values are not JSON"),
    ],
)
def test_a_receipt_that_is_none_is_refused(demo_run, change, message):
    path = demo_run / "run.json"
    path.write_bytes(change(json.loads(path.read_text())))
    for read in (read_receipt, load_run):
        with pytest.raises(RunError, match=message):
            read(demo_run)


def test_records_that_are_none_are_refused(demo_run):
    journal, prompts = demo_run / JOURNAL, demo_run / "prompts.jsonl"
    whole, lines = journal.read_text(), journal.read_text().splitlines()
    sample = json.loads(lines[3])
    for name, wrong in (("completion", None), ("problem_id", None), ("sample_index", None), ("task", 3)):
        journal.write_text("\n".join([*lines[:3], json.dumps({**sample, name: wrong}), *lines[4:]]) + "\n")
        for read in (read_outcomes, load_run):
            with pytest.raises(RunError, match=r"journal.jsonl|samples are missing"):
                read(demo_run)
    journal.write_text("\n".join([*lines[:3], "[" * 100_000, *lines[4:]]) + "\n")
    for read in (read_outcomes, load_run):
        with pytest.raises(RunError, match=r"journal.jsonl, line 4: damaged"):
            read(demo_run)
    journal.write_text(whole)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    for doc in (None, {}, {**rows[0]["doc"], "segments": 3}, {**rows[0]["doc"], "subject": None}):
        prompts.write_text("\n".join(json.dumps(row) for row in [{**rows[0], "doc": doc}, *rows[1:]]) + "\n")
        for read in (read_outcomes, load_run):
            with pytest.raises(RunError, match=r"prompts.jsonl, line 1: doc.*Restore it from a copy"):
                read(demo_run)


def test_doubled_samples_are_refused_and_scores_that_are_none_graded_again(demo_run):
    journal, scores = demo_run / JOURNAL, demo_run / SCORES
    whole, lines = journal.read_text(), scores.read_text().splitlines()
    journal.write_text(whole + whole.splitlines()[5] + "\n")
    for read in (load_run, read_outcomes, regrade):
        with pytest.raises(RunError, match=r"sample 0 of problem demo/\S+, demo_\w+, occurs more than once. Delete"):
            read(demo_run)
    expand(demo_run)
    journal.write_text(whole)
    for wrong in ({"verdict": "Correct"}, {"answer": ["x"]}):
        scores.write_text("\n".join([lines[0], json.dumps({**json.loads(lines[1]), **wrong}), *lines[2:]]) + "\n")
        with pytest.raises(RunError, match="Run `mless regrade` on the folder"):
            read_scores(demo_run)
    scores.write_text("\n".join([lines[0], json.dumps({"key": json.loads(lines[1])["key"]}), *lines[2:]]) + "\n")
    with pytest.raises(RunError, match=r"scores.jsonl, line 2: verdict: it is missing. Run `mless regrade`"):
        read_scores(demo_run)
    assert "1 verdicts changed\n       1  None -> correct" in regrade(demo_run)
    assert load_run(demo_run).equals(load_run(GREEDY_RUN))


def test_a_score_names_every_grader():
    assert set(COLUMNS) <= set(Score.__struct_fields__)


@given(block=st.text(min_size=1, max_size=LOOP_LENGTH).filter(str.strip), head=st.text(max_size=50))
def test_a_block_that_fills_the_end_loops(block, head):
    repeats = -(-7 * LOOP_LENGTH // len(block)) + 2  # white space at the end does not count
    assert loops(head + block * repeats + " \n")


@given(block=st.text(min_size=LOOP_LENGTH, max_size=3 * LOOP_LENGTH).filter(str.strip))
def test_a_long_block_loops_with_the_fourth_time(block):
    block = "[" + block + "]"
    assert (loops(block * LOOP_COUNT) and not loops(block * (LOOP_COUNT - 1))) or len(set(block)) < LOOP_LENGTH


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        ("", False),
        ("wait, " * 60, False),  # 360 characters
        ("wait, " * 70, True),
        ("x" * 399, False),
        ("x" * 400, True),
        (" ".join(map(str, range(1000))), False),
        ("so " * 300 + "".join(map(chr, range(0x4E00, 0x4E00 + LOOP_LENGTH))), False),  # left again
    ],
)
def test_only_a_loop_at_the_end_counts(text, looping):
    assert loops(text) is looping
