import json
import re
import shutil

import pytest

from harness import Run, load_run
from harness.errors import JournalError, RunError
from harness.runs.run_files import JOURNAL, RECEIPT, SCORES, RunFiles
from harness.runs.samples_frame import read_frame
from tests.make import GREEDY_RUN, right, with_cases


@pytest.fixture
def demo_run(tmp_path):
    shutil.copytree(GREEDY_RUN, tmp_path / "demo")
    return tmp_path / "demo"


def read_outcomes(folder):
    return read_frame(RunFiles(folder))


def test_the_folder_of_a_run_may_be_named_like_a_log(tmp_path):
    folder = shutil.copytree(GREEDY_RUN, tmp_path / "run.jsonl")
    assert len(Run.load(folder).samples) == len(load_run(GREEDY_RUN))


def test_a_torn_last_line_is_ignored(demo_run):
    before = read_outcomes(demo_run)
    with (demo_run / JOURNAL).open("ab") as journal:
        journal.write(b'{"key":"torn", "completion": "')
    assert read_outcomes(demo_run).equals(before)


def rewrite(path, number, change):
    """Change the keys of a line, or put a text in its position; None removes it."""
    lines = path.read_text().splitlines()
    if isinstance(change, dict):
        change = json.dumps({**json.loads(lines[number - 1]), **change})
    lines[number - 1 : number] = [] if change is None else [change]
    path.write_text("\n".join(lines) + "\n")


def refuse_to_read(run, message):
    for read in (read_outcomes, load_run):
        with pytest.raises(RunError, match=message):
            read(run)


@with_cases
def test_a_damaged_or_missing_line_is_named(demo_run, name, number, change, message):
    rewrite(demo_run / name, number, change)
    refuse_to_read(demo_run, message)


@with_cases
def test_a_damaged_receipt_is_named(demo_run, change, count, message):
    path = demo_run / RECEIPT
    if isinstance(change, dict):
        change = json.dumps({**json.loads(path.read_text()), **change})
    path.write_text(change * count, errors="surrogateescape")
    refuse_to_read(demo_run, message)


def test_missing_scores_and_missing_samples_are_named(demo_run):
    (demo_run / SCORES).unlink()
    message = r"scores.jsonl cannot be read: No such file or directory\."
    with pytest.raises(JournalError, match=message):
        read_outcomes(demo_run)
    with pytest.raises(RunError, match=message):
        Run.load(demo_run)
    lines = (demo_run / JOURNAL).read_text().splitlines(keepends=True)
    (demo_run / JOURNAL).write_text("".join(lines[:2]))
    shutil.copy(GREEDY_RUN / SCORES, demo_run)
    with pytest.raises(RunError, match="expected 2000, got 0"):
        read_outcomes(demo_run)


def test_a_missing_sample_of_a_replicate_is_noticed(make_run):
    sampling = {"replicates": 2, "repeats": 2, "gen_kwargs": {"temperature": 1}}
    run = make_run(right, limit=3, **sampling)
    assert len(read_outcomes(run)) == len(load_run(run, replicates=True)) == 3 * 2 * 4
    lines = (run / JOURNAL).read_text().splitlines(keepends=True)
    lost = re.compile('(?=.*"replicate":1)(?=.*"sample_index":1)(?=.*demo_wo)')
    (run / JOURNAL).write_text("".join(line for line in lines if not lost.match(line)))
    refuse_to_read(run, r"expected 24, got 21, too few of problem \S+ \(demo_wo\)")
