import json
import re

import pytest

from harness.analysis.leaderboard import records
from harness.execution.regrade import grade_at_caps
from harness.grading import count_outside, grade
from harness.runs.folder import JOURNAL, read_prompts
from tests.analysis.test_pair import log
from tests.commands.test_cli import here, refused
from tests.make import GREEDY_RUN, write_run


def graded(capsys, monkeypatch, *arguments):
    done = here(capsys, monkeypatch, "regrade", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_a_log_of_our_own_task_is_graded_as_it_was(tmp_path, capsys, monkeypatch):
    path = next(GREEDY_RUN.glob("samples_demo_mless_2*"))
    said = graded(capsys, monkeypatch, path)
    assert said.startswith("500 samples: right by mless 8") and "; they differ on 0." in said


def test_a_log_of_another_task_is_graded_beside_its_metric(tmp_path, capsys, monkeypatch):
    path = log(
        tmp_path / "samples_gsm8k.jsonl", [1, 0], resps=[[r"so \\boxed{3}"]], filtered_resps=["3"], target="a\n#### 3.0"
    )
    said = graded(capsys, monkeypatch, path)
    assert "2 samples: right by mless 100.0%, by the log's metric 50.0%; they differ on 1. Verdicts: correct 2." in said
    unboxed = log(tmp_path / "samples_last.jsonl", [1, 0], resps=[["first\nnone"]], filtered_resps=["7"], target="7")
    assert "right by mless 100.0%" in graded(capsys, monkeypatch, unboxed, "--metric", "exact_match,loose")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_of_completions_is_graded(suffix, tmp_path, capsys, monkeypatch):
    path = tmp_path / f"mine.{suffix}"
    rows = [("a", r"\boxed{\frac12}", "0.5"), ("b", "I think\n13", "14"), ("c", r"\boxed{2}", "2")]
    if suffix == "csv":
        path.write_text("id,said,answer\n" + "".join(f'{name},"{said}",{gold}\n' for name, said, gold in rows))
    else:
        lines = [{"id": name, "said": said, "answer": gold} for name, said, gold in rows]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = graded(capsys, monkeypatch, path, "--completion", "said", "--gold", "answer")
    assert (
        said.startswith("3 samples: right by mless 66.7%. Verdicts: correct 2, incorrect 1.")
        and "b 14 13 incorrect" in said
    )
    refused(
        here(capsys, monkeypatch, "regrade", str(path)), "has no column 'completion': expected one of id, said, answer"
    )
    (tmp_path / "none.csv").write_text("completion,gold\n")
    refused(here(capsys, monkeypatch, "regrade", str(tmp_path / "none.csv")), "none.csv holds no completion.")
    (tmp_path / "silent.csv").write_text("completion,gold\n,14\n")
    assert "Verdicts: no_box 1." in graded(capsys, monkeypatch, tmp_path / "silent.csv")
    (tmp_path / "odd.jsonl").write_text("not json")
    refused(here(capsys, monkeypatch, "regrade", str(tmp_path / "odd.jsonl")), "is no CSV or JSONL of completions")


SHORT, LONG = r"\boxed{{{0}}}.", r"We add and add and add, and so it must be {0} in the end: \boxed{{{0}}}."


def with_tokens(run, tokenizer):
    """The run as an engine would have journaled it: with the tokens of each completion."""
    first, *lines = map(json.loads, (run / JOURNAL).read_text().splitlines())
    for line in lines:
        if "completion" in line:
            line["token_ids"] = tokenizer(line["completion"])["input_ids"]
    (run / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in (first, *lines)))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory, toy_tokenizer):
    """`mless` answers at once, `wo` in a long sentence; both are always right."""

    def answer(request, target):
        return (SHORT if "mless" in request.task else LONG).format(target), "stop"

    return with_tokens(write_run(tmp_path_factory.mktemp("caps") / "run", answer, limit=9), toy_tokenizer)


