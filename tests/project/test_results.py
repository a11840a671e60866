import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from attention_probe.figures.figure_config import PromptsConfig
from benchmarks.controls import CONTROLS, find, plant
from benchmarks.seed_claims import load, page
from harness import load_run
from harness.experiment.plan import make_plan
from harness.experiment.prompt import hash_prompts
from harness.experiment.run_config import load_config
from harness.grading import GradeJob, GraderPool
from harness.runs.records import stored_prompts
from harness.runs.run_files import (
    read_identity,
    read_prompts,
    read_samples,
    read_scored_by,
    read_scores,
    scored_now,
)
from harness.runs.versions_and_hashes import model_fingerprint
from tests.conftest import needs_vllm
from tests.make import (
    EXAMPLE,
    GREEDY_RUN,
    ROOT,
    TOY,
    TOY_CONFIG,
    TOY_MODEL,
    TOY_PROBLEMS,
    table_page,
)

REFERENCE = ("no-examples",)


@pytest.fixture(scope="module")
def table():
    return json.loads(table_page(EXAMPLE, form="json"))


def test_the_example_is_the_run_of_its_config():
    config, identity = load_config(ROOT / "configs/runs/example.yaml"), read_identity(EXAMPLE)
    assert identity.config == config.identity()
    assert len(load_run(EXAMPLE, replicates=True, reference_conditions=True)) == 13_440
    name = config.model_arguments()["pretrained"]
    assert identity.model == model_fingerprint(name)
    rows, plan = read_prompts(EXAMPLE), make_plan(config, limit=5)
    assert rows[: len(plan.rows)] == stored_prompts(plan)
    assert identity.prompts_sha256 == hash_prompts(rows)


def test_its_verdicts_are_what_todays_grader_says():
    targets = {row.doc["id"]: row.doc["answer"] for row in read_prompts(EXAMPLE)}
    scores = read_scores(EXAMPLE)
    assert read_scored_by(EXAMPLE) == scored_now()
    with GraderPool() as pool:
        for sample in read_samples(EXAMPLE):
            facts = {
                "target": targets[sample.problem_id],
                "finish_reason": sample.finish_reason,
                "line": True,
            }
            pool.submit(sample.key, GradeJob(completion=sample.completion, **facts))
        verdicts = {key: grade.verdict for key, grade in pool.drain()}
    assert verdicts == {key: score.verdict for key, score in scores.items()}


def test_its_table_is_what_the_command_prints(table):
    kept = json.loads((EXAMPLE / "table.json").read_text(encoding="utf-8"))
    for expected, row in zip(kept["rows"], table["rows"], strict=True):
        numbers = {name: value for name, value in expected.items() if isinstance(value, float)}
        # another machine may round the last digits differently
        assert {name: row[name] for name in numbers} == pytest.approx(numbers, rel=1e-9, abs=1e-12)
        assert {**row, **numbers} == expected
    assert {row["condition"] in REFERENCE for row in kept["rows"]} == {True, False}


@pytest.fixture(scope="module")
def everything():
    return load_run(EXAMPLE, replicates=True, reference_conditions=True)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, lambda frame: (frame["replicate"] == 0) & ~frame["condition"].isin(REFERENCE)),
        ({"replicates": True}, lambda frame: ~frame["condition"].isin(REFERENCE)),
        ({"reference_conditions": True}, lambda frame: frame["replicate"] == 0),
    ],
)
def test_replicates_and_reference_conditions_are_loaded_on_request(everything, options, kept):
    loaded, wanted = load_run(EXAMPLE, **options), everything[kept(everything)]
    assert 0 < len(loaded) < len(everything) and list(loaded.index) == list(range(len(loaded)))
    assert list(loaded["condition"].cat.categories) == list(wanted["condition"].unique())
    columns = ["condition", "problem_id", "sample_index", "replicate", "completion"]
    assert (
        loaded[columns].astype(str).values.tolist() == wanted[columns].astype(str).values.tolist()
    )


def test_the_toys_problems_are_distinct_and_of_all_levels():
    assert len(TOY_PROBLEMS) == len({one.problem for one in TOY_PROBLEMS}) == 500
    assert {one.level for one in TOY_PROBLEMS} == {1, 2, 3, 4, 5}
    assert all(f"\\boxed{{{one.answer}}}" in one.solution for one in TOY_PROBLEMS)


@pytest.mark.slow
@needs_vllm
def test_make_demo_draws_from_the_run_that_it_made_beside_another(tmp_path):
    other, own = tmp_path / "results" / "demo", tmp_path / "results" / "demo-2"
    for folder in (other, own):
        shutil.copytree(GREEDY_RUN, folder)
    journal = (other / "journal.jsonl").read_text()
    (other / "journal.jsonl").write_text(
        journal.replace('"max_gen_toks":2048', '"max_gen_toks":9', 1)
    )
    before = {path.name for path in other.iterdir()}
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for kind, config in (("runs", TOY_CONFIG), ("figures", TOY / "flipped-demo.yaml")):
        (tmp_path / "configs" / kind).mkdir(parents=True)
        shutil.copy(config, tmp_path / "configs" / kind)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/installed", "demo", "DEMO=demo"]
    command.append("OUTPUT=results/demo-2")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results/demo-2 is finished, nothing was left to do" in done.stderr
    assert {"flipped-demo.png", "report.html"} <= {path.name for path in own.iterdir()}
    assert {path.name for path in other.iterdir()} - before <= {".lock"}


FAST = ("no box",)


@pytest.mark.parametrize(
    "control",
    [
        pytest.param(one, id=one.name, marks=() if one.name in FAST else pytest.mark.slow)
        for one in CONTROLS
    ],
)
def test_what_was_changed_is_called_by_its_name(control, tmp_path):
    assert plant(control, tmp_path / "run") >= 20
    assert find(tmp_path / "run") == (
        control.verdict,
        control.parts,
        control.states,
        control.graders,
    )


def test_the_first_table_of_the_page_has_the_rows_that_are_printed(tmp_path):
    prompts = PromptsConfig.model_validate({"dataset": "math500", "layout": "as_published", "n": 4})
    printed, *_ = page(load(tmp_path, TOY_MODEL, prompts))
    page_text = (ROOT / "docs/seeds.md").read_text()
    table = re.search(r"^\| Mless against .*?\n\n", page_text, re.MULTILINE | re.DOTALL)[0].strip()
    first, second = (
        [line.split(" | ")[:2] for line in text.splitlines()] for text in (printed, table)
    )
    assert first == second and len(first) == 11
