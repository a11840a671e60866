import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import JournalError, RunError
from harness.execution.grade_again import regrade
from harness.grading import GRADERS
from harness.runs.journal import expand
from harness.runs.read_runs import Run
from harness.runs.records import Score
from harness.runs.run_folder import (
    JOURNAL,
    PROMPTS,
    RECEIPT,
    SCORES,
    read_prompts,
    read_receipt,
    read_scores,
)
from harness.runs.samples_frame import LOOP_COUNT, LOOP_LENGTH, load_run, loops, read_frame
from tests.make import GREEDY_RUN, right, small_run, write_run


@pytest.fixture
def demo_run(tmp_path):
    shutil.copytree(GREEDY_RUN, tmp_path / "demo")
    return tmp_path / "demo"


def read_outcomes(folder):
    return read_frame(folder, read_receipt(folder), read_prompts(folder))


def assert_same(folder):
    outcomes, frame = read_outcomes(folder), load_run(folder)
    shared = [name for name in outcomes if name in frame]
    assert len(outcomes) == len(frame) and len(shared) == 18
    for name in shared:
        ours, theirs = (
            f[name].astype(object).where(f[name].notna(), None).tolist() for f in (outcomes, frame)
        )
        assert ours == theirs, name
    assert outcomes["characters"].tolist() == [len(text) for text in frame["completion"]]
    assert outcomes["looping"].tolist() == [loops(text) for text in frame["completion"]]


def test_outcomes_are_those_of_the_frame_with_texts():
    assert_same(GREEDY_RUN)


def test_the_folder_of_a_run_may_be_named_like_a_log(tmp_path):
    folder = shutil.copytree(GREEDY_RUN, tmp_path / "run.jsonl")
    assert len(Run.load(folder).samples) == len(load_run(GREEDY_RUN))


def test_a_torn_last_line_is_passed_over(demo_run):
    before = read_outcomes(demo_run)
    with (demo_run / JOURNAL).open("ab") as journal:
        journal.write(b'{"key":"torn", "completion": "')
    assert read_outcomes(demo_run).equals(before)


def rewrite(path, number, text):
    """Put other text in the place of a line; without any, the line goes."""
    lines = path.read_text().splitlines()
    lines[number - 1 : number] = [] if text is None else [text]
    path.write_text("\n".join(lines) + "\n")


def of(path, number, **changes):
    return json.dumps({**json.loads(path.read_text().splitlines()[number - 1]), **changes})


BAD = [
    (JOURNAL, 6, "garbage", "journal.jsonl, line 6: damaged"),
    *(
        (JOURNAL, 6, {name: None}, rf"journal.jsonl, line 6: .*\$.{name}")
        for name in ("completion", "problem_id")
    ),
    (JOURNAL, 6, {"sample_index": "x"}, r"journal.jsonl, line 6: .*\$.sample_index"),
    (JOURNAL, 6, {"problem_id": "x"}, "prompts.jsonl lacks the prompt of problem x, demo_"),
    (
        JOURNAL,
        6,
        None,
        r"samples are missing: expected 2000, got 1999, too few of problem \S+ \(demo_\w+\)",
    ),
    (SCORES, 4, None, "has no score. Run `mless regrade`"),
    *(
        (SCORES, 4, {"verdict": verdict}, r"scores.jsonl, line 4: .*\$.verdict.*regrade")
        for verdict in ("right", None)
    ),
    (SCORES, 4, {"answer": ["x"]}, r"scores.jsonl, line 4: .*\$.answer.*regrade"),
    (PROMPTS, 1, {"doc": {}}, "prompts.jsonl is missing or damaged: .*`id`"),
    (PROMPTS, 1, {"prompt": "x"}, "prompts.jsonl is missing or damaged"),
    (PROMPTS, 1, None, "prompts.jsonl is missing or damaged"),
    (RECEIPT, 1, b'{"tasks":\xff}', "run.json is incomplete or damaged"),
    (RECEIPT, 1, b"[" * 100_000, "run.json is incomplete or damaged"),
    (RECEIPT, 1, {"task_version": float("nan")}, "run.json is incomplete or damaged"),
    (RECEIPT, 1, b'{"format": 1}', "run.json: .*field `run`"),
    (
        RECEIPT,
        1,
        {"config": {"conditions": [], "model": {}}},
        r"run.json: .*`backend` - at `\$.config.model`",
    ),
]


