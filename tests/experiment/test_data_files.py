"""Data files as other people write them, and generated problems."""

import csv
import gzip
import json
import operator
import re
import resource

import pandas
import pytest
from datasets import Dataset, DatasetDict, Features, List, Value

from harness.errors import DataError
from harness.experiment.problems import DatasetConfig, MadeConfig, open_dataset
from harness.grading import GradeJob, GraderPool
from tests.experiment.test_checked_prompts import MLESS, WO, build
from tests.make import TOY_MODEL, with_cases, write_records

ROWS = [
    {"Problem": "1+1?", "Answer": "007", "ID": "a"},
    {"Problem": 'Say "two",\nagain', "Answer": "1.50", "ID": "b"},
    {"Problem": "Large?", "Answer": "12345678901234567890123", "ID": "c"},
]
TEXT = "\n".join(json.dumps(row) for row in ROWS)


def write_csv(path, delimiter=",", encoding="utf-8"):
    with open(path, "w", newline="", encoding=encoding) as stream:
        writer = csv.DictWriter(stream, ROWS[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)


def save_splits(path):
    splits = {"train": Dataset.from_list(ROWS[:1]), "test": Dataset.from_list(ROWS)}
    DatasetDict(splits).save_to_disk(path.with_name("splits"))


def write_arrow(path):
    Dataset.from_list(ROWS).save_to_disk(path.parent)
    (path.parent / "data-00000-of-00001.arrow").rename(path)


WRITERS = {
    "data.jsonl": lambda path: path.write_text(TEXT),
    "lines.json": lambda path: path.write_text(TEXT),
    "marked.jsonl": lambda path: path.write_text(TEXT, "utf-8-sig"),
    "array.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "data.jsonl.gz": lambda path: path.write_bytes(gzip.compress(TEXT.encode())),
    "data.csv": write_csv,
    "DATA.CSV": write_csv,
    "semicolons.csv": lambda path: write_csv(path, ";", "utf-8-sig"),
    "saved": lambda path: Dataset.from_list(ROWS).save_to_disk(path),
    "splits:test": save_splits,
    "data.arrow": write_arrow,
    "tabs.tsv": lambda path: write_csv(path, "\t"),
    "data.parquet": lambda path: pandas.DataFrame(ROWS).to_parquet(path),
}


def read(path, **names):
    return open_dataset(DatasetConfig(path=path, **names))


def write_lines(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    write_records(path, lines)
    return path


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_has_the_same_problems_as_they_are_spelt(name, tmp_path):
    WRITERS[name](tmp_path / name)
    dataset = read(tmp_path / name)
    facts = [(problem.problem, problem.answer, problem.id) for problem in dataset.problems]
    assert facts == [tuple(row.values()) for row in ROWS]
    assert dataset.name == re.split("[.:]", name)[0]
    if name.endswith(":test"):
        for other in ("splits", "splits:dev"):
            with pytest.raises(DataError, match=r"expected one that .* or FOLDER:SPLIT"):
                read(tmp_path / other)


def test_numbers_of_json_keep_their_spelling(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('[{"problem": "x", "answer": 1.50, "level": 3, "id": 12345678901234567890.0}]')
    (problem,) = read(path).problems
    facts = (problem.answer, problem.level, problem.id)
    assert facts == ("1.50", 3, "12345678901234567890.0")


@with_cases
def test_a_dataset_of_the_hub_is_read_by_its_split(monkeypatch, path, name, names, options):
    calls = []

    def load_dataset(*names, **options):
        calls.append((names, options))
        return Dataset.from_list([{"question": "1+1?", "answer": "It is\n#### 2"}])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    dataset = read(path)
    assert dataset.name == name and dataset.problems[0].answer == "2"
    assert calls == [(tuple(names), options)]


@with_cases
def test_numbers_of_single_precision_are_read_as_they_are_spelt(tmp_path, rows, golds):
    features = Features({"problem": Value("string"), "answer": List(Value("float32"))})
    Dataset.from_list(rows, features=features).save_to_disk(tmp_path)
    problems = read(tmp_path).problems
    assert [[problem.answer, *problem.alternatives] for problem in problems] == golds


@with_cases
def test_accepted_answers_and_golds_with_decimal_commas_have_either_sign(tmp_path, golds):
    rows = [{"problem": str(answers), "answer": gold} for gold, answers in golds]
    problems = read(write_lines(tmp_path, *rows), decimal=",").problems
    recorded = problems[0].record()
    assert recorded["decimal"] == "," and "alternatives" not in recorded
    with GraderPool(worker_count=1) as pool:
        for problem, (_, answers) in zip(problems, golds, strict=True):
            fields = {"target": problem.answer, "alternatives": problem.alternatives}
            for answer in [*answers, "5,2", "25", "1,5"]:
                job = GradeJob(completion=answer, is_line=True, decimal_sign=",", **fields)
                pool.submit((problem.problem, answer), job)
        grades = dict(pool.drain())
    right = {(str(answers), answer) for _, answers in golds for answer in answers}
    assert {pair for pair, grade in grades.items() if grade.correct} == right


def test_a_parquet_file_without_a_column_is_refused_with_the_columns_that_it_has(tmp_path):
    path = tmp_path / "data.parquet"
    answers = pandas.Series([0.1], dtype="float32")
    pandas.DataFrame({"q": ["1+1?"], "answer": answers}).to_parquet(path)
    message = "row 0 has no column 'problem', but q, answer."
    with pytest.raises(DataError, match=message):
        read(path)
    (problem,) = read(path, problem="Q").problems
    assert (problem.problem, problem.answer) == ("1+1?", "0.1")


def test_line_breaks_and_tabs_before_words_are_text(tmp_path):
    path = tmp_path / "data.jsonl"
    text = "Find x.\n\tThen\nequal it.\tTo be\r\nnext, \tangle\u2028and \x85 more\tan apple\u2029in"
    line = json.dumps({"problem": text, "answer": "1"}, ensure_ascii=False)
    path.write_text(f"{line}\n{line}\n")
    assert [problem.problem for problem in read(path).problems] == [text] * 2


def test_columns_are_mapped_on_the_command_line(tmp_path, succeed):
    path = tmp_path / "data.csv"
    path.write_text("Frage,Loesung\n1+1?,2\n")
    arguments = ("run", "--model", TOY_MODEL, "--dataset", path, "--dry-run")
    assert "1 problems" in succeed(
        *arguments, "--set=dataset.problem=Frage", "--set=dataset.answer=loesung"
    )


def test_a_control_token_in_a_problem_or_an_example_is_reported_once(tmp_path, toy_tokenizer):
    token = toy_tokenizer.eos_token
    lines = [{"problem": text, "answer": 1} for text in ("1?", f"What is {token} for?", "2?")]
    path = write_lines(tmp_path, *lines, {"problem": "3?", "answer": f"3{token}"})
    *problems, example = read(path).problems
    first, second = build(toy_tokenizer, WO, MLESS, problems=problems, examples=(example,))
    text = "its text or answer has the control token"
    assert first.notes == tuple(f"problem {number}: {text} {token!r}." for number in (1, 3))
    assert second.notes == ()


@pytest.mark.slow
def test_a_long_csv_file_takes_little_memory(tmp_path):
    path = tmp_path / "data.csv"
    with path.open("w") as stream:
        stream.write("id,Problem,Answer\n")
        for number in range(200_000):
            stream.write(f'{number},"What is {number} plus\n{number}?",{2 * number}\n')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problems = read(path).problems
    assert len(problems) == 200_000 and problems[-1].answer == "399998"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


def test_unreadable_data_are_refused(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "x.csv").write_bytes("Lösung".encode("cp1252"))
    encoding = r"codec can't decode .*\. Save it as UTF-8\.$"
    for name, message in (("", "Data folder"), ("x.jsonl", encoding), ("x.csv", encoding)):
        with pytest.raises(DataError, match=message) as error:
            read(tmp_path / name)
        assert "Near it" not in str(error.value)
    monkeypatch.delenv("MATH500_PATH")
    with pytest.raises(DataError, match=r"Or set MATH500_PATH=FILE\.jsonl, with the keys problem"):
        open_dataset("math500")


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
    clusters = [problem.cluster_key for problem in problems.problems]
    assert clusters == ["It? 3 0", "It? 3 1"] * 2
    assert [
        {*problem.record()} & {"shown_text", "row", "cluster"} for problem in problems.problems
    ] == [set()] * 4


def generate(**keys):
    return open_dataset(MadeConfig.model_validate(keys))


def test_the_same_seed_generates_the_same_problems():
    products = generate(make="products")
    assert products.sha256 == "3bd6f59ddf38f2f8fe55aca68b05e83ecb8cefb83f8af2f8897adc93e220a5b8"
    assert generate(make="products", seed=2).problems != products.problems
    assert generate(make="sums", count=30).problems == generate(make="sums").problems[:30]


@with_cases
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
