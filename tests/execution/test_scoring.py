import sys
from pathlib import Path

import pytest
from msgspec import structs

from harness import grade
from harness.execution.sample_grading import Scorer, grade_job
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
    return structs.replace(
        Sample.of(request("p"), "k", completion, finish_reason=reason), task="made"
    )


@with_cases
def test_grading_knows_what_the_prompt_began(prompt_fields, completion, reason, verdict):
    job = grade_job(prompt(**prompt_fields), sample(completion, reason))
    result = grade(job.completion, job.target, finish_reason=job.finish_reason, line=job.is_line)
    assert result.verdict == verdict


@with_cases
def test_graders_read_an_answer_that_the_prompt_began_and_those_of_a_box_no_line(
    tmp_path, fields, completion, facts
):
    graded_prompt = prompt(**fields)
    with (
        Journal(tmp_path / "scores.jsonl", {}) as scores,
        Scorer(scores, [graded_prompt]) as scorer,
    ):
        scorer.submit(sample(completion))
        (score,) = scorer.finish()
    assert {name: getattr(score, name) for name in facts} == facts


SCRIPT = """
import sys
import mless
config = mless.load_config(sys.argv[1], {"model.backend": sys.argv[3]})
engines = 1 if sys.argv[3] == "vllm" else None
for limit in (1, 2):
    run = mless.run(config, limit=limit, output=sys.argv[2], engines=engines)
    print(run.about["model"], len(run.samples), sys.modules["__main__"].__file__ == __file__)
"""


@pytest.mark.slow
@with_cases
def test_a_script_without_a_main_guard_runs_twice_and_reads_the_results(tmp_path, backend):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = map(str, (script, TOY_CONFIG, tmp_path / "run", backend))
    process = installed(Path(sys.executable).name, *arguments)
    assert process.stdout == "mless-demo 4 True\nmless-demo 8 True\n", process.stderr
    assert "8/8 samples" in process.stderr
