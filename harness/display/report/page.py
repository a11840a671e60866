"""Write the report: fill the template with the card, the forest plot, tables, curves and details."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from harness.analysis.comparison import COLUMNS, compare
from harness.analysis.leaderboard import Leaderboard, make_leaderboard
from harness.display.comparison_tables import comparison_grid, heading, without_yardsticks
from harness.display.figures import style
from harness.display.figures.dots import draw_forest
from harness.display.grid import Grid, make_grid, number_column, row_column, word_column
from harness.display.numbers import LEVEL, accuracy, count, define_flips, label, number, p_value, points, signed
from harness.display.report.attention import AttentionFile
from harness.display.report.content import Content, read_content
from harness.display.report.details import make_details
from harness.display.report.summary import make_card
from harness.display.side_tables import audit_grid, mediator_grid, pooled_grid, yardstick_grid
from harness.display.visible import visible
from harness.errors import RunError
from harness.experiment.conditions import BASELINE
from harness.runs.comparable import join
from harness.runs.folder import refuse_own_file
from harness.runs.receipts import git_revision, receipt_line, versions
from harness.runs.stored_files import clear_messages, make_place, write_whole

PALETTE = (*style.COLOURS.values(), *(look.colour for look in style.looks("0123").values()))
"""The conditions' colours and the spare ones. The style sheet has each as `--s0`, `--s1` and so on."""


def write_report(
    runs: Sequence[Path | Mapping[str, Path]],
    output: Path,
    *,
    attention: Sequence[AttentionFile] = (),
    baseline: str = BASELINE,
    margin: float | None = None,
    metric: str | None = None,
) -> int:
    """Write one HTML file about finished runs.

    Args:
        runs: Run folders, lm-eval output folders or sample logs; mappings of condition to sample log.
        output: The HTML file. Its folder is made if it is missing.
        attention: Attention curves of prompts of these runs.
        baseline: The condition that the others are compared with.
        margin: Equivalence margin, points; None is the default.
        metric: The metric that tells right from wrong in logs of other tasks.

    Returns:
        Its size in bytes.

    Raises:
        RunError: a run is missing or unfinished, or curves are of prompts that no run has.
        ComparisonError: the runs cannot be compared.
        JournalError: the file cannot be written.
    """
    refuse_own_file(output)
    with clear_messages(output):  # before the work, which takes a while
        make_place(output)
        if not os.access(output.parent, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    content = read_content(runs, metric=metric)
    _refuse_foreign(content, attention)
    board = make_leaderboard(content.runs, baseline=baseline, margin=margin)
    rows = without_yardsticks(board, board.comparison)
    parts = _parts(content, attention, board, rows)
    details = make_details(
        content,
        baseline=baseline,
        conditions=_conditions([row for row in rows if row["baseline"] == baseline]),
        rows=rows,
    )
    page = _fill({**parts, "details": details})
    with clear_messages(output):
        write_whole(output, page)
    return len(page.encode())


def _parts(
    content: Content, attention: Sequence[AttentionFile], board: Leaderboard, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """All that the template shows except the details of samples."""
    margin = float(rows[0]["margin"])
    several = any(row["verdict"] != "baseline" for row in rows)
    alternative = "Forest plot: each condition's difference from the baseline in points. The table has its numbers."
    return {
        "title": " + ".join(content.names),
        "card": make_card(board),
        "forest": _embed(draw_forest(board.comparison, pooled=board.pooled), alternative) if several else None,
        "results": comparison_grid(board),
        "define_flips": define_flips(max(row["k"] for row in rows)),
        "more": _more_columns(board, rows),
        "others": _other_tables(board, content, margin),
        "attention": [_attention(one) for one in attention],
        "margin": points(margin),
        "baseline": board.baseline,
        "receipts": [
            *(
                (receipt_line(facts).removeprefix("receipt: "), _json(one.receipt))
                for facts, one in zip(board.receipt, content.runs, strict=True)
            ),
            *((f"traces {one.name}", _json(one.receipt)) for one in attention),
        ],
        "made_by": {"git_revision": git_revision(), "versions": versions()},
        "samples": len(content.samples),
        "yardsticks": len(board.yardsticks),
    }


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
    css, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    page = templates.get_template("page.html.jinja").render(
        parts, style=Markup(css), script=Markup(script), style_hash=_hash(css), script_hash=_hash(script)
    )
    return page.encode("utf-8", "replace").decode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _conditions(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Name, label and colour of each condition, which is its colour in every figure."""
    looks = style.looks(row["condition"] for row in rows)
    return [{"name": name, "label": label(name), "slot": PALETTE.index(look.colour)} for name, look in looks.items()]


def _more_columns(board: Leaderboard, rows: Sequence[Mapping[str, Any]]) -> Grid:
    """What the table of comparisons has no room for."""
    _, words = heading(board)
    columns = [
        *(word_column(name) for name in words if name not in ("n", "k")),
        row_column("accuracy %", "accuracy", accuracy, f"{COLUMNS['accuracy']}, with its {LEVEL} score interval"),
        *(
            number_column(header, name, write, COLUMNS[name])
            for header, name, write in (
                ("SE", "standard_error", number),
                ("n", "n", count),
                ("k", "k", count),
                ("p", "p", p_value),
                ("tests", "tests", count),
                ("A/A", "aa_difference", signed),
            )
            if any(row[name] is not None for row in rows)
        ),
    ]
    return make_grid("More columns", columns, rows)


def _other_tables(board: Leaderboard, content: Content, margin: float) -> list[Grid]:
    """All models together, yardsticks, mediators, all graders, and the comparison by level and by subject."""
    found = [
        *filter(None, [pooled_grid(board.pooled, board.study), yardstick_grid(board)]),
        mediator_grid(board),
        audit_grid(board),
    ]
    frame = join(content.runs)
    frame = frame[~frame["condition"].isin(board.yardsticks)]
    for column in ("level", "subject"):
        if frame[column].nunique() > 1:
            rows = frame.sort_values(column, kind="stable", ignore_index=True)
            table = compare(rows, baseline=board.baseline, margin=margin, by=[column])
            split = replace(board, comparison=table, by=(column,), contrasts=None, primary=None, yardsticks={})
            found.append(replace(comparison_grid(split), title=f"By {column}"))
    return found


def _attention(one: AttentionFile) -> dict[str, Any]:
    """The figure of one file, and what a reader must know about it."""
    words = "Mean attention weight by token position: a panel for each head, a line for each condition."
    return {"name": one.name, "notes": one.notes, "figure": _embed(one.figure, words)}


def _embed(figure: Figure, alternative: str) -> dict[str, str]:
    """A figure as an SVG image inside the page, its note as the caption, and what it shows for those who cannot see."""
    caption = " ".join(figure.get_supxlabel().split())
    figure.supxlabel("")
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight", pad_inches=0.05)
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}"
    return {"source": source, "alternative": alternative, "caption": caption}


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
        if strange := [(problem, condition) for problem, condition, sha256 in one.prompts if sha256 not in known]:
            raise RunError(
                f"{one.name}: {len(strange)} of {len(one.prompts)} traced prompts (first: problem "
                f"{', '.join(strange[0])}) are in no run of this report. Give the run that was probed, or probe this "
                "one."
            )
