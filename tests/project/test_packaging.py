import os
import sys
import zipfile

import pytest

from tests.conftest import run_program
from tests.make import ROOT, TOY, TOY_CONFIG

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
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
