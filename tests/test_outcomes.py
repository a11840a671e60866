"""Outcomes as columns: the same as the frame with the texts, whatever state the files are in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import JournalError, RunError
from harness.outcomes import LOOP_COUNT, LOOP_LENGTH, loops
from harness.outcomes import read_outcomes as read_labelled
from harness.records import read_frame
from harness.run_folder import JOURNAL, SCORES

DEMO_RUN = Path(__file__).resolve().parent / "greedy_run"


@pytest.fixture
def demo_run(tmp_path):
    shutil.copytree(DEMO_RUN, tmp_path / "demo")
    return tmp_path / "demo"


def read_outcomes(folder):
    return read_labelled(folder, label="mless-demo")


def assert_same(folder):
    outcomes, frame = read_outcomes(folder), read_frame(folder)
    shared = [name for name in outcomes if name in frame]
    assert len(outcomes) == len(frame) and len(shared) == 20
    for name in shared:
        ours, theirs = (f[name].astype(object).where(f[name].notna(), None).tolist() for f in (outcomes, frame))
        assert ours == theirs, name
    assert outcomes["characters"].tolist() == [len(text) for text in frame["completion"]]
    assert outcomes["looping"].tolist() == [loops(text) for text in frame["completion"]]


def test_outcomes_are_those_of_the_frame_with_texts():
    assert_same(DEMO_RUN)


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
    before = read_outcomes(DEMO_RUN)
    assert outcomes["verdict"].tolist() == before["verdict"].tolist()
    assert outcomes["characters"].sum() == before["characters"].sum() + len("\ud800 half a pair")


def test_what_is_damaged_or_missing_is_named(demo_run):
    journal, scores = (demo_run / JOURNAL).read_text(), (demo_run / SCORES).read_text()
    lines = journal.splitlines(keepends=True)
    (demo_run / JOURNAL).write_text("".join([*lines[:5], "garbage\n", *lines[5:]]))
    with pytest.raises(JournalError, match=r"journal.jsonl, line 6: damaged"):
        read_outcomes(demo_run)
    (demo_run / JOURNAL).write_text("".join([*lines[:5], lines[5].replace('"sample_index":0', '"sample_index":"x"')]))
    with pytest.raises(RunError, match=r"journal.jsonl: a record is not as mless writes it"):
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
