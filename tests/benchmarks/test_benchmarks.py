"""Every benchmark runs to its end in its small version, and leaves the committed pages alone."""

import json
import math
import os
import re
import sys

import pytest

from benchmarks.__main__ import MINUTES
from harness import load_config
from harness.experiment.plan import make_plan
from harness.runs.records import Sample
from tests.conftest import PATIENCE, needs_vllm, run_program, succeeded
from tests.make import ROOT, run_plan, with_cases

FOLDER = ROOT / "benchmarks"
HELPER_MODULES = {"attention", "other_texts", "sink"}
"""A module that `probe` runs in processes of its own, and two that read runs."""
STARTS_VLLM = {"engine", "stock"}
MAIN = 'if __name__ == "__main__":'
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if MAIN in path.read_text())
BENCHMARKS = [name for name in NAMES if name not in HELPER_MODULES | {"__main__"}]


def mark_benchmark(name):
    marks = [pytest.mark.slow]
    if name in STARTS_VLLM:
        marks += [pytest.mark.engine, needs_vllm]
    return pytest.param(name, marks=marks)


def run_module(module, *arguments):
    """What `python -m MODULE` prints; the test fails with its messages if the module does."""
    options = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "timeout": PATIENCE}
    return succeeded(run_program(sys.executable, "-m", module, *arguments, **options)).stdout


def read_committed_files():
    paths = [*FOLDER.glob("*.md"), *FOLDER.glob("figures/*.json")]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("name", [mark_benchmark(name) for name in BENCHMARKS])
def test_a_small_benchmark_runs_to_its_end(name):
    before = read_committed_files()
    if name in MINUTES:
        run_module("benchmarks", "--small", name)
        small = ROOT / "results/bench-small"
        figures = json.loads((small / f"{name}.json").read_text())
        page = (small / "RESULTS.md").read_text()
        text = page[page.index(f"## {figures['title']}") :]
        assert len(figures["rows"]) >= 2
        ratios = [row["ratio"] for row in figures["rows"] if row["ratio"] is not None]
        assert ratios or "not told apart from drift" in text
        assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios)
    else:
        text = run_module(f"benchmarks.{name}", "--small")
    # a header, its rule and two rows
    assert f"\n{text}".count("\n|") >= 4
    assert re.search(r"\d", text) and not re.search(r"(?i)\b(nan|inf|infinity)\b", text)
    assert read_committed_files() == before


@pytest.mark.slow
@with_cases
def test_the_registered_experiments_are_pooled_and_tested_in_order(tmp_path, rights):
    """`rights` has the conditions that are right in each experiment."""
    for name, conditions in rights.items():
        kind = name.split("-")[0]
        # other examples, so that no prompt of the registered runs is used before them
        config = load_config(ROOT / f"configs/runs/{kind}.yaml", {"fewshot.seed": 1})
        plan = make_plan(config, limit=12)
        targets = {problem.id: problem.answer for problem in plan.dataset.problems}

        def make_sample(request, key, right=conditions, targets=targets):
            condition = request.task.split("_")[1]
            text = f" {targets[request.problem_id]}" if condition in right else " no"
            return Sample.of(request, key, text, completion_tokens=2, finish_reason="stop")

        run_plan(plan, tmp_path / name, make_sample)
    text = run_module("benchmarks.sink", str(tmp_path), "--small")
    pooled = next(
        line for line in text.splitlines() if "permuted - slashes" in line and "all tasks" in line
    )
    # condition, baseline, accuracy, difference
    assert pooled.split()[:6] == "permuted - slashes slashes 100.0 100.0".split()
    steps = [line for line in text.splitlines() if line.endswith("found")]
    assert [line.split()[-1] for line in steps] == ["found"] * 4
    # the name appears twice; no baseline and no accuracy, then the difference
    assert steps[-1].split()[14:17] == ["NaN", "NaN", "100.0"]