@pytest.mark.parametrize(("name", "number", "change", "message"), BAD)
def test_what_is_damaged_or_missing_is_named(demo_run, name, number, change, message):
    path = demo_run / name
    if isinstance(change, bytes):
        path.write_bytes(change)
    elif name == RECEIPT:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    else:
        rewrite(path, number, of(path, number, **change) if isinstance(change, dict) else change)
    for read in (read_outcomes, load_run):
        with pytest.raises(RunError, match=message):
            read(demo_run)


def test_files_that_are_not_there_are_named(demo_run):
    (demo_run / SCORES).unlink()
    with pytest.raises(JournalError, match=r"scores.jsonl cannot be read: No such file"):
        read_outcomes(demo_run)
    with pytest.raises(RunError, match=r"scores.jsonl cannot be read: No such file or directory\."):
        Run.load(demo_run)
    rewritten = (demo_run / JOURNAL).read_text().splitlines(keepends=True)[:2]
    (demo_run / JOURNAL).write_text("".join(rewritten))
    shutil.copy(GREEDY_RUN / SCORES, demo_run)
    with pytest.raises(RunError, match="has no sample"):
        read_outcomes(demo_run)


def test_a_lost_replicate_is_missed_too(tmp_path):
    run = write_run(
        tmp_path / "r", right, replicates=2, gen_kwargs={"temperature": 1}, repeats=2, limit=3
    )
    assert len(read_outcomes(run)) == len(load_run(run, replicates=True)) == 3 * 2 * 4
    lines = (run / JOURNAL).read_text().splitlines(keepends=True)
    lost = ('"replicate":1', '"sample_index":1', "demo_wo")
    remaining = [line for line in lines if not all(text in line for text in lost)]
    (run / JOURNAL).write_text("".join(remaining))
    for read in (read_outcomes, load_run):
        with pytest.raises(
            RunError, match=r"expected 24, got 21, too few of problem \S+ \(demo_wo\)"
        ):
            read(run)


def test_doubled_samples_are_refused_and_scores_that_are_none_graded_again(tmp_path):
    demo_run = small_run(tmp_path / "demo")
    journal, scores = demo_run / JOURNAL, demo_run / SCORES
    content, before = journal.read_text(), load_run(demo_run)
    journal.write_text(content + content.splitlines()[5] + "\n")
    for read in (load_run, read_outcomes):
        with pytest.raises(RunError, match=r"sample 0 of problem demo/\S+, demo_\w+, occurs twice"):
            read(demo_run)
    expand(demo_run)
    journal.write_text(content)
    rewrite(scores, 2, json.dumps({"key": json.loads(scores.read_text().splitlines()[1])["key"]}))
    with pytest.raises(RunError, match=r"scores.jsonl, line 2: .*`verdict`"):
        read_scores(demo_run)
    assert regrade(demo_run).endswith(": 0 verdicts changed"), (
        "which are not known of damaged scores"
    )
    assert load_run(demo_run).equals(before)


def test_a_score_names_every_grader():
    assert set(GRADERS) <= set(Score.__struct_fields__)


@given(block=st.text(min_size=1, max_size=LOOP_LENGTH).filter(str.strip), head=st.text(max_size=50))
def test_a_block_that_fills_the_end_loops(block, head):
    repeats = -(-7 * LOOP_LENGTH // len(block)) + 2  # white space at the end does not count
    assert loops(head + block * repeats + " \n")


@given(block=st.text(min_size=LOOP_LENGTH, max_size=3 * LOOP_LENGTH).filter(str.strip))
def test_a_long_block_loops_with_the_fourth_time(block):
    block = "[" + block + "]"
    assert (loops(block * LOOP_COUNT) and not loops(block * (LOOP_COUNT - 1))) or len(
        set(block)
    ) < LOOP_LENGTH


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
