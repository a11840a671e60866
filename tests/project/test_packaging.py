import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.make import TOY, TOY_CONFIG

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return out


def test_wheel_and_sdist_build(built):
    (wheel,), (_sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "harness/tasks/math500/math500_mless.yaml",
        "harness/configs/runs/products.yaml",
        "attention_probe/__init__.py",
    ):
        assert needed in names
    assert not any(name.startswith("tests/") for name in names)


def test_the_wheel_works_outside_the_checkout(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "MATH500_PATH": str(TOY / "demo.jsonl")}

    def mless(*arguments):
        command = [sys.executable, "-P", "-m", "harness.cli", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
        ).stdout

    assert mless("tasks").strip() == str(site / "harness" / "tasks")
    assert "requests  8" in mless("run", TOY_CONFIG, "--dry-run", "--limit", "2")
    code = (
        "from lm_eval.tasks import TaskManager; from harness import resources;"
        "m = TaskManager(include_path=str(resources.folder('tasks')), include_defaults=False);"
        "print(len(m.load(['math500_mless'])['tasks']['math500_mless'].eval_docs))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout.split()[-1] == "500"
