"""A finished run that gets more problems, samples or conditions."""

import re

import pytest

from harness import load_config, load_run
from harness.errors import HarnessError
from harness.execution.run_execution import fill_open_settings
from harness.runs.run_files import JOURNAL, PROMPTS, RunFiles
from tests.conftest import needs_vllm
from tests.make import (
    CONFIG,
    one_line,
    right,
    table_data,
    table_page,
    with_cases,
    write_records,
    write_run,
)

pytestmark = needs_vllm  # whose version is part of each sample's key
SAMPLED = {"gen_kwargs": {"temperature": 1}}
FEWSHOT = {"num_fewshot": 2, "draws": 2, "seed": 3}


def wrong(request, target):
    return "so \\boxed{no}", "stop"


SUMS = [
    {"id": f"sum-{number}", "problem": f"What is {number} + 2?", "answer": str(number + 2)}
    for number in range(20)
]


@pytest.fixture
def write_data(tmp_path):
    """Writes a file of problems, and returns the settings of a run of all of them."""

    def write(rows):
        write_records(tmp_path / "mine.jsonl", rows)
        return {"dataset": {"path": str(tmp_path / "mine.jsonl")}, "limit": None}

    return write


def journal_lines(run):
    """The records of the journal without its header."""
    return (run / JOURNAL).read_text().splitlines()[1:]


def table_rows(run):
    """The rows of the run's table, by condition."""
    rows = table_data(run)["rows"]
    return {row["condition"]: row for row in rows}


def test_problems_appended_to_the_file_are_added_and_the_examples_stay(make_run, write_data):
    settings = {"fewshot": FEWSHOT, "repeats": 2}
    run = make_run(right, **write_data(SUMS[:16]), **settings)
    before, examples = journal_lines(run), RunFiles(run).receipt["examples"]
    prompts = (run / PROMPTS).read_text().splitlines()
    assert [len(draw) for draw in examples["draws"]] == [2, 2]
    make_run(wrong, **write_data(SUMS), **settings)
    assert journal_lines(run)[: len(before)] == before  # no sample is made again
    assert set(prompts) < set((run / PROMPTS).read_text().splitlines())
    assert RunFiles(run).receipt["examples"] == examples
    frame = load_run(run)
    assert set(frame.loc[~frame["correct"], "problem_id"]) == {row["id"] for row in SUMS[16:]}


def test_more_samples_are_added_to_each_draw_of_examples(make_run):
    settings = {**SAMPLED, "fewshot": FEWSHOT}
    run = make_run(right, repeats=2, **settings)
    before = journal_lines(run)
    make_run(wrong, repeats=6, **settings)
    assert journal_lines(run)[: len(before)] == before
    counts = load_run(run).groupby(["condition", "draw", "correct"]).size()
    assert set(counts.xs(True, level="correct")) == {6}
    assert set(counts.xs(False, level="correct")) == {12}


def test_an_added_condition_is_exploratory(make_run):
    run = make_run(right)
    make_run(wrong, conditions=["wo", "mless", "mful"])
    rows = table_rows(run)
    assert [rows[name]["role"] for name in ("mless", "mful")] == ["tested", "exploratory"]
    assert rows["mful"]["difference"] == -100
    assert rows["mful"]["p_adjusted"] is None
    assert RunFiles(run).identity.looks == 1  # its own contrasts have no further answers


def test_other_texts_are_added_and_their_families_stay(make_run):
    run = make_run(right, other_texts=2)
    before = journal_lines(run)
    make_run(wrong, other_texts=4)
    assert journal_lines(run)[: len(before)] == before
    rows = table_rows(run)
    texts = [row for row in rows.values() if row["role"] == "reference"]
    assert [row["difference"] for row in texts] == [0, 0, -100, -100]
    assert {(row["verdict"], row["p_adjusted"]) for row in texts} == {(None, None)}
    assert rows["mless"]["tests"] == 1
    assert RunFiles(run).identity.looks == 1
    for changed in ({"sentences": 4, "random_tokens": 2}, None, 3):
        with pytest.raises(HarnessError, match=r"other_texts|not asked any more"):
            make_run(right, other_texts=changed)


