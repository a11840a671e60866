import json
import os
import re
import shutil
import sys

import pandas
import pytest

from attention_probe.figures.figure_config import PromptsConfig
from benchmarks.controls import CONTROLS, describe_run, make_changed_run
from benchmarks.seed_claims import load, page
from harness import Run, load_config, load_run
from harness.execution.sample_grading import grade_job
from harness.experiment.plan import make_plan, make_requests, sample_key
from harness.experiment.problems import fold_text, open_dataset
from harness.experiment.prompts.prompt import hash_prompts, hash_text
from harness.grading import GraderPool
from harness.runs.records import stored_prompts
from harness.runs.run_files import RunFiles, scored_now
from harness.runs.versions_and_hashes import model_fingerprint
from tests.conftest import needs_vllm, run_program, succeeded
from tests.make import (
    EXAMPLE,
    GREEDY_RUN,
    ROOT,
    TOY,
    TOY_CONFIG,
    TOY_MODEL,
    table_data,
)


@pytest.fixture(scope="module")
def samples():
    """All samples of the example, also of its repeat run and reference conditions."""
    return load_run(EXAMPLE, replicates=True, reference_conditions=True)


@pytest.fixture(scope="module")
def plan():
    """The plan of five problems of the example's config."""
    return make_plan(load_config(ROOT / "configs/runs/example.yaml"), limit=5)


def test_the_example_is_the_run_of_its_config(samples, plan):
    config, files = plan.config, RunFiles(EXAMPLE)
    recorded = files.receipt["config"]
    assert recorded.pop("planned") is None, "a former key, whose value was the default"
    assert recorded == config.as_written() | {"model": recorded["model"]}
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
    requests = [*make_requests(plan, config.resolve_sampling({}))]
    requested_tasks = {sample_key(request, setting): request.task for request in requests}
    problem_ids = {request.problem_id for request in requests}
    recorded_tasks = {
        sample.key: sample.task
        for sample in files.journal.records
        if sample.problem_id in problem_ids
    }
    assert requested_tasks == recorded_tasks and len(requests) == 1215


def test_data_of_configs_have_no_copies_and_their_draws_stay():
    hashes = {}
    for path in sorted((ROOT / "configs/runs").glob("*.yaml")):
        config = load_config(path)
        # the toy's problems stand for MATH-500 in tests
        dataset = open_dataset(config.dataset)
        assert len({fold_text(row.problem) for row in dataset.problems}) == len(dataset.problems)
        if config.fewshot:
            *_, ids = config.fewshot.split(
                dataset.problems, draws_per_problem=config.draws_per_problem
            )
            hashes[path.stem] = hash_text(repr((ids.pool, ids.example_sets)))[:8]
    products = dict.fromkeys(("causes", "example", "other-texts", "products"), "067f0b9a")
    sinks = {"capitals": "554a2361", "opposites": "c9164bbd", "products": "0d047f32"}
    products |= {f"sink-{name}": value for name, value in sinks.items()}
    assert hashes == products | {
        "instructions": "3cf6d79e",
        "doctor": "f2c150fc",
        "harm": "be224e89",
        "help": "88a8b63b",
    }


def test_the_verdicts_of_the_example_are_those_of_the_grader_of_today():
    files = RunFiles(EXAMPLE)
    prompts = {(row.task, row.doc["id"]): row for row in files.prompts}
    assert files.scored_by == scored_now()
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
    columns = ["condition", "problem_id", "sample_index", "replicate", "completion"]
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
