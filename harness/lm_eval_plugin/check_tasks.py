"""The tasks' prompts for one model, measured token by token: does every condition keep what it promises?"""

from __future__ import annotations

from harness.errors import HarnessError
from harness.experiment.conditions import named_conditions
from harness.experiment.documents import Model
from harness.experiment.problems import load_math500
from harness.experiment.prompt import Layout
from harness.experiment.token_checks import check_condition


def check_tasks(name: str) -> tuple[list[str], bool]:
    """A table of every named condition in every layout, then what was found amiss; and whether all promises hold.

    The layout `as_published` promises nothing: what is amiss there is a note.

    Args:
        name: Model folder or hub name whose tokenizer is used.

    Raises:
        HarnessError: the tokenizer or the problems cannot be had.
    """
    model = Model.from_arguments({"pretrained": name})
    assert model is not None
    dataset = load_math500()
    problems = {problem.id: problem.problem for problem in dataset.problems}
    header = ("condition", "layout", "filler", "own", "straddling", "merged", "span", "prompt tokens", "problem ids")
    rows: list[tuple[str, ...]] = [header]
    complaints = []
    for layout in (*model.layouts(), Layout.AS_PUBLISHED):
        for condition in named_conditions().values():
            try:
                found = check_condition(problems, condition, layout, model.tokenizer)
            except HarnessError as error:
                rows.append((condition.name, str(layout), *["-"] * (len(header) - 2)))
                complaints.append(("violation", f"violation: {condition.name}, {layout}: {error}"))
                continue
            low, high = found.filler_span or (0, 0)
            same = "same" if found.same_problem_ids == len(problems) else f"{found.same_problem_ids} same"
            rows.append(
                (
                    condition.name,
                    str(layout),
                    str(found.count),
                    _least_most(found.filler_tokens),
                    _least_most(found.straddling),
                    _least_most(found.merged),
                    f"{low}-{high}" if high else "-",
                    _least_most((min(found.prompt_tokens), max(found.prompt_tokens))),
                    same,
                )
            )
            if found.violations:
                kind = "note" if layout is Layout.AS_PUBLISHED else "violation"
                complaints.append((kind, f"{kind}: {condition.name}, {layout}: {found.violations[0]}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    table = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    title = f"{model.name}, {len(problems)} problems from {dataset.source}; spans in tokens, half-open"
    holds = not any(kind == "violation" for kind, _ in complaints)
    return [title, *table, *(line for _, line in complaints)], holds


def _least_most(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}-{pair[1]}"
