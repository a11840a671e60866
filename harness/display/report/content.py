"""What a report is about: what tables compare, and beside it the texts of every prompt and completion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.leaderboard import records
from harness.errors import PromptMismatchError, RunError
from harness.experiment.documents import document_prompt
from harness.experiment.prompt import Prompt
from harness.experiment.tokens import find_segments
from harness.grading import COLUMNS as GRADERS
from harness.runs.evaluations import Evaluation, read_evaluation
from harness.runs.folder import read_prompts
from harness.runs.lm_eval_logs import LoggedSample, SampleLog, read_log
from harness.runs.sample_frame import load_run, read_receipt

PromptKey = tuple[int, str, str, str]
"""The run's number, layout, condition, problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """One prompt in parts.

    Attributes:
        problem: The problem's text alone; the whole prompt where no document says.
        parts: Role and text of every part; joined they are what the model got. What no segment covers is `template`;
            empty where the text is not known.
        sha256: Hash of the whole.
    """

    problem: str
    parts: tuple[tuple[str, str], ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """Everything that a report is made from.

    Attributes:
        evaluations: What is compared.
        names: Of the runs, for people.
        models: The names that the runs' models were loaded by.
        receipts: All that is known of how each run was made.
        samples: One mapping a sample, with the names of `load_run`'s columns and the number of its run in `run`.
        prompts: Every prompt.
    """

    evaluations: tuple[Evaluation, ...]
    names: tuple[str, ...]
    models: tuple[str, ...]
    receipts: tuple[Mapping[str, Any], ...]
    samples: tuple[Mapping[str, Any], ...]
    prompts: Mapping[PromptKey, PromptText]


def read_content(runs: Sequence[Path | Mapping[str, Path]], *, metric: str | None = None) -> Content:
    """Read runs, each as `evaluations.read_evaluation` does, with their texts.

    Args:
        runs: Run folders, lm-eval output folders or sample logs; mappings of condition to sample log.
        metric: What in the logs of other tasks says right or wrong.

    Raises:
        RunError: there is none, or one cannot be read.
    """
    if not runs:
        raise RunError("A report needs at least one run: expected run folders, got none. Name one, as results/example.")
    evaluations: list[Evaluation] = []
    models: list[str] = []
    receipts: list[Mapping[str, Any]] = []
    samples: list[Mapping[str, Any]] = []
    prompts: dict[PromptKey, PromptText] = {}
    for number, run in enumerate(runs):
        evaluation = read_evaluation(run, metric=metric)
        evaluations.append(evaluation)
        if isinstance(run, Path) and evaluation.facts["source"] == "run":
            receipt = read_receipt(run)
            receipts.append(receipt)
            models.append(str(receipt["model"].get("name")))
            samples += records(load_run(run, replicates=True, rewordings=True).assign(run=number))
            for row in read_prompts(run):
                key = (number, str(row["layout"]), str(row["condition"]), str(row["doc"]["id"]))
                parts = _parts(document_prompt(row["doc"]), row["prompt"])
                prompts[key] = PromptText(problem=row["doc"]["problem"], parts=parts, sha256=row["prompt_sha256"])
        else:
            receipts.append(evaluation.facts)
            models.append(str(evaluation.facts["model"]))
            for row, prompt in _read_logs(evaluation, number, metric):
                samples.append(row)
                prompts[number, row["layout"], row["condition"], row["problem_id"]] = prompt
    return Content(
        evaluations=tuple(evaluations),
        names=tuple(Path(one.name).resolve().name if Path(one.name).exists() else one.name for one in evaluations),
        models=tuple(models),
        receipts=tuple(receipts),
        samples=tuple(samples),
        prompts=prompts,
    )


def _read_logs(evaluation: Evaluation, number: int, metric: str | None) -> Iterator[tuple[dict[str, Any], PromptText]]:
    """Every sample of an evaluation that was made of sample logs, with its prompt."""
    arms = evaluation.frame.drop_duplicates(["condition", "layout"])
    models = {
        (str(c), str(y)): str(m) for c, y, m in zip(arms["condition"], arms["layout"], arms["model"], strict=True)
    }
    for place, path in evaluation.facts["logs"].items():
        log = _read_log(Path(path), metric)
        for logged in log.samples:
            condition, layout = place.rpartition(", ")[0], logged.layout
            if place != f"{condition}, {layout}" or logged.condition not in (None, condition):
                continue  # another condition or layout of the same file
            about = {"run": number, "model": models[condition, layout], "condition": condition, "layout": layout}
            for index in range(len(logged.verdicts)):
                yield {**about, **_logged_sample(logged, index)}, _logged_prompt(logged)


def _read_log(path: Path, metric: str | None) -> SampleLog:
    try:
        return read_log(path, metric=metric)
    except RunError:  # chat messages, whose text only a server knew; whatever else is wrong is wrong without it too
        return read_log(path, metric=metric, prompts=False)


def _logged_sample(logged: LoggedSample, index: int) -> dict[str, Any]:
    def at(values: Sequence[Any], default: Any = None) -> Any:
        return values[index] if index < len(values) else default

    grade = at(logged.grades)
    return {
        "problem_id": logged.problem_id,
        "sample_index": index,
        "replicate": 0,
        "subject": logged.subject,
        "level": logged.level,
        "verdict": logged.verdicts[index],
        "correct": logged.verdicts[index] == "correct",
        "answer": at(logged.answers),
        "target": logged.target,
        "completion": at(logged.completions, ""),
        "finish_reason": None,
        "seed": None,
        "prompt_tokens": None,
        "completion_tokens": at(logged.completion_tokens),
        **{name: getattr(grade, name, None) for name in (*GRADERS, "boxes_after_first", "reason", "audit_reason")},
    }


def _logged_prompt(logged: LoggedSample) -> PromptText:
    if logged.segments is None:
        parts: tuple[tuple[str, str], ...] = (("prompt", logged.text),) if logged.text else ()
    else:
        parts = _parts(Prompt(segments=logged.segments, system_size=logged.system_size), logged.text)
    problem = next((logged.doc[name] for name in ("problem", "question") if name in logged.doc), logged.text)
    return PromptText(problem=str(problem), parts=parts, sha256=logged.sha256)


def _parts(prompt: Prompt, text: str) -> tuple[tuple[str, str], ...]:
    """Role and text of all that the model got."""
    parts, at = [], 0
    try:
        spans = find_segments(prompt, text) if text else []
    except PromptMismatchError:  # a server's template, which was never seen here
        spans = []
    for role, (low, high) in spans:
        parts += [("template", text[at:low]), (str(role), text[low:high])]
        at = high
    return tuple(part for part in (*parts, ("template", text[at:])) if part[1])
