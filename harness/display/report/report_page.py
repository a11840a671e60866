"""Write the report: fill the template with the card, the forest plot, tables, curves and samples.

The card is at the top: the question, the verdicts that answer it, and facts about the runs.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from harness.analysis.result_tables import Leaderboard, make_leaderboard, task_name
from harness.display.comparison_remarks import has_several_settings, remark_noise, warn_of_ungraded
from harness.display.comparison_tables import rows_of_conditions, show_comparison
from harness.display.figures import figure_style
from harness.display.figures.interval_rows import draw_forest
from harness.display.format_table import Row, Table
from harness.display.format_values import (
    define_flips,
    difference,
    label,
    p_value,
    plural,
    points,
    verdict,
    visible,
)
from harness.display.report.report_samples import pack_samples, read_samples
from harness.display.side_tables import show_side_tables
from harness.errors import ConfigError, RunError, list_first
from harness.runs.attention_file import AttentionFile
from harness.runs.read_runs import Run
from harness.runs.stored_files import clear_messages, is_stored, write_whole
from harness.runs.versions_and_hashes import receipt_line, software

CARD_ROWS = 4
"""The most comparisons that the card lists."""

PALETTE = tuple(look.colour for look in figure_style.looks([*figure_style.LOOKS, *"0123"]).values())
"""The colours of conditions and the spare ones: `--s0`, `--s1` and so on in the style sheet."""
FOREST = (
    "Forest plot: each condition's difference from the baseline in points. "
    "The table has its numbers."
)
CURVES = (
    "Mean attention weight by token position: a panel for each head, a line for each condition."
)


def write_report(
    runs: Sequence[Path | Mapping[str, Path]],
    output: Path,
    *,
    attention: Sequence[AttentionFile] = (),
    baseline: str | None = None,
    margin: float | None = None,
    metric: str | None = None,
) -> int:
    """Write one HTML file about finished runs.

    Args:
        runs: Run folders, lm-eval output folders or sample logs; mappings of condition to sample
            log.
        output: The HTML file. Its folder is made if it is missing.
        attention: Attention curves of prompts of these runs.
        baseline: The condition that all others are compared with; None for the runs' own.
        margin: Equivalence margin, points; None is the default.
        metric: The metric that separates right from wrong in logs of other tasks.

    Returns:
        Its size in bytes.

    Raises:
        RunError: a run is missing or unfinished, or curves are of prompts that no run has.
        ComparisonError: the runs cannot be compared.
        JournalError: the file cannot be written.
    """
    with clear_messages(output):  # Before the work, which takes a while.
        output.parent.mkdir(parents=True, exist_ok=True)
        if is_stored(output) and not output.suffix.startswith(".htm"):
            raise ConfigError(
                f"{output} is no report: expected an .html file, or a file that does not exist."
            )
    loaded = [Run.load(run, metric=metric) for run in runs]
    samples = read_samples(loaded)
    for curves in attention:
        _check_attention(curves, loaded, samples)
    board = make_leaderboard(loaded, baseline=baseline, margin=margin)
    page = _fill_template(_collect_facts(loaded, samples, attention, board))
    with clear_messages(output):
        write_whole(output, page)
    return len(page.encode())


def _collect_facts(
    runs: Sequence[Run],
    samples: Sequence[Row],
    attention: Sequence[AttentionFile],
    board: Leaderboard,
) -> dict[str, Any]:
    """The values of the template's variables."""
    rows = rows_of_conditions(board, board.comparison)
    looks = figure_style.looks(
        row["condition"] for row in rows if row["baseline"] == board.baseline
    )
    conditions = [
        {"name": name, "label": label(name), "slot": PALETTE.index(look.colour)}
        for name, look in looks.items()
    ]
    index, blocks = pack_samples(samples, baseline=board.baseline, conditions=conditions, rows=rows)
    forest = None
    if any(row["role"] != "baseline" for row in rows):
        figure = draw_forest(board.comparison, pooled=board.side_tables["pooled"])
        forest = _embed(figure, FOREST)
    curves = [
        {"name": file.name, "notes": file.notes, "figure": _embed(file.figure, CURVES)}
        for file in attention
    ]
    return {
        "title": " + ".join(Path(run.name).resolve().name for run in runs),
        "card": make_card(board),
        "forest": forest,
        "results": show_comparison(board),
        "define_flips": define_flips(max(row["repeats"] for row in rows)),
        "further_tables": _make_further_tables(board, runs),
        "attention": curves,
        "margin": points(float(rows[0]["margin"])),
        "baseline": board.baseline,
        "receipts": _list_receipts(runs, attention, board),
        "made_by": software(),
        "samples": len(samples),
        "reference_conditions": len(board.reference_conditions),
        "index": index,
        "blocks": blocks,
    }


