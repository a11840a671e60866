"""What other graders say of the same completion, in columns beside ours: none of them ever decides a verdict.

The columns exist so that our numbers can be compared with lm-eval's and with the study's, and so that a difference that
only a grader makes is seen. They run in the grader pool's workers, each under the parent's deadline; a column that did
not end is None, kept apart from wrong.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_type_hints

from msgspec import Meta, Struct, structs

from harness.grading.authors_rule import authors_rule
from harness.grading.boxes import first_box, last_box, visible_answer
from harness.grading.grade_completion import Grade, compare, read

LONGEST_EXACT_MATCH = 2000
"""Characters that lm-eval's normalisation is given; it is quadratic, and 50,000 take it about ten seconds."""

NO_SENTENCE = "[invalidanswer]"
"""What lm-eval reads where its "Final Answer" sentence is missing."""

UNGRADED = ("refused", "timeout", "crashed")
"""The verdicts that say nothing about the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditJob:
    r"""One completion for the other graders.

    Attributes:
        prompt: What the model was given, as text; the authors' rule reads it too.
        completion: What the model wrote.
        target: The gold answer.
        solution: The worked solution, from which lm-eval's graders take the gold; "" stands for `\boxed{target}`.
    """

    prompt: str
    completion: str
    target: str
    solution: str

    def essential(self) -> AuditJob:
        r"""The same job without a prompt that no grader would look at, so that equal completions are audited once.

        The authors' rule looks for the last `\boxed` of the whole text; the prompt counts only where the completion has
        none.
        """
        return replace(self, prompt="") if self.prompt and "\\boxed" in self.completion else self


def column(meaning: str, kind: str | None = None, **checks: Any) -> Meta:
    """What a field says as a column of `harness.load_run`; its type in exports, where its own does not tell."""
    return Meta(description=meaning, extra={"kind": kind}, **checks)


class AuditColumns(Struct, frozen=True, kw_only=True):
    r"""What the other graders say. None: that grader did not end, failed, or was not asked.

    This is the one place that names them: records, tables and exports have the columns that stand here, with these
    descriptions. In the columns with our extraction (`exact_match_boxed`, `first_box`, `boxes_after_first`) an empty
    box is no box.

    Attributes:
        math_verify: Any expression of the text can count, and a stray one can beat the box.
        exact_match: It reads only "Final Answer: The final answer is ...", so boxed answers are wrong.
        exact_match_boxed: The same comparison on the content of the last closed box; wrong without one.
        authors_rule: Over prompt plus completion, its substring bug included.
        authors_rule_strict: The same with equality only.
        first_box: For models that run on into a next problem; wrong if there is no closed box.
        boxes_after_first: How many closed boxes follow the first.
    """

    math_verify: Annotated[bool | None, column("audit: lm-eval's stock call of math_verify on the whole text")] = None
    exact_match: Annotated[bool | None, column("audit: lm-eval's minerva exact_match")] = None
    exact_match_boxed: Annotated[bool | None, column("audit: the same, of the last box")] = None
    authors_rule: Annotated[bool | None, column("audit: the study's own rule, substrings included")] = None
    authors_rule_strict: Annotated[bool | None, column("audit: the study's rule without substrings")] = None
    first_box: Annotated[bool | None, column("audit: our grader on the first box")] = None
    boxes_after_first: Annotated[int, column("further boxes after the first")] = 0


class Audit(AuditColumns, frozen=True, kw_only=True):
    """What the other graders say of one completion.

    Attributes:
        reason: Which column is None and why, or that the authors' code would have stopped; several are joined by "; ".
    """

    reason: str | None = None


COLUMNS = tuple(name for name, kind in get_type_hints(AuditColumns).items() if kind == bool | None)
"""The verdicts of an `Audit`."""


def as_record(grade: Grade, audit: Audit) -> dict[str, Any]:
    """A grade and its audit as one flat mapping, the form of sample logs and journals."""
    fields = structs.asdict(audit)
    fields["audit_reason"] = fields.pop("reason")
    return {"verdict": grade.verdict, "answer": grade.answer, "reason": grade.reason, **fields}


def as_text(grade: Grade, audit: Audit) -> str:
    """The record as JSON: what a response becomes in the tasks' filter, and `.graded` of a replayed completion."""
    return json.dumps(as_record(grade, audit))


Finding = tuple[dict[str, bool | None], str | None]
"""The columns that one step fills, and a remark. Where lm-eval's code catches everything, so do these: out of memory
inside it is then wrong, as it is there."""


def _authors_rule(job: AuditJob) -> Finding:
    said = authors_rule(job.prompt + job.completion, job.target)
    remark = "IndexError in the authors' code, judged wrong" if said.failed else None
    return {"authors_rule": said.right, "authors_rule_strict": said.strict}, remark


