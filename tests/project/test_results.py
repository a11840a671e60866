"""The committed runs: their configs, verdicts and tables, and the numbers of pages about them."""

import json
import os
import re
import shutil
import sys

import numpy as np
import pandas
import pytest

from attention_probe.prompts.prompts_config import PromptsConfig
from benchmarks.controls import CONTROLS, describe_run, make_changed_run
from benchmarks.seed_claims import load, page
from harness import Run, grade, load_config, load_run
from harness.execution.sample_grading import grade_job
from harness.experiment.fewshot_examples import FewshotConfig
from harness.experiment.plan import make_plan, sample_key
from harness.experiment.problems import fold_text, open_dataset
from harness.experiment.prompts.prompt import hash_prompts, hash_text
from harness.grading import GraderPool
from harness.runs.records import stored_prompts
from harness.runs.run_files import RunFiles, current_score_versions
from harness.runs.stored_files import open_stored
from harness.runs.versions_and_hashes import model_fingerprint
from tests.conftest import needs_vllm, run_program, succeeded
from tests.make import (
    CONDITIONS,
    EXAMPLE,
    GREEDY_RUN,
    ROOT,
    TOY,
    TOY_CONFIG,
    TOY_MODEL,
    list_requests,
    module_fixture,
    table_data,
    with_cases,
)


@module_fixture
def samples():
    """All samples of the example, also of its repeat run and reference conditions."""
    return load_run(EXAMPLE, replicates=True, reference_conditions=True)


@module_fixture
def plan():
    """The plan of five problems of the example's config."""
    return make_plan(load_config(ROOT / "configs/runs/example.yaml"), limit=5)


def test_the_example_is_the_run_of_its_config(samples, plan):
    config, files = plan.config, RunFiles(EXAMPLE)
    recorded = files.receipt["config"]
    assert recorded.pop("planned") is None  # a former key, whose value was the default
    assert recorded == config.values_with_defaults() | {"model": recorded["model"]}
    assert len(samples) == 19_440
    assert files.identity.model == model_fingerprint(config.model_arguments()["pretrained"])
    rows = files.prompts
    assert rows[: len(plan.rows)] == stored_prompts(plan)
    assert files.identity.prompts_sha256 == hash_prompts(rows)
    frame = Run.load(EXAMPLE).samples
    clusters = frame.drop_duplicates("problem_id").set_index("problem_id")["cluster"]
    stored_clusters = {row.doc["id"]: row.doc["cluster"] for row in rows}
    assert clusters.astype(str).to_dict() == stored_clusters and clusters.nunique() == 43


def test_the_samples_of_the_example_are_those_that_its_config_requests(plan):
    """The config in the journal has former keys, so the keys of samples are compared."""
    config, files = plan.config, RunFiles(EXAMPLE)
    assert files.identity.config["model"] == config.identity()["model"]
    setting = files.identity.hash_setting()
    requests = list_requests(plan)
    requested_tasks = {sample_key(request, setting): request.task for request in requests}
    problem_ids = {request.problem_id for request in requests}
    recorded_tasks = {
        sample.key: sample.task
        for sample in files.journal.records
        if sample.problem_id in problem_ids
    }
    assert requested_tasks == recorded_tasks and len(requests) == 1215


@with_cases
def test_data_of_configs_have_no_copies_and_their_draws_stay(expected):
    hashes = {}
    for path in sorted((ROOT / "configs/runs").glob("*.yaml")):
        config = load_config(path)
        # the toy's problems stand for MATH-500 in tests
        dataset = open_dataset(config.dataset)
        assert len({fold_text(row.problem) for row in dataset.problems}) == len(dataset.problems)
        if isinstance(config.fewshot, FewshotConfig):
            *_, ids = config.fewshot.split(
                dataset.problems, draws_per_problem=config.draws_per_problem
            )
            hashes[path.stem] = hash_text(repr((ids.pool, ids.example_sets)))[:8]
    assert hashes == expected


def test_the_verdicts_of_the_example_are_those_of_the_grader_of_today():
    files = RunFiles(EXAMPLE)
    prompts = {(row.task, row.doc["id"]): row for row in files.prompts}
    assert files.score_versions == current_score_versions()
    with GraderPool() as pool:
        for sample in files.journal.records:
            prompt = prompts[sample.task, sample.problem_id]
            pool.submit(sample.key, grade_job(prompt, sample))
        verdicts = {key: grade.verdict for key, grade in pool.drain()}
    assert verdicts == {key: score.verdict for key, score in files.scores.items()}


def test_the_table_of_the_example_is_what_the_command_prints():
    table = table_data(EXAMPLE)
    stored = json.loads((EXAMPLE / "table.json").read_text())
    rows, expected = (pandas.DataFrame(page["rows"]) for page in (table, stored))
    # another machine may round the last digits differently
    pandas.testing.assert_frame_equal(rows, expected, rtol=1e-9, atol=1e-12)
    assert {row["condition"] == "no-examples" for row in stored["rows"]} == {True, False}


def test_replicates_and_reference_conditions_are_loaded_only_on_request(samples):
    loaded = load_run(EXAMPLE)
    is_reference = samples["condition"].isin(Run.load(EXAMPLE).reference_conditions)
    expected = samples[(samples["replicate"] == 0) & ~is_reference]
    assert 0 < len(loaded) < len(samples) and list(loaded.index) == list(range(len(loaded)))
    assert list(loaded["condition"].cat.categories) == list(expected["condition"].unique())
    columns = "condition problem_id sample_index replicate completion".split()
    assert (loaded[columns].astype(str).values == expected[columns].astype(str).values).all()


