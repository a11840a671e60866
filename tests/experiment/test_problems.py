"""Problems that are made: the same from the same seed, right answers, clusters, difficulty."""

import json

import pytest

from harness.experiment.problems import DatasetConfig, MadeConfig, load_jsonl, open_dataset

GOOD = {
    "problem": "1+1?",
    "answer": "2",
    "solution": "\\boxed{2}",
    "subject": "Algebra",
    "level": 1,
    "unique_id": "a",
}


def write_lines(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
    )
    return path


def test_a_good_file_and_one_with_a_byte_order_mark(tmp_path):
    path = write_lines(
        tmp_path, GOOD, {**GOOD, "unique_id": "b", "problem": "\U0001d465", "solution": None}
    )
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
    assert [(p.id, p.problem, p.answer) for p in problems] == [
        ("0", "1+1?", "2"),
        ("b", "2+2?", "4"),
    ]
    both = load_jsonl(write_lines(tmp_path, {**GOOD, "question": "no", "id": "no"}))
    assert both == load_jsonl(write_lines(tmp_path, GOOD)), "the usual names come first"


def test_clusters_are_read_and_a_problem_without_one_is_its_own(tmp_path):
    lines = [
        {**GOOD, "unique_id": name, "cluster": of} for name, of in (("a", 0), ("b", 0), ("c", None))
    ]
    assert [p.cluster for p in load_jsonl(write_lines(tmp_path, *lines)).problems] == [
        "0",
        "0",
        "problem c",
    ]


def test_the_variable_chooses_the_source(tmp_path, monkeypatch):
    monkeypatch.setenv("MATH500_PATH", str(write_lines(tmp_path, GOOD)))
    assert len(open_dataset("math500").problems) == 1


def test_the_hash_changes_with_the_content(tmp_path):
    first = load_jsonl(write_lines(tmp_path, GOOD)).sha256
    assert load_jsonl(write_lines(tmp_path, {**GOOD, "answer": "3"})).sha256 != first


VALUES = {
    "plus": lambda a, b: a + b,
    "minus": lambda a, b: a - b,
    "times": lambda a, b: a * b,
    "divided by": lambda a, b: a / b,
}


def made(**keys):
    return open_dataset(MadeConfig.model_validate(keys))


def test_the_same_seed_makes_the_same_problems():
    assert (
        made(make="products").sha256
        == "3bd6f59ddf38f2f8fe55aca68b05e83ecb8cefb83f8af2f8897adc93e220a5b8"
    )
    assert (
        made(make="chain", depth=2, count=50, seed=7).sha256
        == "ae9bb65b79ae5e8a121e7be90e92aeacf5f0aeef38667ea236db0fa7c6b5236a"
    )
    assert made(make="products", seed=2).problems != made(make="products").problems
    assert made(make="sums", count=30).problems == made(make="sums").problems[:30]


@pytest.mark.parametrize("kind", ["products", "sums", "differences", "quotients"])
def test_answers_are_right_and_the_other_order_is_in_the_same_cluster(kind):
    problems = made(make=kind).problems
    clusters = {}
    for one in problems:
        first, *words, second = one.problem.removeprefix("What is ").removesuffix("?").split()
        assert VALUES[" ".join(words)](int(first), int(second)) == int(one.answer) > 0
        clusters.setdefault(one.cluster, []).append(one.id)
    assert len({one.id for one in problems}) == len({one.problem for one in problems}) == 121
    assert sorted(map(len, clusters.values())) == [1] * 11 + [2] * 55
    assert all(name in members for name, members in clusters.items())


def test_products_have_readable_ids_and_their_digits_as_level():
    by_id = {one.id: one for one in made(make="products").problems}
    assert (by_id["8x7"].problem, by_id["8x7"].answer, by_id["8x7"].cluster) == (
        "What is 8 times 7?",
        "56",
        "7x8",
    )
    assert [by_id[name].level for name in ("7x8", "12x7", "12x12")] == [2, 3, 4]


def test_a_chain_multiplies_before_it_adds():
    problems = made(make="chain", depth=4, operands=[1, 99]).problems
    assert len(problems) == 200 and {one.level for one in problems} == {4}
    assert all(eval(one.problem[len("What is ") : -1]) == int(one.answer) for one in problems)
