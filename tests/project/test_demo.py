import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest

from harness import resources
from harness.experiment.problems import load_demo
from tests.conftest import needs_vllm
from tests.make import GREEDY_RUN, ROOT
from tools.demo.problems import FAMILIES, demo_problems, draw_problems


def test_the_file_is_what_the_code_makes():
    lines = (resources.demo_folder() / "problems.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(demo_problems().values())


def test_500_distinct_problems_of_all_kinds():
    problems = load_demo().problems
    assert len(problems) == len({one.problem for one in problems}) == 500
    assert {one.subject for one in problems} == set(FAMILIES) and len(FAMILIES) == 7
    assert {one.level for one in problems} == {1, 2, 3, 4, 5}
    assert all(f"\\boxed{{{one.answer}}}" in one.solution for one in problems)
    kinds = [r"\frac", r"\sqrt", r"\%", "pmatrix", r"\left(", "x^2", "_{", "[", "-"]
    assert all(any(kind in one.answer for one in problems) for kind in kinds)


def test_training_passes_over_the_bundled_problems(demo_tokenizer):
    from tools.demo.train import draw_examples

    held_out = {r["problem"] for r in demo_problems().values()}
    drawn = [r["problem"] for _, r in itertools.islice(draw_problems(5), 4000)]
    assert held_out & set(drawn), "the generator would draw bundled problems, so passing over them matters"
    for prompt_ids, _ in itertools.islice(draw_examples(demo_tokenizer, 5), 2000):
        text = demo_tokenizer.decode(prompt_ids)
        assert not any(text.removesuffix("<|im_end|>\n<|im_start|>assistant\n").endswith(p) for p in held_out)


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
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/installed", "demo", "DEMO=demo"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results/demo-2 is finished, nothing was left to do" in done.stderr
    assert {"flipped-demo.png", "report.html"} <= {path.name for path in own.iterdir()}
    assert {path.name for path in other.iterdir()} - before <= {".lock"}
