import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import needs_vllm
from tests.make import GREEDY_RUN, ROOT, TOY, TOY_CONFIG, TOY_PROBLEMS


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
    (other / "journal.jsonl").write_text(journal.replace('"max_gen_toks":2048', '"max_gen_toks":9', 1))
    before = {path.name for path in other.iterdir()}
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for kind, config in (("runs", TOY_CONFIG), ("figures", TOY / "flipped-demo.yaml")):
        (tmp_path / "configs" / kind).mkdir(parents=True)
        shutil.copy(config, tmp_path / "configs" / kind)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/installed", "demo", "DEMO=demo"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results/demo-2 is finished, nothing was left to do" in done.stderr
    assert {"flipped-demo.png", "report.html"} <= {path.name for path in own.iterdir()}
    assert {path.name for path in other.iterdir()} - before <= {".lock"}
