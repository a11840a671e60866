"""The accuracy table of a run, as text, Markdown, CSV or JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

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
                "math_verify": 100 * float(group["math_verify"].mean()),
            }
        )
    return pandas.DataFrame(rows)


def render_table(table: pandas.DataFrame, form: Format = "text") -> str:
    """The table for people (text, markdown) or programs (csv, json)."""
    if form == "csv":
        return table.to_csv(index=False).rstrip("\n")
    if form == "json":
        return str(table.to_json(orient="records", indent=2))
    header = (
        "model",
        "layout",
        "condition",
        "accuracy %",
        "SE",
        "n",
        "no box",
        "truncated",
        "ungraded",
        "math_verify %",
    )
    rows = [
        (
            str(row["model"]),
            str(row["layout"]),
            LABELS.get(str(row["condition"]), str(row["condition"])),
            f"{row['accuracy']:.1f}",
            "-" if math.isnan(row["standard_error"]) else f"{row['standard_error']:.1f}",
            str(row["n"]),
            str(row["no_box"]),
            str(row["truncated"]),
            str(row["ungraded"]),
            f"{row['math_verify']:.1f}",
        )
        for row in table.to_dict("records")
    ]
    if form == "markdown":
        rule = tuple("---" if i < 3 else "--:" for i in range(len(header)))
        return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))
    if form != "text":
        raise ConfigError(f"Unknown table format {form!r}: expected one of {', '.join(FORMATS)}.")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    ]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(line.rstrip() for line in lines)
