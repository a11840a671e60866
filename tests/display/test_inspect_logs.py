import json
import os
import sys

import pytest

from harness import load_run
from tests.commands.test_cli import refused
from tests.conftest import WITH_INSPECT, needs_inspect, run_python
from tests.make import GREEDY_RUN

READ = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
from harness.cli import app

app(sys.argv[1:], standalone_mode=False)
for file in list_eval_logs(sys.argv[-1]):
    log = read_eval_log(file)
    (score,) = log.results.scores
    samples = []
    for sample in log.samples:
        grade = sample.scores["mless"]
        facts = [sample.id, sample.epoch - 1, *sample.target, grade.value == "C", grade.explanation]
        facts += [grade.answer, sample.output.completion]
        samples.append([*facts, sample.output.stop_reason == "max_tokens"])
    facts = [log.status, log.eval.task, log.eval.model, score.metrics["accuracy"].value]
    print(json.dumps([*facts, samples]))
"""


@pytest.mark.slow
@needs_inspect
def test_inspect_reads_the_samples_and_accuracies_of_a_run(tmp_path, make_run):
    def answer(request, target):
        is_right = len(request.prompt + target) % 3 > 0 and request.sample_index
        if request.problem_id.endswith("3.json"):
            return "on and on", "length"
        return rf"so \boxed{{{target if is_right else 0}}}", "stop"

    run = make_run(answer, repeats=2, gen_kwargs={"temperature": 1.0})
    arguments = ("export", run, "--output", tmp_path / "logs")
    lines = run_python(READ, *arguments, env=WITH_INSPECT).splitlines()
    logs = [json.loads(line) for line in lines if line.startswith("[")]
    paths = [line.removeprefix("log   ") for line in lines if line.startswith("log ")]
    assert len(logs) == len(paths) == 2 and all(map(os.path.isfile, paths))
    frame = load_run(run)
    for status, task, model, accuracy, samples in logs:
        condition = task.removeprefix("demo_")
        rows = frame[frame["condition"] == condition]
        assert (status, model) == ("success", rows["model"].iloc[0])
        assert accuracy == pytest.approx(rows["correct"].mean())
        columns = "problem_id sample_index target correct verdict answer".split()
        rows = rows.assign(is_truncated=rows["verdict"] == "truncated")
        expected = rows[[*columns, "completion", "is_truncated"]].astype(object)
        # Inspect has its own order of samples
        assert sorted(samples) == sorted(expected.where(expected.notna(), None).values.tolist())
    assert len({accuracy for *_, accuracy, _ in logs}) > 1


def test_an_export_needs_inspect(tmp_path, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    refused(command("export", GREEDY_RUN, "-o", tmp_path), "Type `pip install 'inspect-ai>=")
