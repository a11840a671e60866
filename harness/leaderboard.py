"""The accuracy table of a run, as text, Markdown, CSV or JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import ConfigError

if TYPE_CHECKING:
    import pandas

Format = Literal["text", "markdown", "csv", "json"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "csv", "json")
LABELS = {"wo": "w/o", "mless": "w/ Mless", "mful": "w/ Mful", "random": "Random sentence"}
"""The study's labels of its conditions."""


def accuracy_table(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Accuracy in percent with its standard error, and what the rest was, per condition and layout.

    The standard error is over problems: repeats of a problem are averaged first. It is the error of one condition
    alone; whether two conditions differ is a paired question that this table does not answer.
    """
    import pandas

    rows = []
    for (model, layout, condition), group in frame.groupby(["model", "layout", "condition"], observed=True, sort=False):
        by_problem = group.groupby("problem_id", observed=True)["correct"].mean()
        n = len(by_problem)
        error = float(by_problem.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
        other = group["verdict"].isin(["refused", "timeout", "crashed"]).sum()
        rows.append(
            {
                "model": model,
                "layout": layout,
                "condition": condition,
                "n": n,
                "accuracy": 100 * float(by_problem.mean()),
                "standard_error": 100 * error,
                "correct": int(group["correct"].sum()),
                "no_box": int((group["verdict"] == "no_box").sum()),
                "truncated": int((group["verdict"] == "truncated").sum()),
                "ungraded": int(other),
                "math_verify": _percent(group["math_verify"]),
            }
        )
    return pandas.DataFrame(rows)


def audit_table(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What every grader says of the same completions, per condition and layout: one column a grader, in percent.

    Beside each stand `..._only_ours` and `..._only_theirs`: samples that only one of the two calls right; samples in
    which one of them did not end are left out. `boxes_after_first` counts samples with a further box after the first.
    """
    import pandas

    from harness.grading import COLUMNS, disagreements

    rows = []
    for (model, layout, condition), group in frame.groupby(["model", "layout", "condition"], observed=True, sort=False):
        counts = disagreements(_records(group))
        row = {"model": model, "layout": layout, "condition": condition, "ours": 100 * float(group["correct"].mean())}
        for column in COLUMNS:
            row[column] = _percent(group[column])
            row[f"{column}_only_ours"] = counts[column].only_ours
            row[f"{column}_only_theirs"] = counts[column].only_theirs
        rows.append({**row, "boxes_after_first": int((group["boxes_after_first"] > 0).sum())})
    return pandas.DataFrame(rows)


def _records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Rows as mappings, with None for what is missing."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _percent(verdicts: pandas.Series[Any]) -> float:
    """The share of right ones among those that a grader gave, in percent; NaN if it gave none."""
    given = verdicts.dropna()
    return 100 * float(given.astype(bool).mean()) if len(given) else math.nan


_HEADERS = {
    "model": "model",
    "layout": "layout",
    "condition": "condition",
    "accuracy": "accuracy %",
    "standard_error": "SE",
    "n": "n",
    "no_box": "no box",
    "truncated": "truncated",
    "ungraded": "ungraded",
    "ours": "ours %",
    "math_verify": "math_verify %",
    "exact_match": "exact_match %",
    "exact_match_boxed": "exact_match_boxed %",
    "authors_rule": "authors' rule %",
    "authors_rule_strict": "authors' rule, strict %",
    "first_box": "first box %",
    "boxes_after_first": "boxes after first",
}
"""What people see of a table, in this order."""
_WORDS = ("model", "layout", "condition")


def render_table(table: pandas.DataFrame, form: Format = "text") -> str:
    """The table for people (text, markdown) or programs (csv, json)."""
    if form == "csv":
        return table.to_csv(index=False).rstrip("\n")
    if form == "json":
        return str(table.to_json(orient="records", indent=2))
    columns = [name for name in _HEADERS if name in table]
    header = tuple(_HEADERS[name] for name in columns)
    rows = [tuple(_cell(name, row) for name in columns) for row in table.to_dict("records")]
    left = [name in _WORDS for name in columns]
    if form == "markdown":
        rule = tuple("---" if is_left else "--:" for is_left in left)
        return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))
    if form != "text":
        raise ConfigError(f"Unknown table format {form!r}: expected one of {', '.join(FORMATS)}.")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if is_left else cell.rjust(w) for cell, w, is_left in zip(row, widths, left, strict=True)
        )
        for row in (header, *rows)
    ]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(line.rstrip() for line in lines)


def _cell(name: str, row: dict[Any, Any]) -> str:
    """One cell; a grader's accuracy is followed by how many samples it takes from ours and adds to it."""
    value = row[name]
    if name == "condition":
        return LABELS.get(str(value), str(value))
    if isinstance(value, float) and math.isnan(value):
        return "-"
    if f"{name}_only_ours" in row:
        return f"{value:.1f} (-{row[f'{name}_only_ours']} +{row[f'{name}_only_theirs']})"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
