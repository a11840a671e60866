"""Audits: the verdicts of other graders on the same completion, in separate columns.

They never change our verdict. They make our numbers comparable with those of lm-eval and of the
study, and show differences that only a grader makes. The other graders run in the workers of the
grader pool, each under a deadline, as a step of the job. The column of a grader that did not end is
None, not False.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from harness.grading.answer_extraction import GradeJob
from harness.grading.authors_rule import authors_rule


def select_audit_texts(job: GradeJob) -> dict[str, str]:
    r"""The texts of a job that the other graders read: four, by the keys of the result.

    The authors' rule reads `prompt`, `completion` and the gold answer `target`. math_verify reads
    `completion`, and the gold answer in `solution`.

    The prompt is left out if no grader reads it, so that equal jobs are done once. The authors'
    rule reads the last `\boxed` of prompt and completion, so the prompt matters only if the
    completion has none.
    """
    # the completion stands after the prompt, so its box is the last one
    needs_prompt = not (job.is_line or "\\boxed" in job.completion)
    return {
        "prompt": job.prompt if needs_prompt else "",
        "completion": job.completion,
        "target": job.targets[0],
        "solution": job.solution or f"\\boxed{{{job.targets[0]}}}",
    }


StepResult = tuple[dict[str, Any], str | None]
"""The columns of a step, and a remark: why a column is None, or that a grader's code failed."""


def _authors_rule(audit_texts: Mapping[str, str]) -> StepResult:
    """The rule of the study's authors. Where their code fails, the answer counts as wrong."""
    remark = None
    try:
        is_correct, is_equal = authors_rule(
            audit_texts["prompt"] + audit_texts["completion"], audit_texts["target"]
        )
    except IndexError:
        is_correct = is_equal = False
        remark = "IndexError in the authors' code, judged wrong"
    return {"authors_rule": is_correct, "authors_rule_strict": is_equal}, remark


def _math_verify(audit_texts: Mapping[str, str]) -> StepResult:
    """lm-eval's call without its timeouts, which rely on signals. The parent checks deadlines.

    Source: lm_eval/tasks/minerva_math/utils.py, `process_results`, lm-eval 0.4.13.
    """
    from math_verify import parse, verify

    gold = _parse_solution(audit_texts["solution"])
    answer = parse(audit_texts["completion"], parsing_timeout=None)
    return {"math_verify": bool(verify(gold=gold, target=answer, timeout_seconds=None))}, None


COLUMNS_BY_STEP = {
    "authors_rule": ("authors_rule", "authors_rule_strict"),
    "math_verify": ("math_verify",),
}
"""The columns of each step of an audit, the safest step first. Only workers run steps, because one
may hang."""
_GRADER_BY_STEP = {"authors_rule": _authors_rule, "math_verify": _math_verify}
GRADERS = ("math_verify", "authors_rule", "authors_rule_strict")
"""The columns of the other graders in a `Grade`."""


def run_step(step: str, audit_texts: Mapping[str, str]) -> StepResult:
    """Run a step of an audit. If the other grader fails, the remark names its error.

    Args:
        step: The name of the step.
        audit_texts: From `select_audit_texts`.

    Raises:
        MemoryError: The process reached its limit and can no longer be trusted.
    """
    try:
        return _GRADER_BY_STEP[step](audit_texts)
    except MemoryError:
        raise
    except Exception as error:  # on model text the other graders can raise any error
        return dict.fromkeys(COLUMNS_BY_STEP[step]), type(error).__name__


def prepare_graders() -> None:
    """Load math_verify and its parser, about a second, before the first step needs them.

    An error is ignored here, because the step reports it in its column.
    """
    with suppress(Exception):
        _math_verify({"completion": "$x+1$", "solution": "\\boxed{\\frac{1}{2}}"})


@lru_cache(maxsize=1024)
def _parse_solution(solution: str) -> Any:
    """Parse a solution once for all completions of its problem."""
    from math_verify import parse

    return parse(solution, parsing_timeout=None)
