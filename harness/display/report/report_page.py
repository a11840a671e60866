"""Write the report: fill the template with the card, the forest plot, tables and samples.

The card is at the top: the question, the verdicts that answer it, and what makes them doubtful.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harness.analysis.result_tables import Leaderboard, make_leaderboard
from harness.constants import FigureKind, Row
from harness.display.comparison_remarks import (
    describe_place,
    has_several_settings,
    remark_noise,
    warn_of_ungraded,
)
from harness.display.comparison_tables import rows_of_conditions, show_comparison
from harness.display.figures.figure_kinds import draw_figures
from harness.display.report.attention_view import describe_conditions
from harness.display.report.page_template import fill_template, refuse_other_file
from harness.display.report.report_samples import pack_samples, read_samples
from harness.display.side_tables import show_side_tables
from harness.display.value_texts import (
    define_flips,
    difference,
    label,
    name_score,
    p_value,
    points,
    verdict,
)
from harness.errors import list_first
from harness.experiment.conditions import read_contrast
from harness.runs.run_reader import Run
from harness.runs.stored_files import clear_messages, write_whole
from harness.runs.versions_and_hashes import receipt_line

MOST_CARD_ROWS = 4
"""The most comparisons that the card lists."""


def write_report(
    runs: Sequence[Path | Mapping[str, Path]],
    output: Path,
    *,
    baseline: str | None = None,
    metric: str | None = None,
) -> int:
    """Write one HTML file about finished runs.

    Args:
        runs: Run folders, lm-eval output folders or sample logs; mappings of condition to sample
            log.
        output: The HTML file. Its folder is made if it is missing.
        baseline: The condition that all others are compared with; None for the runs' own.
        metric: The metric that separates right from wrong in logs of other tasks.

    Returns:
        Its size in bytes.

    Raises:
        RunError: a run is missing or unfinished.
        ComparisonError: the runs cannot be compared.
        JournalError: the file cannot be written.
    """
    refuse_other_file(output)  # Before the work, which takes a while.
    loaded_runs = [Run.load(run, metric=metric) for run in runs]
    samples = read_samples(loaded_runs)
    board = make_leaderboard(loaded_runs, baseline=baseline)
    page = fill_template("page.html.jinja", _collect_facts(loaded_runs, samples, board))
    with clear_messages(output):
        write_whole(output, page)
    return len(page.encode())


def _collect_facts(
    runs: Sequence[Run], samples: Sequence[Row], board: Leaderboard
) -> dict[str, Any]:
    """The values of the template's variables."""
    rows = rows_of_conditions(board, board.comparison)
    names = [row["condition"] for row in rows if row["baseline"] == board.baseline]
    conditions = describe_conditions(names)
    index, blocks = pack_samples(samples, baseline=board.baseline, conditions=conditions, rows=rows)
    figures = {}
    if any(row["role"] != "baseline" for row in rows):
        for kind, (figure, _) in draw_figures(board, runs, []):
            figures[kind] = _embed(figure, kind)
    forest = figures.pop(FigureKind.FOREST, None)
    # a line that summarizes each receipt, and all of it as JSON
    receipts = [
        (
            receipt_line(facts).removeprefix("receipt: "),
            json.dumps(run.receipt, indent=1, ensure_ascii=False, default=str),
        )
        for run, facts in zip(runs, board.receipt, strict=True)
    ]
    return {
        "title": " + ".join(Path(run.name).resolve().name for run in runs),
        "card": make_card(board),
        "forest": forest,
        "figures": figures.values(),
        "results": show_comparison(board),
        "define_flips": define_flips(max(row["repeats"] for row in rows)),
        "further_tables": show_side_tables(board).values(),
        "margin": points(float(rows[0]["margin"])),
        "baseline": board.baseline,
        "receipts": receipts,
        "samples": len(samples),
        "reference_conditions": len(board.reference_conditions),
        "index": index,
        "blocks": blocks,
    }


def _embed(figure: Figure, name: str) -> dict[str, str]:
    """A figure as an SVG image inside the page, with its note as caption."""
    caption = " ".join(figure.get_supxlabel().split())
    # the note stands below the image as text, which can be selected and wraps; its room is cut off
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    figure.supxlabel("")
    image = BytesIO()
    figure.savefig(image, format="svg", bbox_inches="tight", pad_inches=0.05)
    return {"svg": base64.b64encode(image.getvalue()).decode(), "name": name, "caption": caption}


def make_card(board: Leaderboard) -> dict[str, Any]:
    """The question, the verdicts that answer it, and what makes them doubtful."""
    rows = rows_of_conditions(board, board.comparison)
    compared_rows = [row for row in rows if row["role"] != "baseline"]
    tested_name = read_contrast(board.primary)[0] if board.primary else None
    primary_rows = [
        row
        for row in sorted(compared_rows, key=lambda row: not row["primary"])
        if row["role"] == "tested" and _name_condition(row) == tested_name
    ]
    card_rows = primary_rows or compared_rows
    models = {str(row["model"]) for row in rows}
    model = models.pop() if len(models) == 1 else f"{len(models)} models"
    # logs do not name their datasets
    datasets = [facts.get("dataset_name") or "the problems" for facts in board.receipt]
    subject = f"{model} on {', '.join(dict.fromkeys(datasets))}"
    question = f"How accurate is {subject}?"
    if card_rows:
        conditions = dict.fromkeys(f'"{label(_name_condition(row))}"' for row in card_rows)
        names = list_first(list(conditions), MOST_CARD_ROWS)
        question = f"Does {names} change the accuracy of {subject}?"
    question = name_score(question, board.score)
    has_settings = has_several_settings(card_rows)
    findings = []
    for row in card_rows[:MOST_CARD_ROWS]:
        text = _describe_difference(row)
        if place := describe_place(board, row):
            text += f". {place[0].upper()}{place[1:]}"
        if has_settings:
            text = f"{row['model']}, {row['layout']}, {text}"
        kind = row["role"] if row["verdict"] is None else row["verdict"]
        finding = {"kind": kind, "verdict": _describe_verdict(row), "text": text}
        findings.append({key: name_score(text, board.score) for key, text in finding.items()})
    noise = " ".join(remark for remark, _ in remark_noise(board))
    if not noise:
        noise = (
            "No repeat run and no positive control were made, so noise and sensitivity are unknown."
        )
    facts = {"Ungraded": " ".join(warn_of_ungraded(board)), "Noise and control": noise}
    return {"question": question, "findings": findings, "facts": facts}


def _name_condition(row: Row) -> str:
    """The condition of a row, whose name is a contrast if the baseline is unusual."""
    return str(row["condition"]).removesuffix(f" - {row['baseline']}")


def _describe_verdict(row: Row) -> str:
    """The verdict for a sentence, with its margin."""
    margin = row["margin"]
    if row["verdict"] == "equivalent" and margin:
        return f"equivalent within {points(margin)}"
    # the place among other texts is in the sentence beside it, so it is left out here
    return verdict(row["verdict"], row["role"], row["within_margin"], margin, row["by_format"])


def _describe_difference(row: Row) -> str:
    # separated, because the unit stands between a difference and its interval
    change, _, ends = difference(row["difference"], row["low"], row["high"]).partition(" ")
    names = f"{label(_name_condition(row))} minus {label(row['baseline'])}"
    text = f"{names}: {change} points {ends}".rstrip()
    if row["p_adjusted"] is not None:
        text += f", adjusted p {p_value(row['p_adjusted'])}"
    return text
