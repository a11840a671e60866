import sys
from pathlib import Path

import pytest
from msgspec import structs

import harness
from harness.errors import RunError
from harness.execution import run_in_subprocess
from harness.execution.grade_samples import Scorer, grade_job
from harness.grading import grade
from harness.runs.journal import Journal
from harness.runs.records import Sample, StoredPrompt
from tests.conftest import installed
from tests.engines.test_backends import request
from tests.make import TOY_CONFIG, with_cases


def prompt(text="What is 2 + 2?", form="", filler="", **fields):
    """A prompt; `form` is the text of its format before the filler and the problem."""
    texts = {"format": form, "filler": filler, "separator": " ", "problem": text}
    segments = [{"role": role, "text": part} for role, part in texts.items()]
    document = {"id": "p", "answer": "4", "solution": "", "segments": segments}
    return StoredPrompt(
        task="made",
        condition="wo",
        layout="raw",
        prompt=text,
        prompt_sha256="",
        prompt_token_sha256=None,
        doc=document,
        **fields,
    )


def sample(completion, reason="stop"):
    return structs.replace(Sample.of(request("p"), "k", completion, reason=reason), task="made")


@with_cases
def test_grading_knows_what_the_prompt_began(prompt_fields, completion, reason, verdict):
    job = grade_job(prompt(**prompt_fields), sample(completion, reason))
    result = grade(job.completion, job.target, finish_reason=job.finish_reason, line=job.line)
    assert result.verdict == verdict


def score_of(completion, graded_prompt, folder):
    with Journal(folder / "scores.jsonl", {}) as scores, Scorer(scores, [graded_prompt]) as scorer:
        scorer.submit(sample(completion))
        (score,) = scorer.finish()
    return score


def test_every_grader_reads_an_answer_that_the_prompt_began(tmp_path):
    prefix = r"It is \boxed{"
    score = score_of("4}.", prompt(f"What is 2 + 2? {prefix}", answer_prefix=prefix), tmp_path)
    assert score.verdict == "correct" and score.math_verify
    assert score.authors_rule and score.authors_rule_strict and score.boxes_after_first == 0


def test_graders_that_look_for_a_box_are_not_asked_about_a_line(tmp_path):
    score = score_of(" 4", prompt(read="line"), tmp_path)
    assert (score.verdict, score.answer, score.math_verify) == ("correct", "4", True)
    assert score.authors_rule is score.authors_rule_strict is None


SCRIPT = """
import harness, sys
from pathlib import Path
from harness.experiment.run_config import load_config
config = load_config(Path(sys.argv[1]), [f"model.backend={sys.argv[3]}"])
engines = {"engines": 1} if sys.argv[3] == "vllm" else {}
run = harness.run(config, limit=2, output=sys.argv[2], **engines)
print(run.about["model"], len(run.samples))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dummy", pytest.param("vllm", marks=pytest.mark.engine)])
def test_a_script_without_a_main_guard_runs_and_reads_the_result(tmp_path, backend):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = map(str, (script, TOY_CONFIG, tmp_path / "run", backend))
    process = installed(Path(sys.executable).name, *arguments)
    assert process.stdout == "mless-demo 8\n" and "8/8 samples" in process.stderr, process.stderr


def test_a_refusal_of_the_command_is_raised_with_its_message(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(RunError, match="already holds files"):
        harness.run(TOY_CONFIG, limit=1, output=tmp_path)


COMMAND = """#!{python}
import os, pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("stopped").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
print("started", file=sys.stderr, flush=True)
os.kill(os.getppid(), signal.SIGINT)
time.sleep(100)
"""


@pytest.mark.usefixtures("interruptible")
def test_a_command_ends_with_its_caller_that_alone_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "python"
    program.write_text(COMMAND.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(run_in_subprocess.sys, "executable", str(program))
    monkeypatch.setattr(run_in_subprocess, "INTERRUPTION_SECONDS", 0.1)
    with pytest.raises(KeyboardInterrupt):
        run_in_subprocess.call_command([])
    assert (tmp_path / "stopped").exists()
