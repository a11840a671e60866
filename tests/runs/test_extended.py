"""A finished run that gets more problems, samples or conditions."""

import json
import re

import pytest

from harness import load_config, load_run
from harness.errors import HarnessError
from harness.execution.run_execution import choose_eager, fill_open_settings
from harness.experiment.plan import make_plan
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


def write_problems(path, count, **changes):
    """A file of sums, of which `changes` replaces answers by id."""
    lines = []
    for number in range(count):
        name = f"sum-{number}"
        answer = changes.get(f"sum_{number}", str(number + 2))
        lines.append({"id": name, "problem": f"What is {number} + 2?", "answer": answer})
    write_records(path, lines)
    return {"path": str(path)}


def journal_lines(run):
    """The records of the journal without its header."""
    return (run / JOURNAL).read_text().splitlines()[1:]


def table_rows(run):
    """The rows of the run's table, by condition."""
    rows = table_data(run)["rows"]
    return {row["condition"]: row for row in rows}


def test_problems_appended_to_the_file_are_added_and_the_examples_stay(tmp_path):
    path, run = tmp_path / "mine.jsonl", tmp_path / "run"
    settings = {"fewshot": FEWSHOT, "repeats": 2, "limit": None}
    write_run(run, right, dataset=write_problems(path, 16), **settings)
    before, examples = journal_lines(run), RunFiles(run).receipt["examples"]
    prompts = (run / PROMPTS).read_text().splitlines()
    assert [len(draw) for draw in examples["draws"]] == [2, 2]
    write_run(run, wrong, dataset=write_problems(path, 20), **settings)
    assert journal_lines(run)[: len(before)] == before, "no sample is made again"
    assert set(prompts) < set((run / PROMPTS).read_text().splitlines())
    assert RunFiles(run).receipt["examples"] == examples
    frame = load_run(run)
    assert set(frame.loc[~frame["correct"], "problem_id"]) == {
        f"sum-{number}" for number in range(16, 20)
    }


def test_more_samples_are_added_to_each_draw_of_examples(tmp_path):
    run, settings = tmp_path / "run", {**SAMPLED, "fewshot": FEWSHOT}
    write_run(run, right, repeats=2, **settings)
    before = journal_lines(run)
    write_run(run, wrong, repeats=6, **settings)
    assert journal_lines(run)[: len(before)] == before
    counts = load_run(run).groupby(["condition", "draw", "correct"]).size()
    assert set(counts.xs(True, level="correct")) == {6}
    assert set(counts.xs(False, level="correct")) == {12}


def test_an_added_condition_is_exploratory(tmp_path):
    run = write_run(tmp_path / "run", right)
    write_run(run, wrong, conditions=["wo", "mless", "mful"])
    rows = table_rows(run)
    assert [rows[name]["role"] for name in ("mless", "mful")] == ["tested", "exploratory"]
    assert rows["mful"]["difference"] == -100
    assert rows["mful"]["p_adjusted"] is None
    assert RunFiles(run).identity.looks == 1, "its own contrasts have no further answers"


def test_other_texts_are_added_and_their_families_stay(tmp_path):
    run = write_run(tmp_path / "run", right, other_texts=2)
    before = journal_lines(run)
    write_run(run, wrong, other_texts=4)
    assert journal_lines(run)[: len(before)] == before
    rows = table_rows(run)
    texts = [row for row in rows.values() if row["role"] == "reference"]
    assert [row["difference"] for row in texts] == [0, 0, -100, -100]
    assert {(row["verdict"], row["p_adjusted"]) for row in texts} == {(None, None)}
    assert rows["mless"]["tests"] == 1
    assert RunFiles(run).identity.looks == 1
    for changed in ({"sentences": 4, "random_tokens": 2}, None, 3):
        with pytest.raises(HarnessError, match=r"other_texts|not asked any more"):
            write_run(run, right, other_texts=changed)


def test_each_look_at_a_growing_run_has_an_equal_share_of_alpha(tmp_path):
    run = tmp_path / "run"

    def mixed(request, target):
        return wrong(request, target) if "mless" in request.task else right(request, target)

    for look, limit in enumerate((6, 8, 10), start=1):
        write_run(run, mixed, limit=limit)
        row = table_rows(run)["mless"]
        assert (row["looks"], row["problems"]) == (look, limit)
        assert row["p_adjusted"] == pytest.approx(min(1, look * row["p"]))
    assert "look 3. Problems or samples were added" in one_line(table_page(run))
    write_run(run, mixed, limit=10)
    assert table_rows(run)["mless"]["looks"] == 3, "nothing was added"