def test_each_look_at_a_growing_run_has_an_equal_share_of_alpha(make_run):
    def mixed(request, target):
        return wrong(request, target) if "mless" in request.task else right(request, target)

    for look, limit in enumerate((6, 8, 10), start=1):
        run = make_run(mixed, limit=limit)
        row = table_rows(run)["mless"]
        assert (row["looks"], row["problems"]) == (look, limit)
        assert row["p_adjusted"] == pytest.approx(min(1, look * row["p"]))
    assert "look 3. Problems or samples were added" in one_line(table_page(run))
    make_run(mixed, limit=10)
    assert table_rows(run)["mless"]["looks"] == 3  # nothing was added


@with_cases
def test_a_change_that_is_not_an_extension_is_refused_with_both_values(changes, message, make_run):
    settings = {**SAMPLED, "repeats": 2, "fewshot": FEWSHOT}
    run = make_run(right, **settings)
    before = RunFiles(run).journal.records
    with pytest.raises(HarnessError, match=re.escape(message)):
        make_run(right, **(settings | changes))
    assert RunFiles(run).journal.records == before


@with_cases
def test_a_changed_answer_in_the_file_is_refused_by_name_also_beside_a_higher_limit(
    limit, make_run, write_data
):
    run = make_run(right, **write_data(SUMS[:6]) | {"limit": 4})
    changed = [*SUMS[:3], SUMS[3] | {"answer": "6"}, *SUMS[4:6]]
    with pytest.raises(HarnessError, match=r'Changed: problem sum-3, doc.answer: "5" -> "6"'):
        make_run(right, **write_data(changed) | {"limit": limit})
    assert len(RunFiles(run).journal.records) == 8


def test_appended_copies_change_no_problem_and_are_not_further_evidence(make_run, write_data):
    rows, fewshot = SUMS[:9], {"num_fewshot": 2}
    run = make_run(right, **write_data(rows), fewshot=fewshot)
    before = (run / PROMPTS).read_text().splitlines()
    copies = [{**row, "id": f"copy of {row['id']}"} for row in rows]
    make_run(right, **write_data(rows + copies), fewshot=fewshot)
    # and no copy of an example is asked
    assert {*before} < {*(run / PROMPTS).read_text().splitlines()}
    data = table_data(run)
    assert [data[name] for name in ("clusters", "copies")] == [7, 7]
    title = one_line(table_page(run))
    assert "14 problems, 7 of them copies of others, in 7 clusters" in title
    for prompt in RunFiles(run).prompts:
        assert prompt.prompt.count("Q: ") == 3
        assert prompt.prompt.count(prompt.doc["problem"]) == 1  # not among its examples


def test_a_lost_example_is_named(make_run, write_data):
    run = make_run(right, **write_data(SUMS[:9]), fewshot={"num_fewshot": 2})
    (name, _), *_ = RunFiles(run).receipt["examples"]["draws"]
    rows = [row for row in SUMS[:9] if row["id"] != name]
    with pytest.raises(HarnessError, match=f"the problem {name}, from which this run takes"):
        make_run(right, **write_data(rows), fewshot={"num_fewshot": 2})


def test_nothing_is_compiled_on_a_cpu_and_a_continued_run_keeps_its_choice(tmp_path, make_run):
    run = make_run(right)  # its config names no choice
    config = tmp_path / "run.yaml"

    def find_choice(folder, **arguments):
        overrides = {f"model.model_args.{name}": value for name, value in arguments.items()}
        settings = fill_open_settings(load_config(config, overrides), folder)
        return settings.model_arguments().get("enforce_eager")

    assert find_choice(tmp_path / "new") is True
    assert find_choice(tmp_path / "new", enforce_eager=False) is False
    assert find_choice(run) is None
    model = CONFIG["model"]
    arguments = {**model["model_args"], "enforce_eager": True}
    eager = write_run(tmp_path / "eager", right, model={**model, "model_args": arguments})
    assert find_choice(eager) is True
