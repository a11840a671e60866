"""The bundled problems: well formed, varied, and disjoint from what the model was trained on."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from harness import resources
from harness.experiment.problems import load_demo
from tests.conftest import needs_vllm
from tests.make import GREEDY_RUN, ROOT
from tools.demo.problems import FAMILIES, demo_problems, draw_problems

FIELDS = {"problem", "solution", "answer", "subject", "level", "unique_id"}


def test_the_file_is_what_the_code_makes():
    lines = (resources.demo_folder() / "problems.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(demo_problems().values())


def test_500_distinct_problems_over_all_subjects_and_levels():
    records = list(demo_problems().values())
    assert len(records) == len({r["problem"] for r in records}) == 500
    assert all(set(r) == FIELDS for r in records)
    assert {r["subject"] for r in records} == set(FAMILIES) and len(FAMILIES) == 7
    assert set(Counter(r["level"] for r in records)) == {1, 2, 3, 4, 5}


def test_answers_exercise_the_grader():
    answers = [p.answer for p in load_demo().problems]
    kinds = [r"\frac", r"\sqrt", r"\%", "pmatrix", r"\left(", "x^2", "_{", "[", "-"]
    assert all(any(kind in answer for answer in answers) for kind in kinds)


def test_solutions_end_in_the_boxed_answer():
    assert all(f"\\boxed{{{p.answer}}}" in p.solution for p in load_demo().problems)


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
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/installed", "demo"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results/demo-2 is finished, nothing was left to do" in done.stderr
    assert {"flipped-demo.png", "report.html"} <= {path.name for path in own.iterdir()}
    assert {path.name for path in other.iterdir()} - before <= {".lock"}


def test_the_model_is_small_and_knows_its_end():
    folder = resources.demo_model()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12 * 2**20
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    assert config["model_type"] == "qwen2" and config["dtype"] == "bfloat16"
    assert config["eos_token_id"] == generation["eos_token_id"] is not None
