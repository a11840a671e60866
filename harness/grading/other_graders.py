"""Audits: the verdicts of other graders on the same completion, in separate columns.

They never change our verdict. They make our numbers comparable with those of lm-eval and of the
study, and show differences that only a grader makes. The other graders run in the workers of the
grader pool, each under a deadline. The column of a grader that did not end is None, not False.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from msgspec import Struct, structs

from harness.grading.answer_extraction import Grade
from harness.grading.authors_rule import authors_rule


@dataclass(frozen=True, kw_only=True)
class AuditJob:
    r"""A completion for the other graders.

    Attributes:
        prompt: The prompt as text, which the authors' rule reads too.
        completion: The text that the model wrote.
        target: The gold answer.
        solution: The worked solution, from which math_verify takes the gold answer. "" stands for
            `\boxed{target}`.
        line: Whether the answer is the first line. Then graders that read a box are left out.
    """

    prompt: str
    completion: str
    target: str
    solution: str
    line: bool = False

    def essential(self) -> AuditJob:
        r"""This job without its prompt if no grader reads it, so that equal jobs are done once.

        The authors' rule reads the last `\boxed` of prompt and completion. So the prompt matters
        only if the completion has none.
        """
        # the completion stands after the prompt, so its box is the last one
        if "\\boxed" in self.completion or self.line:
            return replace(self, prompt="")
        return self

    @property
    def steps(self) -> list[str]:
        """The names of this audit's steps."""
        return ["math_verify"] if self.line else list(STEPS)


class AuditColumns(Struct, frozen=True, kw_only=True):
    """The verdicts of the other graders. None: the grader did not end, failed, or was left out.

    Attributes:
        math_verify: lm-eval's call of math_verify. Any expression in the text can count, even
            instead of the box.
        authors_rule: The rule of the study's authors, on prompt plus completion, with its substring
            bug.
        authors_rule_strict: The authors' rule with equality only.
    """

    math_verify: bool | None = None
    authors_rule: bool | None = None
    authors_rule_strict: bool | None = None


class Audit(AuditColumns, frozen=True, kw_only=True):
    """The other graders' verdicts on one completion.

    Attributes:
        reason: Why a column is None, or that the authors' code would have failed. "; " separates
            several reasons.
    """

    reason: str | None = None


GRADERS = AuditColumns.__struct_fields__
"""The names of the verdicts in an `Audit`."""


def as_record(grade: Grade, audit: Audit) -> dict[str, Any]:
    """A grade and its audit as a flat mapping, as in sample logs and journals."""
    columns = structs.asdict(audit)
    audit_reason = columns.pop("reason")
    return {**asdict(grade), **columns, "audit_reason": audit_reason}


StepResult = tuple[dict[str, Any], str | None]
"""The columns of a step, and a remark."""


def _authors_rule(job: AuditJob) -> StepResult:
    remark = None
    try:
        is_correct, is_equal = authors_rule(job.prompt + job.completion, job.target)
    except IndexError:
        is_correct = is_equal = False
        remark = "IndexError in the authors' code, judged wrong"
    return {"authors_rule": is_correct, "authors_rule_strict": is_equal}, remark


def _math_verify(job: AuditJob) -> StepResult:
    """lm-eval's call without its timeouts, which rely on signals. The parent checks deadlines.

    Source: lm_eval/tasks/minerva_math/utils.py, `process_results`, lm-eval 0.4.13.
    """
    from math_verify import parse, verify

    solution = job.solution if job.solution else f"\\boxed{{{job.target}}}"
    gold = _parse_solution(solution)
    answer = parse(job.completion, parsing_timeout=None)
    return {"math_verify": bool(verify(gold=gold, target=answer, timeout_seconds=None))}, None


STEPS: dict[str, tuple[tuple[str, ...], Callable[[AuditJob], StepResult]]] = {
    "authors_rule": (("authors_rule", "authors_rule_strict"), _authors_rule),
    "math_verify": (("math_verify",), _math_verify),
}
"""The steps of an audit with their columns, the safest step first. Only workers run them, because
a step may hang."""


def run_step(step: str, job: AuditJob) -> StepResult:
    """Run a step of an audit. If the other grader fails, the remark names its error.

    Raises:
        MemoryError: The process reached its limit and can no longer be trusted.
    """
    columns, grader = STEPS[step]
    try:
        return grader(job)
    except MemoryError:
        raise
    except Exception as error:  # on model text the other graders can raise any error
        return dict.fromkeys(columns), type(error).__name__


def prepare_graders() -> None:
    """Load math_verify and its parser, about a second, before the first step needs them.

    The step reports an error in its column.
    """
    with suppress(Exception):
        _math_verify(AuditJob(prompt="", completion="$x+1$", target="\\frac{1}{2}", solution=""))


@lru_cache(maxsize=1024)
def _parse_solution(solution: str) -> Any:
    from math_verify import parse

    return parse(solution, parsing_timeout=None)
