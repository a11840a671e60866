"""Write the report: fill the template with tables, summary, drawings and details."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.analysis.leaderboard import Leaderboard, make_leaderboard
from harness.display.comparison_tables import report_grid, without_yardsticks
from harness.display.figures.style import COLOURS
from harness.display.grid import Grid
from harness.display.report import drawings, summary
from harness.display.report.attention import AttentionFile
from harness.display.report.content import Content, read_content
from harness.display.report.details import Details, make_details
from harness.display.report.drawings import Row
from harness.display.side_tables import audit_grid, mediator_grid, pooled_grid, yardstick_grid
from harness.display.visible import visible
from harness.display.words import LEVEL, count, define_flips, label, number, points, signed
from harness.errors import RunError
from harness.experiment.conditions import BASELINE
from harness.runs.receipts import git_revision, versions
from harness.runs.stored_files import clear_messages, write_whole

LIMIT = 5_000_000
"""Greatest size of a page in bytes. What does not fit is left out, which the page says: see `make_details`."""
SLOTS = 8
"""Number of colours in the style sheet. The first are those of `figures.COLOURS`."""


def write_report(
    runs: Sequence[Path | Mapping[str, Path]],
    output: Path,
    *,
    attention: Sequence[AttentionFile] = (),
    baseline: str = BASELINE,
    margin: float | None = None,
    metric: str | None = None,
    limit: int = LIMIT,
) -> int:
    """Write one HTML file about finished runs.

    Args:
        runs: Run folders, lm-eval output folders or sample logs; mappings of condition to sample log.
        output: The HTML file.
        attention: Attention curves of prompts of these runs.
        baseline: The condition that the others are compared with.
        margin: Equivalence margin, points; None is the default.
        metric: The metric that tells right from wrong in logs of other tasks.
        limit: Greatest size of the file in bytes.

    Returns:
        Its size in bytes.

    Raises:
        RunError: a run is missing or unfinished, or curves are of prompts that no run has.
        ComparisonError: the runs cannot be compared.
        JournalError: the file cannot be written.
    """
    content = read_content(runs, metric=metric)
    _refuse_foreign(content, attention)
    board = make_leaderboard(content.runs, baseline=baseline, margin=margin)
    parts = _parts(content, attention, board)
    bare = _fill({**parts, "details": Details()})
    details = make_details(
        content,
        baseline=baseline,
        conditions=_conditions(_arms(board)),
        attention=attention,
        room=limit - len(bare.encode()) - 4096,
    )
    page = _fill({**parts, "details": details})
    with clear_messages(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, page)
    return len(page.encode())


def _parts(content: Content, attention: Sequence[AttentionFile], board: Leaderboard) -> dict[str, Any]:
    """All that the template shows except the details of samples."""
    rows = without_yardsticks(board, board.comparison)
    margin = float(rows[0]["margin"])
    slots = {one["name"]: one["slot"] for one in _conditions(rows)}
    results = report_grid(board, "Every condition against the baseline")
    return {
        "title": " + ".join(content.names),
        "summary": summary.summarise(rows, greedy=board.greedy),
        "notes": results.notes,
        "settings": [
            {"model": model, "layout": layout, "sentences": summary.describe(list(group))}
            for (model, layout), group in groupby(rows, key=lambda row: (row["model"], row["layout"]))
        ],
        "results": replace(results, notes=()),
        "others": _other_tables(board, content, margin),
        "figures": _figures(rows, slots, margin),
        "attention": [_attention(one, slots) for one in attention],
        "margin": points(margin),
        "baseline": board.baseline,
        "receipts": [
            _receipt(name, one.facts, one.receipt) for name, one in zip(content.names, content.runs, strict=True)
        ],
        "made_by": {"git_revision": git_revision(), "versions": versions()},
        "trace_receipts": [(one.name, _json(one.receipt)) for one in attention],
        "samples": len(content.samples),
        "problems": len({row["problem_id"] for row in content.samples}),
        "yardsticks": len(board.yardsticks),
    }


def _arms(board: Leaderboard) -> list[Mapping[str, Any]]:
    """The rows of conditions, without those of contrasts with another baseline."""
    return [row for row in without_yardsticks(board, board.comparison) if row["baseline"] == board.baseline]


def _fill(parts: Mapping[str, Any]) -> str:
    """Fill the template. Lone surrogates, which no file can hold, become question marks."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("harness.display.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["visible"] = visible
    here = files("harness.display.report")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    page = templates.get_template("page.html.jinja").render(
        parts, style=Markup(style), script=Markup(script), style_hash=_hash(style), script_hash=_hash(script)
    )
    return page.encode("utf-8", "replace").decode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _conditions(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Name, label and colour of each condition. The study's conditions have the same colour in every report."""
    names = list(dict.fromkeys(str(row["condition"]) for row in rows))
    spare = [slot for slot in range(len(COLOURS), SLOTS)]
    others = [name for name in names if name not in COLOURS]
    slots = {name: slot for slot, name in enumerate(COLOURS)}
    slots |= {name: spare[number % len(spare)] for number, name in enumerate(others)}
    return [{"name": name, "label": label(name), "slot": slots[name]} for name in names]


def _other_tables(board: Leaderboard, content: Content, margin: float) -> list[Grid]:
    """Mediators, all graders, and the comparison by level and by subject."""
    found = [
        *filter(None, [pooled_grid(board.pooled, board.study), yardstick_grid(board)]),
        mediator_grid(board),
        audit_grid(board),
    ]
    for column in ("level", "subject"):
        if any(one.frame[column].nunique() > 1 for one in content.runs):
            split = make_leaderboard(content.runs, baseline=board.baseline, margin=margin, by=[column])
            found.append(report_grid(split, f"By {column}"))
    return found


def _figures(rows: Sequence[Mapping[str, Any]], slots: Mapping[str, int], margin: float) -> list[dict[str, Any]]:
    """Drawings of accuracies, differences and flips, with captions."""
    several = len({(row["model"], row["layout"]) for row in rows}) > 1
    accuracies: list[Row] = []
    differences: list[Row] = []
    flips: list[Row] = []
    for row in rows:
        name, slot, is_baseline = label(row["condition"]), slots[row["condition"]], row["verdict"] == "baseline"
        if is_baseline and several:
            for lines in (accuracies, differences, flips):
                lines.append(Row(label=f"{row['model']}, {row['layout']}"))
        value, low, high = (row[key] for key in ("accuracy", "accuracy_low", "accuracy_high"))
        if row["baseline"] == rows[0]["baseline"]:
            accuracies.append(Row(label=name, slot=slot, value=value, low=low, high=high, text=number(value)))
        if is_baseline and row["aa_p"] is None:
            continue
        name, of = ("again (A/A)", "aa_") if is_baseline else (name, "")
        value, lost, gained = (row[f"{of}{key}"] for key in ("difference", "right_to_wrong", "wrong_to_right"))
        low, high = row["low"], row["high"]
        differences.append(Row(label=name, slot=slot, value=value, low=low, high=high, text=signed(value)))
        flips.append(Row(label=name, low=lost, high=gained, text=f"{count(lost)} | {count(gained)}"))
    ends = [end for row in accuracies for end in (row.low, row.high) if end is not None]
    limits = (max(0.0, 5 * math.floor(min(ends) / 5 - 0.2)), min(100.0, 5 * math.ceil(max(ends) / 5 + 0.2)))
    cut = " The axis does not start at zero." if limits[0] else ""
    dots = drawings.dots(accuracies, title="Accuracy", axis="right, percent", limits=limits)
    drawn = [{"caption": f"Accuracy with its {LEVEL} interval.{cut}", "drawing": dots}]
    spans = [abs(end) for row in differences for end in (row.value, row.low, row.high) if end is not None]
    if spans:
        most = max(*spans, margin) * 1.1
        dots = drawings.dots(differences, title="Differences", axis="points", limits=(-most, most), band=margin)
        about = f"Difference from the baseline with its {LEVEL} interval. Shaded: within {points(margin)}."
        drawn.append({"caption": about, "drawing": dots})
        changed = drawings.flips(flips, title="Flips")
        about = f"Flips: {define_flips(max(row['k'] for row in rows))}."
        drawn.append({"caption": about, "drawing": changed})
    return drawn


def _attention(one: AttentionFile, slots: dict[str, int]) -> dict[str, Any]:
    """The curves of one file: one panel per head, all on one scale."""
    peaks = [value for curve in one.means for value in (*curve.mean, *(curve.high or ())) if value is not None]
    top = max(peaks, default=1.0) * 1.02 or 1.0
    panels = [
        drawings.panel(list(curves), slots, top=top, title=head)
        for head, curves in groupby(one.means, key=lambda curve: curve.head)
    ]
    shown = [name for name in slots if any(curve.condition == name for curve in one.means)]
    return {
        "name": one.name,
        "notes": one.notes,
        "panels": panels,
        "prompts": max((curve.prompts for curve in one.means), default=0),
        "legend": [(label(name), slots[name]) for name in shown],
    }


_FACTS = {
    "made": ("created",),
    "model": ("model",),
    "weights": ("model_sha256",),
    "engine": ("engine", "backend"),
    "sampling": ("sampling",),
    "dataset": ("dataset_name",),
    "dataset's hash": ("dataset",),
    "prompts' hash": ("prompts_sha256",),
    "task": ("task_version",),
    "grader": ("grader_version", "metric"),
    "seed": ("seed",),
    "git revision": ("git_revision",),
}
"""Facts about how a run was made, as title and keys. The first key that a run has is shown."""


def _receipt(name: str, facts: Mapping[str, Any], receipt: Mapping[str, Any]) -> dict[str, Any]:
    """How a run was made: `_FACTS`, and the whole receipt as JSON."""
    if facts.get("greedy"):
        facts = {**facts, "sampling": "greedy"}
    found = {title: [facts[key] for key in keys if facts.get(key) not in (None, "")] for title, keys in _FACTS.items()}
    return {"name": name, "facts": {title: said[0] for title, said in found.items() if said}, "all": _json(receipt)}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)


def _refuse_foreign(content: Content, attention: Sequence[AttentionFile]) -> None:
    """Raise RunError if curves are of another model or of prompts that no run has."""
    known = {row["prompt"].sha256 for row in content.samples}
    for one in attention:
        if one.model not in content.models:
            raise RunError(
                f"{one.name}: the traces are of the model {one.model}: expected that of a run in this report, "
                f"{' or '.join(content.models)}. Leave the file out, or give its run too."
            )
        if strange := [prompt for prompt in one.prompts if prompt.prompt_sha256 not in known]:
            raise RunError(
                f"{one.name}: {len(strange)} of {len(one.prompts)} traced prompts (first: problem "
                f"{strange[0].problem_id}, {strange[0].condition}) are in no run of this report. Give the run that "
                "was probed, or probe this one."
            )