def test_a_gain_that_is_only_a_shorter_answer_is_gone_without_a_cap(run, toy_tokenizer):
    lines = [json.loads(line) for line in (run / JOURNAL).read_text().splitlines()[1:]]
    samples = [line for line in lines if "completion" in line]
    targets = {row.doc["id"]: row.doc["answer"] for row in read_prompts(run)}
    longest = {name: max(len(one["token_ids"]) for one in samples if name in one["task"]) for name in ("mless", "wo")}
    caps = [2, longest["mless"], longest["wo"] - 2, longest["wo"]]
    found = {(row["condition"], row["cap"]): row for row in records(grade_at_caps([str(run)], caps))}
    assert found["mless", caps[1]]["accuracy"] == 100 and found["wo", caps[1]]["accuracy"] == 0
    assert found["wo", caps[-1]]["accuracy"] == found["mless", caps[-1]]["accuracy"] == 100
    for (name, cap), row in found.items():
        right, boxed, stated = 0, 0, 0
        mine = [one for one in samples if one["task"].endswith(f"_{name}")]
        for one in mine:
            cut = toy_tokenizer.decode(one["token_ids"][:cap])
            target = targets[one["problem_id"]]
            right += grade(cut, target).correct
            has_box = f"\\boxed{{{target}}}" in cut
            boxed += has_box
            stated += not has_box and re.search(rf"be {re.escape(target)}(?!\w)", cut) is not None
        expected = [100 * count / len(mine) for count in (right, boxed, stated, len(mine) - boxed - stated)]
        assert [row[key] for key in ("accuracy", "boxed", "stated", "neither")] == pytest.approx(expected), (name, cap)
    assert found["wo", caps[2]]["stated"] > 0


def test_every_command_that_takes_caps_shows_them(run, capsys, monkeypatch, tmp_path):
    table = here(capsys, monkeypatch, "table", str(run), "--caps", "4, 30,400").stdout
    assert "Completions cut after so many tokens" in table and max(map(len, table.splitlines())) <= 80
    data = json.loads(here(capsys, monkeypatch, "table", str(run), "--caps", "400", "--format", "json").stdout)
    assert [row["accuracy"] for row in data["caps"]] == [row["accuracy"] for row in data["rows"]]
    here(capsys, monkeypatch, "plot", str(run), "--kind", "budgets", "--caps", "4,30,400", "-o", str(tmp_path))
    assert (tmp_path / "budgets.png").stat().st_size > 10_000
    here(capsys, monkeypatch, "report", str(run), "--caps", "4,30", "-o", str(tmp_path / "page.html"))
    assert "Completions cut after so many tokens" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["table", "RUN", "--caps", "4,none"], "--caps 4,none: expected numbers of tokens from 1, got 'none'"),
        (["table", str(GREEDY_RUN), "--caps", "4"], "the tokens of its completions are not known"),
        (["table", "wo=LOG", "--caps", "4"], "--caps needs a run folder"),
        (["plot", "RUN", "--kind", "budgets"], "--caps is not given"),
    ],
)
def test_what_cannot_be_cut_is_refused(run, asked, said, capsys, monkeypatch):
    log = next(GREEDY_RUN.glob("samples_*"))
    given = [one.replace("RUN", str(run)).replace("LOG", str(log)) for one in asked]
    refused(here(capsys, monkeypatch, *given), said)


@pytest.mark.parametrize(
    ("text", "gold", "found"),
    [
        ("it is 42.", "42", True),
        ("it is 142", "42", False),
        ("it is 42.5", "42", False),
        ("it is 3.42", "42", False),
        (r"so $\dfrac{1}{2}$", r"\frac12", False),
        (r"so $\dfrac{1} {2}$ it is", r"\frac{1}{2}", True),
        (r"\boxed{42}", "42", False),
        (r"\boxed{x = 42}", "42", False),
        (r"42, so \boxed{41}", "42", True),
        (r"\left( 1, 2 \right)", "(1,2)", True),
        ("anything", "", False),
    ],
)
def test_a_gold_answer_is_found_outside_of_boxes_and_as_a_whole(text, gold, found):
    assert (count_outside(text, gold) > 0) == found
