"""Write the report: fill the template with the card, the forest plot, tables, curves and samples.

The card stands first: what was asked, the answer, and what stands behind it.
"""

from __future__ import annotations

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

from harness.analysis.compare_with_baseline import compare
from harness.analysis.other_texts_and_instructions import merge_instructions
from harness.analysis.result_tables import Leaderboard, make_leaderboard, task_name
from harness.display.comparison_tables import (
    remark_noise,
    remark_ungraded,
    rows_of_conditions,
    show_comparison,
)
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
from harness.runs.join_runs import join
from harness.runs.journal import clear_messages, is_stored, write_whole
from harness.runs.read_runs import Run
from harness.runs.versions_and_hashes import receipt_line, software

CARD_ROWS = 4
"""Comparisons that the report's card names one by one."""

PALETTE = tuple(look.colour for look in figure_style.looks([*figure_style.LOOKS, *"0123"]).values())
"""The conditions' colours and the spare ones. The style sheet has each as `--s0`, `--s1` and so on."""
FOREST = "Forest plot: each condition's difference from the baseline in points. The table has its numbers."
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
        runs: Run folders, lm-eval output folders or sample logs; mappings of condition to sample log.
        output: The HTML file. Its folder is made if it is missing.
        attention: Attention curves of prompts of these runs.
        baseline: The condition that the others are compared with; None for the runs' own.
        margin: Equivalence margin, points; None is the default.
        metric: The metric that tells right from wrong in logs of other tasks.

    Returns:
        Its size in bytes.

    Raises:
        RunError: a run is missing or unfinished, or curves are of prompts that no run has.
        ComparisonError: the runs cannot be compared.
        JournalError: the file cannot be written.
    """
    with clear_messages(output):  # before the work, which takes a while
        output.parent.mkdir(parents=True, exist_ok=True)
        if is_stored(output) and not output.suffix.startswith(".htm"):
            raise ConfigError(
                f"{output} is a file of another kind, such as a run's: expected an .html file, or none."
            )
    read = [Run.load(run, metric=metric) for run in runs]
    samples = read_samples(read)
    _refuse_foreign(read, samples, attention)
    board = make_leaderboard(read, baseline=baseline, margin=margin)
    page = _fill(_parts(read, samples, attention, board))
    with clear_messages(output):
        write_whole(output, page)
    return len(page.encode())


def _parts(
    runs: Sequence[Run],
    samples: Sequence[Row],
    attention: Sequence[AttentionFile],
    board: Leaderboard,
) -> dict[str, Any]:
    """All that the template shows."""
    rows = rows_of_conditions(board, board.comparison)
    looks = figure_style.looks(
        row["condition"] for row in rows if row["baseline"] == board.baseline
    )
    conditions = [
        {"name": name, "label": label(name), "slot": PALETTE.index(look.colour)}
        for name, look in looks.items()
    ]
    index, blocks = pack_samples(samples, baseline=board.baseline, conditions=conditions, rows=rows)
    several = any(row["role"] != "baseline" for row in rows)
    forest = draw_forest(board.comparison, pooled=board.side_tables["pooled"]) if several else None
    receipts = [
        (receipt_line(about).removeprefix("receipt: "), one.receipt)
        for about, one in zip(board.receipt, runs, strict=True)
    ]
    receipts += [(f"traces {one.name}", one.receipt) for one in attention]
    return {
        "title": " + ".join(Path(one.name).resolve().name for one in runs),
        "card": make_card(board),
        "forest": forest and _embed(forest, FOREST),
        "results": show_comparison(board),
        "define_flips": define_flips(max(row["repeats"] for row in rows)),
        "others": _other_tables(board, runs),
        "attention": [
            {"name": one.name, "notes": one.notes, "figure": _embed(one.figure, CURVES)}
            for one in attention
        ],
        "margin": points(float(rows[0]["margin"])),
        "baseline": board.baseline,
        "receipts": [
            (line, json.dumps(all_, indent=1, ensure_ascii=False, default=str))
            for line, all_ in receipts
        ],
        "made_by": software(),
        "samples": len(samples),
        "reference_conditions": len(board.reference_conditions),
        "index": index,
        "blocks": blocks,
    }


def _fill(parts: Mapping[str, Any]) -> str:
    """Fill the template. Lone surrogates, which no file can hold, become question marks."""
    loader = PackageLoader("harness.display.report", ".")
    templates = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["visible"] = visible
    code = dict[str, str]()
    for kind, name in {"style": "style.css", "script": "script.js"}.items():
        text = files("harness.display.report").joinpath(name).read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        code |= {kind: Markup(text), f"{kind}_hash": f"sha256-{digest}"}
    page = templates.get_template("page.html.jinja").render(parts, **code)
    return page.encode("utf-8", "replace").decode()


def _other_tables(board: Leaderboard, runs: Sequence[Run]) -> list[Table]:
    """All side tables, and the comparison by level and by subject."""
    tables = [*show_side_tables(board).values()]
    frame = merge_instructions(join(runs), board.reference_conditions)  # as the verdicts are
    frame = frame[~frame["condition"].isin(board.reference_conditions)]
    for column in ("level", "subject"):
        if frame[column].nunique() > 1:
            ordered = frame.sort_values(column, kind="stable", ignore_index=True)
            margin = float(board.comparison["margin"].iloc[0])
            comparison = compare(ordered, baseline=board.baseline, margin=margin, by=[column])
            split = replace(
                board,
                comparison=comparison,
                by=(column,),
                contrasts=None,
                primary=None,
                reference_conditions={},
            )
            tables.append(replace(show_comparison(split), title=f"By {column}"))
    return tables


def _embed(figure: Figure, alternative: str) -> dict[str, str]:
    """A figure as an SVG image inside the page, its note as the caption, and what it shows for those who cannot see."""
    caption = " ".join(figure.get_supxlabel().split())
    figure.supxlabel("")
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight", pad_inches=0.05)
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}"
    return {"source": source, "alternative": alternative, "caption": caption}


def _refuse_foreign(
    runs: Sequence[Run], samples: Sequence[Row], attention: Sequence[AttentionFile]
) -> None:
    """Raise RunError if curves are of another model or of prompts that no run has."""
    known = {row["prompt"].prompt_sha256 for row in samples}
    models = [
        str(one.about["model"] if one.is_logs else one.receipt["model"]["name"]) for one in runs
    ]
    for one in attention:
        if one.model not in models:
            expected = " or ".join(models)
            raise RunError(
                f"{one.name}: traces of the model {one.model}: expected that of a run, {expected}."
            )
        strange = [
            f"{problem}, {condition}"
            for problem, condition, sha256 in one.prompts
            if sha256 not in known
        ]
        if strange:
            first = (
                f"{len(strange)} of {len(one.prompts)} traced prompts (first: problem {strange[0]})"
            )
            raise RunError(f"{one.name}: {first} are in no run of this report.")


def make_card(board: Leaderboard) -> dict[str, Any]:
    """The question, the verdicts that answer it, a sentence on all comparisons, and facts about the runs."""
    rows = rows_of_conditions(board, board.comparison)
    tested = [row for row in rows if row["role"] != "baseline"]
    first = [row for row in tested if row["primary"]] or tested
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    about = f"{models[0] if len(models) == 1 else f'{len(models)} models'} on {task_name(board.receipt)}"
    names = list_first(
        [f'"{name}"' for name in dict.fromkeys(label(row["condition"]) for row in first)], CARD_ROWS
    )
    several = len({(row["model"], row["layout"]) for row in first}) > 1
    return {
        "question": f"Does {names} change the accuracy of {about}?"
        if first
        else f"How accurate is {about}?",
        "answers": [
            {
                "kind": row["verdict"] or row["role"],
                "verdict": _judge(row),
                "said": f"{row['model']}, {row['layout']}, {_say(row)}" if several else _say(row),
            }
            for row in first[:CARD_ROWS]
        ],
        "counts": [*_count(tested, registered=board.contrasts is not None)]
        or ["There is one condition only, so nothing is compared."],
        "facts": {title: said for title, said in _facts(board, rows, models).items() if said},
    }


def _judge(row: Row) -> str:
    """The verdict for a sentence, with its margin."""
    margin = row["margin"]
    if row["verdict"] == "equivalent" and margin:
        return f"equivalent within {points(margin)}"
    return verdict(row["verdict"], row["role"], row["within_margin"], margin, row["by_format"])


def _say(row: Row) -> str:
    change, _, ends = difference(row["difference"], row["low"], row["high"]).partition(" ")
    p = "" if row["p_adjusted"] is None else f", adjusted p {p_value(row['p_adjusted'])}"
    return f"{label(row['condition'])}: {change} points {ends}".rstrip() + p


def _count(compared: Sequence[Row], *, registered: bool) -> Iterator[str]:
    """A sentence for the tested contrasts and one for the exploratory ones, that counts the verdicts of each kind."""
    tested = "registered beforehand" if registered else "not registered beforehand"
    for role, named in {"tested": tested, "exploratory": "besides"}.items():
        counts = Counter(
            _judge({**row, "within_margin": False}) for row in compared if row["role"] == role
        )
        if counts:
            said = ", ".join(f"{times} {word}" for word, times in counts.items())
            yield f"{counts.total()} {plural('comparison', counts.total())} {named}: {said}."


def _facts(board: Leaderboard, rows: Sequence[Row], models: Sequence[str]) -> dict[str, str]:
    bases = [row for row in rows if row["role"] == "baseline"]
    dates = sorted(str(one["created"])[:10] for one in board.receipt if one.get("created"))
    problems = (f"{row['problems']} {plural('problem', row['problems'])}" for row in bases)
    samples = (f"{row['repeats']} {plural('sample', row['repeats'])} each" for row in bases)
    sizes = map(", ".join, zip(problems, samples, strict=True))
    noise = " ".join(remark_noise(board))
    return {
        "Model": ", ".join(models),
        "Dataset": f"{task_name(board.receipt)} ({'; '.join(dict.fromkeys(sizes))})",
        "Date": " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]])),
        "Ungraded": " ".join(remark_ungraded(board)),
        "Noise and control": noise
        or "No repeat run and no positive control were made, so noise and sensitivity are unknown.",
    }