def _list_receipts(
    runs: Sequence[Run], attention: Sequence[AttentionFile], board: Leaderboard
) -> Iterator[tuple[str, str]]:
    """The receipts of runs and traces: a line that summarizes it, and all of it as JSON."""
    receipts = []
    for facts, run in zip(board.receipt, runs, strict=True):
        receipts.append((receipt_line(facts).removeprefix("receipt: "), run.receipt))
    for file in attention:
        receipts.append((f"traces {file.name}", file.receipt))
    for line, receipt in receipts:
        yield line, json.dumps(receipt, indent=1, ensure_ascii=False, default=str)


def _fill_template(facts: Mapping[str, Any]) -> str:
    """The page. Lone surrogates, which no file can hold, become question marks."""
    templates = Environment(
        loader=PackageLoader("harness.display.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["visible"] = visible
    code: dict[str, str] = {}
    for kind, name in {"style": "style.css", "script": "script.js"}.items():
        text = files("harness.display.report").joinpath(name).read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        # our own code is not escaped; the page's policy allows nothing but what has this hash
        code[kind] = Markup(text)
        code[f"{kind}_hash"] = f"sha256-{digest}"
    page = templates.get_template("page.html.jinja").render(facts, **code)
    return page.encode("utf-8", "replace").decode()


def _make_further_tables(board: Leaderboard, runs: Sequence[Run]) -> list[Table]:
    """All side tables, and the comparison by level and by subject."""
    tables = [*show_side_tables(board).values()]
    margin = float(board.comparison["margin"].iloc[0])
    for column in ("level", "subject"):
        split = make_leaderboard(runs, baseline=board.baseline, margin=margin, by=[column])
        if split.comparison[column].nunique() > 1:
            tables.append(replace(show_comparison(split), title=f"By {column}"))
    return tables


def _embed(figure: Figure, alternative: str) -> dict[str, str]:
    """A figure as an SVG image inside the page, with its note as caption and a text alternative."""
    caption = " ".join(figure.get_supxlabel().split())
    # the note stands below the image as text, which can be selected and wraps
    figure.supxlabel("")
    image = BytesIO()
    figure.savefig(image, format="svg", bbox_inches="tight", pad_inches=0.05)
    source = f"data:image/svg+xml;base64,{base64.b64encode(image.getvalue()).decode()}"
    return {"source": source, "alternative": alternative, "caption": caption}


def _check_attention(attention: AttentionFile, runs: Sequence[Run], samples: Sequence[Row]) -> None:
    """Raise RunError if curves are of a model or of prompts that no run has."""
    models = []
    for run in runs:
        model = run.about["model"] if run.is_logs else run.receipt["model"]["name"]
        models.append(str(model))
    if attention.model not in models:
        raise RunError(
            f"{attention.name}: traces of the model {attention.model}: "
            f"expected that of a run, {' or '.join(models)}."
        )
    hashes = {row["prompt"].prompt_sha256 for row in samples}
    missing = [
        f"{problem}, {condition}"
        for problem, condition, sha256 in attention.prompts
        if sha256 not in hashes
    ]
    if missing:
        raise RunError(
            f"{attention.name}: {len(missing)} of {len(attention.prompts)} traced prompts "
            f"(first: problem {missing[0]}) are in no run of this report."
        )


def make_card(board: Leaderboard) -> dict[str, Any]:
    """The question, the verdicts that answer it, counts of all verdicts, and facts."""
    rows = rows_of_conditions(board, board.comparison)
    compared = [row for row in rows if row["role"] != "baseline"]
    primary = [row for row in compared if row["primary"]]
    answering = primary if primary else compared
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    model = models[0] if len(models) == 1 else f"{len(models)} models"
    subject = f"{model} on {task_name(board.receipt)}"
    question = f"How accurate is {subject}?"
    if answering:
        conditions = dict.fromkeys(f'"{label(row["condition"])}"' for row in answering)
        names = list_first(list(conditions), CARD_ROWS)
        question = f"Does {names} change the accuracy of {subject}?"
    has_settings = has_several_settings(answering)
    answers = []
    for row in answering[:CARD_ROWS]:
        text = _describe_difference(row)
        if has_settings:
            text = f"{row['model']}, {row['layout']}, {text}"
        kind = row["role"] if row["verdict"] is None else row["verdict"]
        answers.append({"kind": kind, "verdict": _describe_verdict(row), "text": text})
    counts = [*_count_verdicts(compared, registered=board.contrasts is not None)]
    if not counts:
        counts = ["There is only one condition, so nothing is compared."]
    facts = _list_facts(board, rows, models)
    return {"question": question, "answers": answers, "counts": counts, "facts": facts}


def _describe_verdict(row: Row) -> str:
    """The verdict for a sentence, with its margin."""
    margin = row["margin"]
    if row["verdict"] == "equivalent" and margin:
        return f"equivalent within {points(margin)}"
    return verdict(row["verdict"], row["role"], row["within_margin"], margin, row["by_format"])


def _describe_difference(row: Row) -> str:
    change, _, ends = difference(row["difference"], row["low"], row["high"]).partition(" ")
    text = f"{label(row['condition'])}: {change} points {ends}".rstrip()
    if row["p_adjusted"] is not None:
        text += f", adjusted p {p_value(row['p_adjusted'])}"
    return text


def _count_verdicts(compared: Sequence[Row], *, registered: bool) -> Iterator[str]:
    """A sentence with the number of each verdict, for tested and for exploratory contrasts."""
    tested = "named before the run" if registered else "not named before the run"
    for role, description in {"tested": tested, "exploratory": "not named before the run"}.items():
        counts = Counter(
            _describe_verdict({**row, "within_margin": False})
            for row in compared
            if row["role"] == role
        )
        if counts:
            total = counts.total()
            verdicts = ", ".join(f"{count} {word}" for word, count in counts.items())
            yield f"{total} {plural('comparison', total)} {description}: {verdicts}."


def _list_facts(board: Leaderboard, rows: Sequence[Row], models: Sequence[str]) -> dict[str, str]:
    """Facts about the runs by title; those without a text are left out."""
    sizes = []
    for row in rows:
        if row["role"] == "baseline":
            problems = f"{row['problems']} {plural('problem', row['problems'])}"
            sizes.append(f"{problems}, {row['repeats']} {plural('sample', row['repeats'])} each")
    sizes_text = "; ".join(dict.fromkeys(sizes))
    dates = sorted(str(run["created"])[:10] for run in board.receipt if run.get("created"))
    noise = " ".join(remark for remark, _ in remark_noise(board))
    if not noise:
        noise = (
            "No repeat run and no positive control were made, so noise and sensitivity are unknown."
        )
    facts = {
        "Model": ", ".join(models),
        "Dataset": f"{task_name(board.receipt)} ({sizes_text})",
        "Date": " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]])),
        "Ungraded": " ".join(warn_of_ungraded(board)),
        "Noise and control": noise,
    }
    return {title: text for title, text in facts.items() if text}
