"""A finished run on disk: `run.json` (the receipt) beside lm-eval's own results and sample logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import RunError

if TYPE_CHECKING:
    import pandas

RECEIPT = "run.json"


def read_receipt(folder: Path) -> dict[str, Any]:
    """The run's receipt.

    Raises:
        RunError: there is no such run, or its receipt is torn.
    """
    path = folder / RECEIPT
    if not path.is_file():
        raise RunError(f"{folder} holds no run: expected {RECEIPT} in it, as `mless run` writes. Check the path.")
    try:
        receipt: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise RunError(f"{path} is torn ({error.msg}, line {error.lineno}). Restore it, or run again.") from None
    if not isinstance(receipt, dict) or not receipt.get("tasks") or "model" not in receipt:
        raise RunError(f"{path} is not a run's receipt: expected the keys model and tasks. Restore it, or run again.")
    return receipt


def load_run(path: str | Path) -> pandas.DataFrame:
    """A run as a tidy frame, one row a sample; needs neither torch nor lm-eval.

    Columns: model, condition, layout, problem_id, repeat, subject, level, verdict, correct, math_verify, answer,
    target, completion, finish_reason, prompt_sha256, prompt_token_sha256, prompt_tokens, completion_tokens. What a
    backend does not tell is missing.

    Raises:
        RunError: there is no run there, or a sample log is missing or torn.
    """
    import pandas

    folder = Path(path)
    receipt = read_receipt(folder)
    rows: list[dict[str, Any]] = []
    for task in receipt["tasks"]:
        log = folder / task["samples"]
        if not log.is_file():
            raise RunError(f"{folder}: the sample log {task['samples']} is missing. Restore it, or run again.")
        for number, line in enumerate(log.read_text(encoding="utf-8").rstrip("\n").split("\n"), start=1):
            try:
                sample = json.loads(line)
            except json.JSONDecodeError:
                raise RunError(f"{log}, line {number}: torn. Restore the file, or run again.") from None
            rows += _rows(sample, receipt["model"]["label"], task)
    frame = pandas.DataFrame(rows)
    for column in ("condition", "layout"):
        order = list(dict.fromkeys(frame[column]))
        frame[column] = pandas.Categorical(frame[column], categories=order, ordered=True)
    return frame


def _rows(sample: dict[str, Any], model: str, task: dict[str, Any]) -> list[dict[str, Any]]:
    doc = sample["doc"]
    rows = []
    completions, grades = sample["resps"][0], sample["filtered_resps"][0]
    for repeat, (completion, text) in enumerate(zip(completions, grades, strict=True)):
        graded = json.loads(text)
        generation = (sample.get("generations") or [{}] * len(completions))[repeat]
        rows.append(
            {
                "model": model,
                "condition": task["condition"],
                "layout": task["layout"],
                "problem_id": doc["id"],
                "repeat": repeat,
                "subject": doc["subject"],
                "level": doc["level"],
                "verdict": graded["verdict"],
                "correct": graded["verdict"] == "correct",
                "math_verify": bool(graded["math_verify"]),
                "answer": graded["answer"],
                "target": doc["answer"],
                "completion": completion,
                "finish_reason": generation.get("finish_reason"),
                "prompt_sha256": sample["prompt_hash"],
                "prompt_token_sha256": generation.get("prompt_token_sha256"),
                "prompt_tokens": generation.get("prompt_tokens"),
                "completion_tokens": generation.get("completion_tokens"),
            }
        )
    return rows
