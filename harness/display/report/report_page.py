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
from harness.constants import Row
from harness.display.comparison_remarks import (
    describe_place,
    has_several_settings,
    remark_noise,
    warn_of_ungraded,
)
from harness.display.comparison_tables import make_comparison_table, rows_of_conditions
from harness.display.figures.figure_kinds import draw_figures
from harness.display.report.attention_view import describe_conditions
from harness.display.report.page_template import fill_template, prepare_page_file
from harness.display.report.report_samples import pack_samples, read_samples
from harness.display.side_tables import make_shown_side_tables
from harness.display.value_texts import (
    define_flips,
    format_estimate,
    format_interval,
    format_margin,
    format_p_value,
    format_verdict,
    label,
    replace_accuracy,
)
from harness.errors import list_first
from harness.experiment.conditions import read_contrast
from harness.runs.run_reader import Run
from harness.runs.stored_files import explain_write_errors, write_whole
from harness.runs.versions_and_hashes import receipt_line

MOST_CARD_ROWS = 4
"""The most comparisons that the card lists."""
NO_NOISE_TEXT = (
    "No repeat run and no positive control were made, so noise and sensitivity are unknown."
)


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
    prepare_page_file(output)  # first, so that a mistake is reported before the long work
    loaded_runs = [Run.load(run, metric=metric) for run in runs]
    samples = read_samples(loaded_runs)
    board = make_leaderboard(loaded_runs, baseline=baseline)
    page = fill_template("page.html.jinja", _collect_facts(loaded_runs, samples, board))
    with explain_write_errors(output):
        write_whole(output, page)
    return len(page.encode())


def _collect_facts(
    runs: Sequence[Run], samples: Sequence[Row], board: Leaderboard
) -> dict[str, Any]:
    """The values of the template's variables."""
    rows = rows_of_conditions(board, board.comparison)
    # rows with another baseline are named after their contrasts, not after conditions
    conditions = describe_conditions(
        [row["condition"] for row in rows if row["baseline"] == board.baseline]
    )
    packed_facts, packed_blocks = pack_samples(
        samples, baseline=board.baseline, conditions=conditions, contrasts=rows
    )
    images = []
    if any(row["role"] != "baseline" for row in rows):
        # without requested kinds, these are all figures that can be drawn, the forest plot first
        images = [
            _embed_figure(figure, kind) for kind, (figure, _) in draw_figures(board, runs, [])
        ]
    # each receipt is a line that unfolds into the run's own receipt as JSON
    lines_and_receipts = [
        (
            receipt_line(receipt).removeprefix("receipt: "),
            json.dumps(run.receipt, indent=1, ensure_ascii=False, default=str),
        )
        for run, receipt in zip(runs, board.receipts, strict=True)
    ]
    return {
        "title": " + ".join(Path(run.name).resolve().name for run in runs),
        "card": make_card(board),
        "images": images,
        "results": make_comparison_table(board),
        "define_flips": define_flips(rows),
        "further_tables": make_shown_side_tables(board).values(),
        "margin": format_margin(rows[0]["margin"]),
        "board": board,
        "receipts": lines_and_receipts,
        "samples": len(samples),
        "index": packed_facts,
        "blocks": packed_blocks,
    }


def _embed_figure(figure: Figure, name: str) -> dict[str, str]:
    """A figure as an SVG image inside the page, with its note as caption."""
    caption = " ".join(figure.get_supxlabel().split())
    # The note is written below the image instead, as text that can be selected and wraps. The
    # layout is fixed first, because the axes would otherwise take the room of the note.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    figure.supxlabel("")
    image = BytesIO()
    figure.savefig(image, format="svg", bbox_inches="tight", pad_inches=0.05)
    return {"svg": base64.b64encode(image.getvalue()).decode(), "name": name, "caption": caption}


def make_card(board: Leaderboard) -> dict[str, Any]:
    """The question, the verdicts that answer it, and what makes them doubtful."""
    rows = rows_of_conditions(board, board.comparison)
    card_rows = _choose_card_rows(board, rows)
    models = {row["model"] for row in rows}
    models_text = models.pop() if len(models) == 1 else f"{len(models)} models"
    # logs do not name their datasets
    datasets = [receipt.get("dataset_name") or "the problems" for receipt in board.receipts]
    subject_text = f"{models_text} on {', '.join(dict.fromkeys(datasets))}"
    question = f"How accurate is {subject_text}?"
    if card_rows:
        quoted_labels = dict.fromkeys(f'"{label(_name_condition(row))}"' for row in card_rows)
        question = (
            f"Does {list_first(list(quoted_labels), MOST_CARD_ROWS)} change the accuracy of "
            f"{subject_text}?"
        )
    has_settings = has_several_settings(card_rows)
    noise_text = " ".join(remark.sentence for remark in remark_noise(board))
    return {
        "question": replace_accuracy(question, board.score),
        "findings": [
            _describe_finding(board, row, has_settings) for row in card_rows[:MOST_CARD_ROWS]
        ],
        "facts": {
            "Ungraded": " ".join(warn_of_ungraded(board)),
            "Noise and control": noise_text or NO_NOISE_TEXT,
        },
    }


def _describe_finding(board: Leaderboard, row: Row, has_settings: bool) -> dict[str, str]:
    """One answer of the card: the verdict, and a text with the difference and the place."""
    text = _describe_difference(row)
    if place := describe_place(board, row):
        text += f". {place[0].upper()}{place[1:]}"
    if has_settings:
        text = f"{row['model']}, {row['layout']}, {text}"
    return {
        "kind": row["verdict"] or row["role"],
        "verdict": _describe_verdict(row),
        "text": replace_accuracy(text, board.score),
    }


def _choose_card_rows(board: Leaderboard, rows: Sequence[Row]) -> Sequence[Row]:
    """The rows that answer the question: all contrasts, or those of the primary condition.

    The primary contrast comes first, then the other tested ones of its condition.
    """
    compared_rows = [row for row in rows if row["role"] != "baseline"]
    if not board.primary:
        return compared_rows
    condition, _ = read_contrast(board.primary)
    condition_rows = [
        row
        for row in compared_rows
        if row["role"] == "tested" and _name_condition(row) == condition
    ]
    condition_rows.sort(key=lambda row: not row["primary"])
    return condition_rows or compared_rows


def _name_condition(row: Row) -> str:
    """The condition of a row, also if the row is named after its contrast: `mless - wo`."""
    return str(row["condition"]).removesuffix(f" - {row['baseline']}")


def _describe_verdict(row: Row) -> str:
    """The verdict for a sentence, with its margin."""
    margin = row["margin"]
    if row["verdict"] == "equivalent":
        return f"equivalent within {format_margin(margin)}"
    # the place among other texts is in the sentence beside it, so it is left out here
    return format_verdict(
        row["verdict"], row["role"], row["within_margin"], margin, row["by_format"]
    )


def _describe_difference(row: Row) -> str:
    """The difference of a row with names, unit, interval and adjusted p, if there is one."""
    low = row["low"]
    high = row["high"]
    names_text = f"{label(_name_condition(row))} minus {label(row['baseline'])}"
    # not `format_difference`, because the unit stands before the interval
    text = (
        f"{names_text}: {format_estimate(row['difference'], low, high)} points "
        f"{format_interval(low, high, has_sign=True)}".rstrip()
    )
    if row["p_adjusted"] is not None:
        text += f", adjusted p {format_p_value(row['p_adjusted'])}"
    return text
