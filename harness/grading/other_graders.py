"""Audits: the verdicts of other graders on the same completion, in columns beside ours. They never
change our verdict.

With them our numbers can be compared with lm-eval's and with the study's, and a difference that
only a grader makes is seen. The graders run in the grader pool's workers, each under a deadline.
The column of a grader that did not end is None, which is kept apart from wrong.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_type_hints

from msgspec import Meta, Struct, structs

from harness.grading.extract_answer import LONGEST_ANSWER, Grade, read_boxes


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditJob:
    r"""A completion for the other graders.

    Attributes:
        prompt: The prompt as text, which the authors' rule reads too.
        completion: What the model wrote.
        target: The gold answer.
        solution: The worked solution, from which lm-eval's graders take the gold. "" stands for
            `\boxed{target}`.
        line: Whether the answer is the first line. Then graders that look for a box are not asked.
    """

    prompt: str
    completion: str
    target: str
    solution: str
    line: bool = False

    def essential(self) -> AuditJob:
        r"""This job without its prompt, if no grader would look at it. So equal completions are
        audited once.

        The authors' rule looks for the last `\boxed` of the whole text: the prompt counts only if
        the completion has none.
        """
        return (
            replace(self, prompt="")
            if self.prompt and ("\\boxed" in self.completion or self.line)
            else self
        )

    @property
    def steps(self) -> list[str]:
        """The steps of this audit."""
        return ["math_verify"] if self.line else list(STEPS)


def column(meaning: str, kind: str | None = None, **checks: Any) -> Meta:
    """Describe a field as a column of `harness.load_run`.

    Args:
        meaning: What the column says.
        kind: The column's type in exports, if the field's own type does not tell it.
        **checks: Constraints that msgspec checks.
    """
    return Meta(description=meaning, extra={"kind": kind}, **checks)


class AuditColumns(Struct, frozen=True, kw_only=True):
    r"""The verdicts of the other graders. None: the grader did not end, failed, or was not asked.

    Only this class names them: records, tables and exports take their columns and descriptions from
    here. For `exact_match_boxed` and `boxes_after_first`, which use our extraction, an empty box is
    no box.

    Attributes:
        math_verify: lm-eval's call of math_verify. Any expression in the text can count, even
            instead of the box.
        exact_match_boxed: lm-eval's own comparison, of the content of the last closed box. Wrong
            without one.
        authors_rule: The rule of the study's authors, on prompt plus completion, with its substring
            bug.
        authors_rule_strict: The authors' rule with equality only.
        boxes_after_first: Number of closed boxes after the first: the model may have gone on to a
            next problem.
    """

    math_verify: Annotated[
        bool | None, column("audit: lm-eval's stock call of math_verify on the whole text")
    ] = None
    exact_match_boxed: Annotated[
        bool | None, column("audit: lm-eval's minerva exact_match on the last box")
    ] = None
    authors_rule: Annotated[
        bool | None, column("audit: the study's own rule, substrings included")
    ] = None
    authors_rule_strict: Annotated[
        bool | None, column("audit: the study's rule without substrings")
    ] = None
    boxes_after_first: Annotated[int | None, column("further boxes after the first")] = 0


class Audit(AuditColumns, frozen=True, kw_only=True):
    """The other graders' verdicts on one completion.

    Attributes:
        reason: Why a column is None, or that the authors' code would have stopped. "; " stands
            between several.
    """

    reason: str | None = None


GRADERS = tuple(name for name, kind in get_type_hints(AuditColumns).items() if kind == bool | None)
"""The names of the verdicts in an `Audit`."""


def as_record(grade: Grade, audit: Audit) -> dict[str, Any]:
    """A grade and its audit as one flat mapping, the form that sample logs and journals have."""
    columns = structs.asdict(audit)
    audit_reason = columns.pop("reason")
    return {**asdict(grade), **columns, "audit_reason": audit_reason}


def as_text(grade: Grade, audit: Audit) -> str:
    """`as_record` as JSON: what the filter of our tasks makes of a response, and `.graded` of a
    replayed completion."""
    return json.dumps(as_record(grade, audit))


Finding = tuple[dict[str, int | None], str | None]
"""The columns that one step fills, and a remark."""


def _authors_rule(job: AuditJob) -> Finding:
    remark = None
    try:
        right, strict = authors_rule(job.prompt + job.completion, job.target)
    except IndexError:
        right = strict = False
        remark = "IndexError in the authors' code, judged wrong"
    return {"authors_rule": right, "authors_rule_strict": strict}, remark


def _exact_match_boxed(job: AuditJob) -> Finding:
    """lm-eval's comparison of the last box. Its own code catches every error, and then judges the
    answer wrong."""
    right, remark = None, None
    answer = next(reversed(read_boxes(job.completion)), None)
    if answer is None:
        right = False
    elif len(answer) > LONGEST_ANSWER:
        remark = f"answer of {len(answer)} characters, over {LONGEST_ANSWER}"
    else:
        minerva = _minerva()
        box = (
            minerva.last_boxed_only_string(job.solution) if job.solution else None
        )  # as its `process_docs`
        gold = job.target if box is None else minerva.remove_boxed(box)
        right = _equivalent(
            minerva.normalize_final_answer(answer), minerva.normalize_final_answer(gold)
        )
    return {"exact_match_boxed": right}, remark


def _boxes_after_first(job: AuditJob) -> Finding:
    return {"boxes_after_first": max(0, len(read_boxes(job.completion)) - 1)}, None


def _math_verify(job: AuditJob) -> Finding:
    """lm-eval's call, without its timeouts: they rely on signals, and the parent keeps the clock.

    Source: lm_eval/tasks/minerva_math/utils.py, `process_results`, lm-eval 0.4.13.
    """
    from math_verify import parse, verify

    gold = _parse_solution(job.solution or f"\\boxed{{{job.target}}}")
    found = parse(job.completion, parsing_timeout=None)
    return {"math_verify": bool(verify(gold=gold, target=found, timeout_seconds=None))}, None


STEPS: dict[str, tuple[tuple[str, ...], Callable[[AuditJob], Finding]]] = {
    "boxes_after_first": (("boxes_after_first",), _boxes_after_first),
    "authors_rule": (("authors_rule", "authors_rule_strict"), _authors_rule),
    "exact_match_boxed": (("exact_match_boxed",), _exact_match_boxed),
    "math_verify": (("math_verify",), _math_verify),
}
"""The steps of an audit with their columns, the safest first. A step may hang: only workers take
it."""


def run_step(step: str, job: AuditJob) -> Finding:
    """Take one step of an audit. If the other grader fails, its columns are None, and the remark
    names the error.

    Raises:
        MemoryError: the process ran into its limit and can no longer be trusted.
    """
    columns, take = STEPS[step]
    try:
        return take(job)
    except MemoryError:
        raise
    except Exception as error:  # other people's graders on model text raise anything at all
        return dict.fromkeys(columns), type(error).__name__


def prepare() -> None:
    """Load lm-eval's grader and its parser, which takes about a second, so that no step pays for
    it.

    Failures are left to the steps, which report them in their columns.
    """
    with suppress(Exception):
        _equivalent("x+1", "\\frac{1}{2}")


@lru_cache(maxsize=1)
def _minerva() -> ModuleType:
    """lm-eval's own module, loaded from its file: an import by name takes 3 s, for datasets and
    half of lm-eval.

    This copy is ours alone, so its timeout by alarm signals can be taken out. The parent keeps the
    clock.
    """
    package = importlib.util.find_spec("lm_eval")
    assert package is not None and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "tasks" / "minerva_math" / "utils.py"
    spec = importlib.util.spec_from_file_location("harness_minerva_math", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.timeout = lambda seconds: nullcontext()  # type: ignore[attr-defined]
    return module


@lru_cache(maxsize=4096)
def _equivalent(answer: str, gold: str) -> bool:
    return bool(_minerva().is_equiv(answer, gold))


@lru_cache(maxsize=1024)
def _parse_solution(solution: str) -> Any:
    from math_verify import parse

    return parse(solution, parsing_timeout=None)


def authors_rule(text: str, gold: str | None) -> tuple[bool, bool]:
    r"""The grading rule of the study's authors, with its faults, written from a description of what
    it does.

    It reads prompt **plus** completion, so that an empty `\boxed{}` in the prompt counts as an
    answer. It accepts any answer that is a substring of the gold answer: an empty box is always
    right, and `1` is right for `100`. And it knows no mathematics beyond `rewrite`.

    Source: arXiv 2510.01032 and what its code does. The rewriting is that of the MATH data set
    (Hendrycks et al. 2021, arXiv 2103.03874).

    Args:
        text: The prompt followed by the completion.
        gold: The gold answer. None: the problem has no boxed answer.

    Returns:
        Whether the answer is right by the rule as it is, and without the substring bug.

    Raises:
        IndexError: as in their code, at a `\frac` or `\sqrt` with nothing after it.
    """
    answer = authors_answer(text)
    if answer is None or gold is None:
        return answer == gold, answer == gold
    rewritten, expected = rewrite(answer), rewrite(gold)
    return rewritten in expected, rewritten == expected


def authors_answer(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`. None: there is no box, or the last one is not closed.

    An unclosed box hides the closed ones before it. Their code also looks for an `\fbox` if there
    is no `\boxed`, and then refuses its form.
    """
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            box = text[start : brace.end()]
            prefix = "\\boxed{"
            return box[len(prefix) : -1] if box.startswith(prefix) else None
    return None


