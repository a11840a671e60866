"""A run as logs of Inspect, for its viewer (`inspect view`): a log for each task of the run."""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from harness.constants import JsonObject
from harness.errors import MissingDependencyError
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.read_runs import Run

SCORER = "mless"
"""The name of our grader in the logs."""


def write_inspect_logs(run: Run, folder: Path) -> list[Path]:
    """Write the prompts, completions and verdicts of a run; return the logs.

    Repeat runs (A/A) are left out.

    Raises:
        MissingDependencyError: inspect_ai is not installed.
        RunError: a file of the run is missing or damaged.
    """
    try:
        from inspect_ai.log import EvalLog, write_eval_log
    except ImportError:
        raise MissingDependencyError(
            "`mless export` needs the package 'inspect_ai'. Install it: "
            "`pip install 'mless[inspect]'`."
        ) from None
    paths = []
    # a stable sort: the problems of a task stay in their order
    prompts = sorted(run.prompts, key=attrgetter("task"))
    for task, task_prompts in groupby(prompts, key=attrgetter("task")):
        log = EvalLog(**_describe_task(run, Path(task).stem, list(task_prompts)))
        path = folder / f"{log.eval.task}.eval"
        folder.mkdir(parents=True, exist_ok=True)
        write_eval_log(log, path)
        paths.append(path)
    return paths


def _describe_task(run: Run, task: str, prompts: list[AnsweredPrompt]) -> JsonObject:
    """The fields of a log, in Inspect's own format."""
    model, created = str(run.about["model"]), str(run.about["created"])
    samples = [sample for prompt in prompts for sample in _describe_samples(prompt, model)]
    accuracy = fmean(sample["scores"][SCORER]["value"] == "C" for sample in samples)
    metrics = {"accuracy": {"name": "accuracy", "value": accuracy}}
    return {
        "status": "success",
        "eval": {
            "created": created,
            "task": task,
            "task_version": run.about["task_version"],
            "dataset": {"name": run.about["dataset_name"], "samples": len(prompts)},
            "model": model,
            "config": {"epochs": len(prompts[0].graded_samples)},
            "packages": {name: text for name, text in run.about["versions"].items() if text},
            "metadata": {"run": run.name, "condition": prompts[0].condition},
        },
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [{"name": SCORER, "scorer": SCORER, "metrics": metrics}],
        },
        "samples": samples,
    }


def _describe_samples(prompt: AnsweredPrompt, model: str) -> Iterator[JsonObject]:
    """The samples of a prompt. Inspect's word for the samples of a problem is epoch."""
    for epoch, (sample, score) in enumerate(prompt.graded_samples, start=1):
        message = {"role": "assistant", "content": sample.completion}
        is_cut = sample.finish_reason == "length"
        choice = {"message": message, "stop_reason": "max_tokens" if is_cut else "stop"}
        yield {
            "id": prompt.problem_id,
            "epoch": epoch,
            "input": prompt.prompt,
            "target": prompt.doc["answer"],
            "messages": [{"role": "user", "content": prompt.prompt}, message],
            "output": {"model": model, "choices": [choice]},
            "scores": {
                SCORER: {
                    "value": "C" if score.verdict == "correct" else "I",
                    "answer": score.answer,
                    "explanation": score.verdict,
                }
            },
            "metadata": {"subject": prompt.doc["subject"], "level": prompt.doc["level"]},
        }
