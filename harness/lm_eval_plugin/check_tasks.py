"""The tasks' prompts for one model, measured token by token: does every condition keep what it promises?"""

from __future__ import annotations

from collections.abc import Iterable

from harness.errors import HarnessError
from harness.experiment.conditions import named_conditions
from harness.experiment.documents import ModelTokenizer
from harness.experiment.problems import load_math500
from harness.experiment.prompt import Layout
from harness.experiment.token_checks import PromptBuilder


def check_tasks(name: str) -> tuple[list[str], bool]:
    """A table of every named condition in every layout, then what was found amiss; and whether all promises hold.

    The layout `as_published` promises nothing: what is amiss there is a note.

    Args:
        name: Model folder or hub name whose tokenizer is used.

    Raises:
        HarnessError: the tokenizer or the problems cannot be had.
    """
    model = ModelTokenizer.from_arguments({"pretrained": name})
    assert model is not None
    dataset = load_math500()
    problems = {problem.id: problem.problem for problem in dataset.problems}
    header = ("condition", "layout", "filler", "own", "straddling", "merged", "span", "prompt tokens", "problem ids")
    rows: list[tuple[str, ...]] = [header]
    complaints = []
    for layout in (*model.layouts(), Layout.AS_PUBLISHED):
        builder = PromptBuilder(problems, layout, model.tokenizer)
        for condition in named_conditions().values():
            try:
                built = builder.build(condition)
            except HarnessError as error:
                rows.append((condition.name, str(layout), *["-"] * (len(header) - 2)))
                complaints.append(("violation", f"violation: {condition.name}, {layout}: {error}"))
                continue
            reports = built.reports
            low, high = reports[0].filler_span or (0, 0)
            same = built.same_problem_ids
            rows.append(
                (
                    condition.name,
                    str(layout),
                    str(condition.tokens),
                    _least_most(report.filler_tokens for report in reports),
                    _least_most(report.straddling for report in reports),
                    _least_most(report.merged for report in reports),
                    f"{low}-{high}" if high else "-",
                    _least_most(len(report.prompt_token_ids) for report in reports),
                    "same" if same == len(problems) else f"{same} same",
                )
            )
            if built.violations:
                kind = "note" if layout is Layout.AS_PUBLISHED else "violation"
                complaints.append((kind, f"{kind}: {condition.name}, {layout}: {built.violations[0]}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    table = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    title = f"{model.name}, {len(problems)} problems from {dataset.source}; spans in tokens, half-open"
    holds = not any(kind == "violation" for kind, _ in complaints)
    return [title, *table, *(line for _, line in complaints)], holds


def _least_most(counts: Iterable[int]) -> str:
    """`55` where all are 55, else `54-55`."""
    seen = sorted(counts)
    return str(seen[0]) if seen[0] == seen[-1] else f"{seen[0]}-{seen[-1]}"