def rewrite(answer: str) -> str:
    r"""Rewrite an answer, or the gold answer, by the rule's steps in their order.

    Raises:
        IndexError: nothing follows a `\frac` or a `\sqrt`, as in their code.
    """
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    text = text.replace("\\left", "").replace("\\right", "")
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    text = text.partition("\\text{ ")[0].replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    text = "0" + text if text.startswith(".") else text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _brace_fractions(_brace_roots(text).replace(" ", ""))
    if text == "0.5":
        return "\\frac{1}{2}"
    slash = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return f"\\frac{{{slash[1]}}}{{{slash[2]}}}" if slash else text


def _brace_roots(text: str) -> str:
    r"""`\sqrt3` as `\sqrt{3}`. Only the first character after the command is braced."""
    first, *rest = text.split("\\sqrt")
    return first + "".join(
        "\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest
    )


def _brace_fractions(text: str) -> str:
    r"""`\frac12` and `\frac1{2}` as `\frac{1}{2}`. If only one character follows a `\frac`, the
    whole text stays."""
    first, *rest = text.split("\\frac")
    parts = [first]
    for part in rest:
        if part[0] == "{":
            braced = part
        elif len(part) < 2:
            return text
        else:
            below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            braced = f"{{{part[0]}}}{below}"
        parts.append("\\frac" + braced)
    return "".join(parts)