def test_planned_problems_cost_no_look_and_have_no_verdict_before(tmp_path):
    run = write_run(tmp_path / "run", right, planned=8)
    row = table_rows(run)["mless"]
    assert (row["role"], row["verdict"]) == ("exploratory", None)
    assert "interim, 6 of 8 planned problems" in one_line(table_page(run))
    write_run(run, right, planned=8, limit=8)
    assert (table_rows(run)["mless"]["role"], table_rows(run)["mless"]["looks"]) == ("tested", 1)
    write_run(run, right, planned=8, limit=9)
    assert table_rows(run)["mless"]["looks"] == 2


@with_cases
def test_a_change_that_is_no_extension_is_refused_with_both_values(changes, message, tmp_path):
    settings = {**SAMPLED, "repeats": 2, "fewshot": FEWSHOT}
    run = write_run(tmp_path / "run", right, **settings)
    before = RunFiles(run).journal.records
    with pytest.raises(HarnessError, match=re.escape(message)):
        write_run(run, right, **(settings | changes))
    assert RunFiles(run).journal.records == before


@pytest.mark.parametrize("limit", [4, 5])
def test_a_changed_answer_in_the_file_is_refused_by_name_also_beside_a_higher_limit(
    limit, tmp_path
):
    path = tmp_path / "mine.jsonl"
    run = write_run(tmp_path / "run", right, limit=4, dataset=write_problems(path, 6))
    with pytest.raises(HarnessError, match=r'Changed: problem sum-3, doc.answer: "5" -> "6"'):
        write_run(run, right, limit=limit, dataset=write_problems(path, 6, sum_3="6"))
    assert len(RunFiles(run).journal.records) == 8


def test_appended_copies_change_no_problem_and_are_no_further_evidence(tmp_path):
    path, run = tmp_path / "mine.jsonl", tmp_path / "run"
    settings = {"fewshot": {"num_fewshot": 2}, "limit": None}
    write_run(run, right, dataset=write_problems(path, 9), **settings)
    prompts = (run / PROMPTS).read_text().splitlines()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_records(path, rows + [{**row, "id": f"copy of {row['id']}"} for row in rows])
    write_run(run, right, dataset={"path": str(path)}, **settings)
    lines = (run / PROMPTS).read_text().splitlines()
    assert {*prompts} < {*lines}, "and no copy of an example is asked"
    data = table_data(run)
    assert [data[name] for name in ("clusters", "copies")] == [7, 7]
    title = one_line(table_page(run))
    assert "14 problems, 7 of them copies of others, in 7 clusters" in title
    examples = json.loads(lines[0])["prompt"].count("Q: ")
    assert examples == 3 and all(json.loads(line)["prompt"].count("Q: ") == 3 for line in lines)
    for line in lines:
        prompt = json.loads(line)
        assert prompt["prompt"].count(prompt["doc"]["problem"]) == 1, "not among its examples"


def test_a_lost_example_is_named(tmp_path):
    path, run = tmp_path / "mine.jsonl", tmp_path / "run"
    settings = {"fewshot": {"num_fewshot": 2}, "limit": None}
    write_run(run, right, dataset=write_problems(path, 9), **settings)
    (name, _), *_ = RunFiles(run).receipt["examples"]["draws"]
    lines = [line for line in path.read_text().splitlines(True) if f'"{name}"' not in line]
    path.write_text("".join(lines))
    with pytest.raises(HarnessError, match=f"the problem {name}, from which this run takes"):
        write_run(run, right, dataset={"path": str(path)}, **settings)


def test_few_tokens_are_not_compiled_on_a_cpu_and_a_continued_run_keeps_its_choice(tmp_path):
    run = write_run(tmp_path / "run", right)  # its config names no choice
    config = tmp_path / "run.yaml"

    def find_choice(limit, folder, **arguments):
        overrides = {f"model.model_args.{name}": value for name, value in arguments.items()}
        settings = load_config(config, {"max_gen_toks": 1024, **overrides})
        settings = fill_open_settings(settings, folder)
        plan = choose_eager(make_plan(settings, limit=limit), folder)
        return plan.model_arguments.get("enforce_eager")

    assert find_choice(2, tmp_path / "new") is True
    assert find_choice(300, tmp_path / "new") is None
    assert find_choice(2, tmp_path / "new", enforce_eager=False) is False
    assert find_choice(2, run) is None
    model = CONFIG["model"]
    arguments = {**model["model_args"], "enforce_eager": True}
    eager = write_run(tmp_path / "eager", right, model={**model, "model_args": arguments})
    assert find_choice(300, eager) is True
