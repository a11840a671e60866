"""The card at the top of the report: what was asked, the answer, and what stands behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from harness.analysis.leaderboard import Leaderboard, task_name
from harness.constants import CARD_ROWS
from harness.display.comparison_tables import remark_noise, remark_ungraded, shown_rows
from harness.display.numbers import difference, label, p_value, plural, points, verdict
from harness.display.table import Row
from harness.errors import list_first

_FAMILIES = {"registered": "registered beforehand", "all": "not registered beforehand", "exploratory": "besides"}


def make_card(board: Leaderboard) -> dict[str, Any]:
    """The question, the verdicts that answer it, a sentence on all comparisons, and facts about the runs."""
    rows = shown_rows(board, board.comparison)
    tested = [row for row in rows if row["test"] is not None]
    first = [row for row in tested if row["primary"]] or tested
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    about = f"{models[0] if len(models) == 1 else f'{len(models)} models'} on {task_name(board.receipt)}"
    names = list_first([f'"{name}"' for name in dict.fromkeys(label(row["condition"]) for row in first)], CARD_ROWS)
    several = len({(row["model"], row["layout"]) for row in first}) > 1
    return {
        "question": f"Does {names} change the accuracy of {about}?" if first else f"How accurate is {about}?",
        "answers": [
            {
                "kind": row["verdict"],
                "verdict": _judge(row),
                "said": f"{row['model']}, {row['layout']}, {_say(row)}" if several else _say(row),
            }
            for row in first[:CARD_ROWS]
        ],
        "counts": [*_count(tested)] or ["There is one condition only, so nothing is compared."],
        "facts": {title: said for title, said in _facts(board, rows, models).items() if said},
    }


def _judge(row: Row) -> str:
    """The verdict for a sentence, with its margin."""
    margin = row["margin"]
    if row["verdict"] == "equivalent" and margin:
        return f"equivalent within {points(margin)}"
    return verdict(row["verdict"], row["within_margin"], margin, row["by_format"])


def _say(row: Row) -> str:
    change, _, ends = difference(row["difference"], row["low"], row["high"]).partition(" ")
    p = "" if row["p_adjusted"] is None else f", adjusted p {p_value(row['p_adjusted'])}"
    return f"{label(row['condition'])}: {change} points {ends}".rstrip() + p


def _count(tested: Sequence[Row]) -> Iterator[str]:
    """A sentence for each family of tests, that counts the verdicts of each kind."""
    for family, named in _FAMILIES.items():
        counts = Counter(_judge({**row, "within_margin": False}) for row in tested if row["family"] == family)
        if counts:
            said = ", ".join(f"{times} {word}" for word, times in counts.items())
            yield f"{counts.total()} {plural('comparison', counts.total())} {named}: {said}."


def _facts(board: Leaderboard, rows: Sequence[Row], models: Sequence[str]) -> dict[str, str]:
    bases = [row for row in rows if row["verdict"] == "baseline"]
    dates = sorted(str(one["created"])[:10] for one in board.receipt if one.get("created"))
    sizes = (f"{row['n']} {plural('problem', row['n'])}, {row['k']} {plural('sample', row['k'])} each" for row in bases)
    noise = " ".join(remark_noise(board))
    return {
        "Model": ", ".join(models),
        "Dataset": f"{task_name(board.receipt)} ({'; '.join(dict.fromkeys(sizes))})",
        "Date": " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]])),
        "Ungraded": " ".join(remark_ungraded(board)),
        "Noise and control": noise or "The baseline was run once and no positive control, so nothing shows them.",
    }
