"""Problems of files, and generated problems with their answers, clusters and levels."""

import json
import operator
import re

import pytest

from harness.errors import DataError
from harness.experiment.problems import DatasetConfig, MadeConfig, open_dataset
from tests.make import with_cases, write_records


def write_lines(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    write_records(path, lines)
    return path


def test_a_byte_order_mark_is_not_text(tmp_path):
    path = write_lines(tmp_path, {"problem": "\U0001d465?", "answer": "2"})
    dataset = open_dataset(DatasetConfig(path=path))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert open_dataset(DatasetConfig(path=path)) == dataset


@with_cases
def test_fields_of_a_file_are_read(lines, names, attributes, values, tmp_path):
    problems = open_dataset(DatasetConfig(path=write_lines(tmp_path, *lines), **names)).problems
    for problem, expected in zip(problems, values, strict=True):
        facts = [getattr(problem, name) for name in attributes]
        # a list and a tuple are alike
        assert json.dumps(facts) == json.dumps(expected)


@with_cases
def test_copies_with_other_facts_are_refused_with_both_lines(second, text, tmp_path):
    lines = [{"problem": "1+1?", "answer": 2}, {"problem": "1+ 2?", "answer": 3}]
    path = write_lines(tmp_path, *lines, {"problem": " 1+1?\n", **second})
    origin = f"{path}, line 1, with another gold answer or cluster: {text}."
    with pytest.raises(DataError, match=re.escape(f"line 3: the question is that of {origin}")):
        open_dataset(DatasetConfig(path=path))


def test_what_the_baseline_shows_of_a_row_tells_questions_apart_and_changes_no_hash(tmp_path):
    rows = [{"problem": "It?", "answer": bit, "b": bit, "a": 3} for bit in (0, 1, 0, 1)]
    dataset = DatasetConfig(path=write_lines(tmp_path, *rows))
    with pytest.raises(DataError, match="line 2: the question is that of"):
        open_dataset(dataset, "ab")
    problems = open_dataset(dataset, "ab", "ba")
    clusters = [problem.counts_with for problem in problems.problems]
    assert clusters == ["It? 3 0", "It? 3 1"] * 2
    assert [{*problem.record()} & {"shown", "row", "cluster"} for problem in problems.problems] == [
        set()
    ] * 4


def generate(**keys):
    return open_dataset(MadeConfig.model_validate(keys))


def test_the_same_seed_generates_the_same_problems():
    products = generate(make="products")
    assert products.sha256 == "3bd6f59ddf38f2f8fe55aca68b05e83ecb8cefb83f8af2f8897adc93e220a5b8"
    assert generate(make="products", seed=2).problems != products.problems
    assert generate(make="sums", count=30).problems == generate(make="sums").problems[:30]


@pytest.mark.parametrize("kind", ["products", "sums"])
def test_answers_are_correct_and_both_orders_are_in_one_cluster(kind):
    problems = generate(make=kind).problems
    clusters = {}
    for problem in problems:
        question = problem.problem.removeprefix("What is ").removesuffix("?")
        first, word, second = question.split()
        operation = {"plus": operator.add, "times": operator.mul}[word]
        assert operation(int(first), int(second)) == int(problem.answer) > 0
        clusters.setdefault(problem.cluster, []).append(problem.id)
    for key in ("id", "problem"):
        assert len({getattr(problem, key) for problem in problems}) == 121
    assert sorted(map(len, clusters.values())) == [1] * 11 + [2] * 55
    assert all(name in members for name, members in clusters.items())


def test_products_have_readable_ids_and_their_digits_as_level():
    by_id = {problem.id: problem for problem in generate(make="products").problems}
    problem = by_id["8x7"]
    facts = (problem.problem, problem.answer, problem.cluster)
    assert facts == ("What is 8 times 7?", "56", "7x8")
    assert [by_id[name].level for name in ("7x8", "12x7", "12x12")] == [2, 3, 4]
