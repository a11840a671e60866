"""What the grader pool is asked to do, and how a worker's replies become the result.

A job knows nothing of processes or clocks. The pool hands its `request` to a worker, gives it every reply by `take`,
and calls `fail` where the worker was lost. A job with a `result` is done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from harness.grading.audit import FILLS, STEPS, Audit, AuditJob
from harness.grading.boxes import boxes_after_first, visible_answer
from harness.grading.grade_completion import GRADER_VERSION, Grade, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeJob:
    """One completion to be graded against a target.

    Attributes:
        completion: What the model wrote, without the prompt.
        target: The gold answer.
        finish_reason: vLLM's, if known; see `harness.grading.read`.
    """

    completion: str
    target: str
    finish_reason: str | None = None


class Comparison:
    """An answer that is compared with its target. The worker replies once."""

    def __init__(self, answer: str, target: str) -> None:
        self.key: Hashable = (answer, target, GRADER_VERSION)
        self.request = {"answer": answer, "target": target}
        self.result: Grade | None = None

    @property
    def lasting(self) -> bool:
        """Whether the result says something about the answer, and not only about the moment."""
        return self.result is not None and self.result.verdict not in ("timeout", "crashed")

    def take(self, reply: Mapping[str, Any]) -> None:
        """Read the worker's verdict.

        Raises:
            KeyError, ValueError: The reply is no verdict.
        """
        if reply["verdict"] not in get_args(Verdict):
            raise ValueError("not a verdict")
        self.result = Grade(verdict=reply["verdict"], answer=self.request["answer"], reason=reply["reason"])

    def fail(self, verdict: Verdict, reason: str) -> None:
        """The worker was lost, so this is the grade."""
        self.result = Grade(verdict=verdict, answer=self.request["answer"], reason=reason)


class AuditSteps:
    """An audit. The worker replies once for every step, so that a step that hangs costs its own columns only."""

    def __init__(self, job: AuditJob) -> None:
        self._job = job.essential()
        text = json.dumps(asdict(self._job)).encode()
        self.key: Hashable = ("audit", hashlib.sha256(text).hexdigest(), GRADER_VERSION)
        self.lasting = True
        self._steps = list(STEPS)
        self._columns: dict[str, bool | None] = {}
        self._remarks: list[str] = []

    @property
    def request(self) -> dict[str, Any]:
        """The job with the steps that are left."""
        return {"audit": asdict(self._job), "steps": self._steps}

    @property
    def result(self) -> Audit | None:
        """The audit, once no step is left."""
        if self._steps:
            return None
        after_first = boxes_after_first(visible_answer(self._job.completion))
        return Audit(**self._columns, boxes_after_first=after_first, reason="; ".join(self._remarks) or None)

    def take(self, reply: Mapping[str, Any]) -> None:
        """Read what the next step found.

        Raises:
            KeyError, ValueError: The reply is not that step's.
        """
        step = self._steps[0]
        columns = {column: reply["fields"][column] for column in FILLS[step]}
        if reply["step"] != step or any(value not in (True, False, None) for value in columns.values()):
            raise ValueError(f"not the columns of {step}")
        self._end_step(columns, reply["remark"])

    def fail(self, verdict: Verdict, reason: str) -> None:
        """The worker was lost in the next step, whose columns stay None; the steps after it are still to be done."""
        self.lasting = False
        self._end_step(dict.fromkeys(FILLS[self._steps[0]]), reason)

    def _end_step(self, columns: Mapping[str, bool | None], remark: str | None) -> None:
        step = self._steps.pop(0)
        self._columns.update(columns)
        if remark is not None:
            self._remarks.append(f"{step}: {remark}")


Job = Comparison | AuditSteps
