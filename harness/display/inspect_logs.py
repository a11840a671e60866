"""A run as logs of Inspect, for its viewer (`inspect view`): a log for each task of the run."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from harness.constants import JsonObject
from harness.finish_reasons import read_reason
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.run_reader import Run

GRADER_NAME = "mless"
"""The name of our grader in the logs."""
STOP_REASON_BY_FINISH = {"stop": "stop", "length": "max_tokens", "filtered": "content_filter"}
"""Inspect's words for the reasons why generation ended."""


def write_inspect_logs(run: Run, folder: Path) -> list[Path]:
    """Write the prompts, completions and verdicts of a run; return the logs.

    Repeat runs (A/A) are left out.

    Raises:
        ModuleNotFoundError: inspect_ai is not installed.
        RunError: a file of the run is missing or damaged.
    """
    from inspect_ai.log import EvalLog, write_eval_log

    samples_by_task: dict[str, list[JsonObject]] = {}
    for prompt in run.prompts:
        samples_by_task.setdefault(prompt.task, []).extend(_describe_samples(prompt))
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for task, samples in samples_by_task.items():
        right_flags = [sample["scores"][GRADER_NAME]["value"] == "C" for sample in samples]
        log = EvalLog(
            status="success",
            eval={
                "created": run.about["created"],
                "task": task,
                "dataset": {"name": run.about.get("dataset_name")},
                "model": run.about["model"],
                "config": {"epochs": max(sample["epoch"] for sample in samples)},
            },
            results={
                "total_samples": len(samples),
                "completed_samples": len(samples),
                "scores": [
                    {
                        "name": GRADER_NAME,
                        "scorer": GRADER_NAME,
                        "metrics": {"accuracy": {"name": "accuracy", "value": fmean(right_flags)}},
                    }
                ],
            },
            samples=samples,
        )
        paths.append(folder / f"{task}.eval")
        write_eval_log(log, paths[-1])
    return paths


def _describe_samples(prompt: AnsweredPrompt) -> Iterator[JsonObject]:
    """The samples of a prompt, as Inspect stores them.

    Its word for the samples of a problem is epoch, and its grades are `C`, correct, and `I`,
    incorrect.
    """
    # if a server applied its own template, the prompt's text is unknown
    prompt_text = prompt.prompt or prompt.doc["user"]
    for epoch, (sample, score) in enumerate(prompt.graded_samples, start=1):
        stop_reason = STOP_REASON_BY_FINISH.get(read_reason(sample.finish_reason) or "", "unknown")
        message = {"role": "assistant", "content": sample.completion}
        grade = {
            "value": "C" if score.verdict == "correct" else "I",
            "answer": score.answer,
            "explanation": score.verdict,
        }
        yield {
            "id": prompt.problem_id,
            "epoch": epoch,
            # the problem without filler, so that a problem has the same input under all conditions
            "input": prompt.doc.get("shown") or prompt.doc["problem"],
            "target": prompt.golds,
            "messages": [{"role": "user", "content": prompt_text}, message],
            "output": {"choices": [{"message": message, "stop_reason": stop_reason}]},
            "scores": {GRADER_NAME: grade},
        }