@pytest.mark.slow
@needs_vllm
def test_make_demo_draws_from_its_run_and_leaves_another_run_alone(tmp_path):
    changed_run, run = tmp_path / "results" / "demo", tmp_path / "results" / "demo-2"
    for folder in (changed_run, run):
        shutil.copytree(GREEDY_RUN, folder)
    journal = (changed_run / "journal.jsonl").read_text()
    journal = journal.replace('"max_gen_toks":2048', '"max_gen_toks":9', 1)
    (changed_run / "journal.jsonl").write_text(journal)
    before = {path.name for path in changed_run.iterdir()}
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for kind, config in (("runs", TOY_CONFIG), ("figures", TOY / "fillers-demo.yaml")):
        (tmp_path / "configs" / kind).mkdir(parents=True)
        shutil.copy(config, tmp_path / "configs" / kind)
    command = ["make", "-f", ROOT / "Makefile", "-o", ".venv/installed", "demo", "DEMO=demo"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environment}
    process = succeeded(run_program(*command, "OUTPUT=results/demo-2", **options))
    assert "results/demo-2 is finished, nothing was left to do" in process.stderr
    assert {"fillers-demo.png", "report.html"} <= {path.name for path in run.iterdir()}
    assert {path.name for path in changed_run.iterdir()} - before <= {".lock"}


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_a_planted_change_is_called_by_its_name(control, tmp_path):
    assert make_changed_run(control, tmp_path / "run") >= 20
    expected = (control.verdict, control.sources, control.states, control.graders)
    assert describe_run(tmp_path / "run") == expected


def test_the_first_table_of_the_page_on_seeds_has_the_rows_that_are_printed(tmp_path):
    prompts = PromptsConfig.model_validate({"dataset": "math500", "layout": "as_published", "n": 4})
    table, *_ = page(load(tmp_path, TOY_MODEL, prompts))
    seeds = (ROOT / "docs/seeds.md").read_text()
    page_table = re.search(r"^\| Mless against .*?\n\n", seeds, re.MULTILINE | re.DOTALL)[0]
    rows, page_rows = (
        [line.split(" | ")[:2] for line in text.strip().splitlines()]
        for text in (table, page_table)
    )
    assert rows == page_rows and len(rows) == 11


def read_scores(layout):
    """Gold first, log share and log-probability of each gold answer: [value, condition, problem].

    They are counted from the journal alone.
    """
    values = {}
    with open_stored(ROOT / "results/math500-smollm2-logprob/journal.jsonl") as file:
        for line in file:
            sample = json.loads(line)
            if "answer_score" in sample:
                score = sample["answer_score"]
                total = sum(logprob for logprob, _ in score["tokens"])
                share = total - np.logaddexp.reduce([total, *score["others"]])
                key = sample["task"], sample["problem_id"]
                values[key] = 100 * (total > max(score["others"])), share, total
    suffix = "_chat" if layout == "chat" else ""
    tasks = [f"math500_{condition}{suffix}" for condition in CONDITIONS]
    problems = sorted({problem for _, problem in values})
    assert len(problems) == 200
    table = [[values[task, problem] for problem in problems] for task in tasks]
    return np.moveaxis(np.array(table), 2, 0)


@with_cases
def test_the_pages_have_the_scores_of_the_journal(layout):
    values = read_scores(layout)
    page = (ROOT / "results/README.md").read_text()
    reproduced = (ROOT / "docs/reproduce.md").read_text()
    rows = {}
    for title, text in (
        (rf"{layout}, gold first", page),
        (rf"{layout}, log share", page),
        (rf"{layout}, log-probability", page),
        (rf"its gold answers that come first, {layout}", reproduced),
    ):
        (cells,) = re.findall(rf"^\| {title} \|(.+)\|$", text, re.MULTILINE)
        rows[title] = [re.findall(r"[+-]?\d+\.\d+", cell) for cell in cells.split("|")]
    *pages, (_, percentages) = rows.items()
    means = values.mean(axis=2)
    assert [float(cell[0]) for cell in percentages] == pytest.approx(means[0], abs=0.05)
    for (_, cells), condition_means, digits in zip(pages, means, (1, 2, 2), strict=True):
        expected = [condition_means[0], *(condition_means[1:] - condition_means[0])]
        numbers = [float(cell[0]) for cell in cells]
        assert numbers == pytest.approx(expected, abs=0.5001 * 10**-digits)
    # the interval inverts a sign-flip test, which is close to Student's here
    changes = values[1, 1:] - values[1, 0]
    errors = changes.std(axis=1, ddof=1) / np.sqrt(200)
    for cell, change, error in zip(pages[1][1][1:], changes.mean(axis=1), errors, strict=True):
        expected = [change - 1.972 * error, change + 1.972 * error]
        assert [float(number) for number in cell[1:]] == pytest.approx(expected, abs=0.03)


def test_two_completions_of_the_committed_run_have_an_answer_and_none_is_right():
    rows = json.loads((ROOT / "results/math500-smollm2/table.json").read_text())["rows"]
    assert len(rows) == 10 and all(row["accuracy"] == 0 for row in rows)
    with open_stored(ROOT / "results/math500-smollm2/journal.jsonl") as file:
        samples = [json.loads(line) for line in file]
    samples = [sample for sample in samples if "completion" in sample]
    assert len(samples) == 4000
    boxed = [sample for sample in samples if re.search(r"\\boxed\{.+\}", sample["completion"])]
    golds = {"test/algebra/1082.json": "23", "test/algebra/1553.json": "3"}
    assert {sample["problem_id"] for sample in boxed} == golds.keys() and len(boxed) == 2
    for sample in boxed:
        assert grade(sample["completion"], golds[sample["problem_id"]]).verdict == "incorrect"