def _first_box(job: AuditJob) -> Finding:
    content = first_box(visible_answer(job.completion))
    if content is None:
        return {"first_box": False}, None
    answer = read(f"\\boxed{{{content}}}")  # alone in a text it is also the last: one gate for both
    graded = answer if isinstance(answer, Grade) else _compared(answer, job.target)
    if graded.verdict in UNGRADED:
        return {"first_box": None}, graded.reason or graded.verdict
    return {"first_box": graded.correct}, None


def _exact_match(job: AuditJob) -> Finding:
    answer = _minerva().get_unnormalized_answer(job.completion)
    if answer == NO_SENTENCE and job.target != NO_SENTENCE:
        return {"exact_match": False}, None  # lm-eval has sympy compare this with the gold, which takes 30 ms
    return _same_normalised("exact_match", answer, job)


def _exact_match_boxed(job: AuditJob) -> Finding:
    answer = last_box(visible_answer(job.completion))
    if answer is None:
        return {"exact_match_boxed": False}, None
    return _same_normalised("exact_match_boxed", answer, job)


def _same_normalised(column: str, answer: str, job: AuditJob) -> Finding:
    if len(answer) > LONGEST_EXACT_MATCH:
        return {column: None}, f"answer of {len(answer)} characters, over {LONGEST_EXACT_MATCH}"
    return {column: _equivalent(_minerva().normalize_final_answer(answer), _gold(job.solution, job.target))}, None


def _math_verify(job: AuditJob) -> Finding:
    """As lm-eval calls it, but without its timeouts, which rely on signals: the parent has the clock.

    Source: lm_eval/tasks/minerva_math/utils.py, `process_results`, lm-eval 0.4.13.
    """
    from math_verify import parse, verify

    gold = _parsed_solution(job.solution or f"\\boxed{{{job.target}}}")
    found = parse(job.completion, parsing_timeout=None)
    return {"math_verify": bool(verify(gold=gold, target=found, timeout_seconds=None))}, None


STEPS: dict[str, Callable[[AuditJob], Finding]] = {
    "authors_rule": _authors_rule,
    "exact_match_boxed": _exact_match_boxed,
    "exact_match": _exact_match,
    "first_box": _first_box,
    "math_verify": _math_verify,
}
"""The steps of an audit, the safest first. A step may hang or exhaust memory: workers only."""

FILLS = {step: ((step, "authors_rule_strict") if step == "authors_rule" else (step,)) for step in STEPS}
"""The columns that each step fills."""


def run_step(step: str, job: AuditJob) -> Finding:
    """One step of an audit; a failure inside the other grader is None with the error's name.

    Raises:
        MemoryError: the process ran into its limit and can no longer be trusted.
    """
    try:
        return STEPS[step](job)
    except MemoryError:
        raise
    except Exception as error:  # other people's graders on model text raise anything at all
        return dict.fromkeys(FILLS[step]), type(error).__name__


def prepare() -> None:
    """Load lm-eval's grader and its parser, which takes about a second; later steps find them loaded.

    A failure is left to the steps, which put it in their columns.
    """
    with suppress(Exception):
        _equivalent("x+1", "\\frac{1}{2}")


def is_prepared() -> bool:
    """Whether `prepare` has run in this process."""
    return _equivalent.cache_info().misses > 0


@lru_cache(maxsize=1)
def _minerva() -> ModuleType:
    """lm-eval's own module, loaded from its file: importing it by name loads datasets and half of lm-eval (3 s).

    This copy is ours alone, so its alarm-based timeout can be taken out; the parent has the clock.
    """
    package = importlib.util.find_spec("lm_eval")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("lm_eval is not installed")
    path = Path(package.submodule_search_locations[0]) / "tasks" / "minerva_math" / "utils.py"
    spec = importlib.util.spec_from_file_location("harness_minerva_math", path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.timeout = lambda seconds: nullcontext()  # type: ignore[attr-defined]
    return module


@lru_cache(maxsize=1024)
def _gold(solution: str, target: str) -> str:
    """The gold as lm-eval's `process_docs` has it: the solution's last box, normalised; else the target's."""
    minerva = _minerva()
    box = minerva.last_boxed_only_string(solution) if solution else None
    gold: str = minerva.normalize_final_answer(target if box is None else minerva.remove_boxed(box))
    return gold


@lru_cache(maxsize=4096)
def _equivalent(answer: str, gold: str) -> bool:
    return bool(_minerva().is_equiv(answer, gold))


@lru_cache(maxsize=1024)
def _parsed_solution(solution: str) -> Any:
    from math_verify import parse

    return parse(solution, parsing_timeout=None)


@lru_cache(maxsize=4096)
def _compared(answer: str, target: str) -> Grade:
    return compare(answer, target)
