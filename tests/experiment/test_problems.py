"""Loading problems, and refusing broken files with file, line and field."""

from __future__ import annotations

import json

import pytest

from harness.errors import DataError
from harness.experiment.problems import Fields, load_demo, load_jsonl, load_math500

GOOD = {"problem": "1+1?", "answer": "2", "solution": "\\boxed{2}", "subject": "Algebra", "level": 1, "unique_id": "a"}


def write(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_good_file(tmp_path):
    dataset = load_jsonl(write(tmp_path, GOOD, {**GOOD, "unique_id": "b"}))
    assert [p.id for p in dataset.problems] == ["a", "b"]
    assert dataset.problems[0].level == 1 and dataset.name == "data"


def test_fields_can_be_named_and_lines_numbered(tmp_path):
    path = write(tmp_path, {"q": "1+1?", "a": 2}, {"q": "2+2?", "a": 4})
    problems = load_jsonl(path, Fields(problem="q", answer="a", id=None)).problems
    assert [(p.id, p.answer) for p in problems] == [("0", "2"), ("1", "4")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [GOOD, {"problem": "2+2?", "unique_id": "b"}],
            r"line 2, field 'answer': .* got only the fields problem, unique_id",
        ),
        ([{**GOOD, "problem": ["x"]}], r"line 1, field 'problem': expected text, got \['x'\]"),
        ([{**GOOD, "answer": " "}], r"line 1, field 'answer': .* got ' '"),
        ([GOOD, GOOD], r"line 2, field 'unique_id': the id 'a' was already used at .*line 1"),
        ([GOOD, '{"problem": "x", "ans', "", " "], r"line 2: expected a JSON object .*column 18"),
        (["{", ' "problem": "x"}'], r"line 1: expected a JSON object .*column 2"),
        (["problem,answer,unique_id", "1+1?,2,a"], r"line 1: expected a JSON .* got 'problem,answer,unique_id'"),
        (["[", json.dumps(GOOD), "]"], r"line 1: expected a JSON object on each line \(JSONL\), got '\['"),
        (["[1, 2]"], r"line 1: expected a JSON object, got list"),
        ([""], r"no problems in it"),
    ],
)
def test_broken_files_are_refused_by_file_line_and_field(tmp_path, lines, message):
    path = write(tmp_path, *lines)
    with pytest.raises(DataError, match=message) as caught:
        load_jsonl(path)
    assert str(path) in str(caught.value)
    assert ("download" in str(caught.value)) == ("download" in message)


def test_a_byte_order_mark_is_read_over(tmp_path):
    path = write(tmp_path, GOOD)
    plain = load_jsonl(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_jsonl(path) == plain


@pytest.mark.parametrize("field", ["unique_id", "problem", "answer", "solution", "subject"])
def test_half_a_surrogate_pair_is_refused_by_file_line_and_field(tmp_path, field):
    path = write(tmp_path, {**GOOD, "unique_id": "b"}, {**GOOD, field: "what \ud800?"})
    with pytest.raises(DataError, match=rf"line 2, field '{field}': surrogates not allowed: '\\ud800'") as caught:
        load_jsonl(path)
    assert str(path) in str(caught.value) and str(caught.value).isascii()
    whole = "\U0001d465"
    assert load_jsonl(write(tmp_path, {**GOOD, "problem": whole})).problems[0].problem == whole


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no\.jsonl: No such file"):
        load_jsonl(tmp_path / "no.jsonl")
    with pytest.raises(DataError, match=rf"Data file {tmp_path}: Is a directory"):
        load_jsonl(tmp_path)


def test_binary_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"x\.jsonl: not UTF-8 text"):
        load_jsonl(tmp_path / "x.jsonl")


def test_the_variable_chooses_the_source(tmp_path, monkeypatch):
    monkeypatch.setenv("MATH500_PATH", "demo")
    assert load_math500() == load_demo()
    monkeypatch.setenv("MATH500_PATH", str(write(tmp_path, GOOD)))
    assert len(load_math500().problems) == 1


def test_without_the_hub_the_message_says_what_to_do(monkeypatch):
    monkeypatch.delenv("MATH500_PATH")
    with pytest.raises(DataError, match=r"MATH500_PATH=demo for the bundled problems"):
        load_math500()


def test_the_hash_changes_with_the_content(tmp_path):
    first = load_jsonl(write(tmp_path, GOOD)).sha256
    assert load_jsonl(write(tmp_path, {**GOOD, "answer": "3"})).sha256 != first
