import json

from harness.experiment.problems import DatasetConfig, load_jsonl, open_dataset

GOOD = {"problem": "1+1?", "answer": "2", "solution": "\\boxed{2}", "subject": "Algebra", "level": 1, "unique_id": "a"}


def write_lines(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_good_file_and_one_with_a_byte_order_mark(tmp_path):
    path = write_lines(tmp_path, GOOD, {**GOOD, "unique_id": "b", "problem": "\U0001d465", "solution": None})
    dataset = load_jsonl(path)
    assert [p.id for p in dataset.problems] == ["a", "b"] and dataset.problems[1].solution == ""
    assert dataset.problems[0].level == 1 and dataset.name == "data"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_jsonl(path) == dataset


def test_fields_can_be_named_and_lines_numbered(tmp_path):
    path = write_lines(tmp_path, {"q": "1+1?", "a": 2}, {"q": "2+2?", "a": 0.5, "level": "hard"})
    problems = open_dataset(DatasetConfig(path=path, problem="q", answer="a", id=None)).problems
    assert [(p.id, p.answer, p.level) for p in problems] == [("0", "2", 0), ("1", "0.5", 0)]


def test_a_file_of_questions_without_ids_is_read_as_such(tmp_path):
    lines = [{"question": "1+1?", "answer": 2}, {"question": "2+2?", "answer": 4, "id": "b"}]
    problems = load_jsonl(write_lines(tmp_path, *lines)).problems
    assert [(p.id, p.problem, p.answer) for p in problems] == [("0", "1+1?", "2"), ("b", "2+2?", "4")]
    both = load_jsonl(write_lines(tmp_path, {**GOOD, "question": "no", "id": "no"}))
    assert both == load_jsonl(write_lines(tmp_path, GOOD)), "the usual names come first"


def test_clusters_are_read_and_a_problem_without_one_is_its_own(tmp_path):
    lines = [{**GOOD, "unique_id": name, "cluster": of} for name, of in (("a", 0), ("b", 0), ("c", None))]
    assert [p.cluster for p in load_jsonl(write_lines(tmp_path, *lines)).problems] == ["0", "0", "problem c"]


def test_the_variable_chooses_the_source(tmp_path, monkeypatch):
    monkeypatch.setenv("MATH500_PATH", str(write_lines(tmp_path, GOOD)))
    assert len(open_dataset("math500").problems) == 1


def test_the_hash_changes_with_the_content(tmp_path):
    first = load_jsonl(write_lines(tmp_path, GOOD)).sha256
    assert load_jsonl(write_lines(tmp_path, {**GOOD, "answer": "3"})).sha256 != first
