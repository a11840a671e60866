"""The card at the top of the report: what was asked, the answer, and what stands behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.analysis.leaderboard import Leaderboard, records, task_name
from harness.display.comparison_tables import describe_control, without_yardsticks
from harness.display.numbers import flips, interval, judgement, label, p_value, plural, signed

Row = Mapping[str, Any]

SHOWN = 4
"""The most comparisons that the card names one by one."""
MEANING = {
    "better": "More often right, by more than chance explains.",
    "worse": "Less often right, by more than chance explains.",
    "equivalent": "Any difference is smaller than the margin.",
    "inconclusive": "The data neither show an effect nor rule one out.",
    "exploratory": "Not registered beforehand, so not judged.",
}


def make_card(board: Leaderboard) -> dict[str, Any]:
    """The question, the verdicts that answer it, a sentence on all comparisons, and facts about the runs."""
    rows = without_yardsticks(board, board.comparison)
    tested = [row for row in rows if row["verdict"] != "baseline"]
    together: list[Row] = [row | {"model": "all models", "margin": rows[0]["margin"]} for row in records(board.pooled)]
    pooled = [row for row in together if row["registered"]]
    first: list[Row] = pooled or [row for row in tested if row["primary"]] or tested
    return {
        "question": _ask(board, rows, first),
        "answers": list(_answer(first)),
        "meaning": MEANING[first[0]["verdict"]] if len({row["verdict"] for row in first}) == 1 else "",
        "counts": list(_count(tested)),
        "facts": {title: said for title, said in _facts(board, rows).items() if said},
    }


def _ask(board: Leaderboard, rows: Sequence[Row], first: Sequence[Row]) -> str:
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    whose = models[0] if len(models) == 1 else f"{len(models)} models"
    about = f"{whose} on {task_name(board.receipt)}"
    names = list(dict.fromkeys('"' + label(row["condition"]) + '"' for row in first))
    if not names:
        return f"How accurate is {about}?"
    said = " or ".join([", ".join(names[:-1]), names[-1]]) if 1 < len(names) <= SHOWN else names[0]
    said = said if len(names) <= SHOWN else f"any of {len(names)} conditions"
    return f"Does {said} change the accuracy of {about}?"


def _answer(first: Sequence[Row]) -> Iterator[dict[str, str]]:
    """The verdicts in words: one by one, or counted where there are many."""
    if len(first) > SHOWN:
        for verdict, times in Counter(str(row["verdict"]) for row in first).most_common():
            yield {"kind": verdict, "verdict": verdict, "said": f"{times} of {len(first)} comparisons"}
        return
    several = len({(row["model"], row["layout"]) for row in first}) > 1
    for row in first:
        where = f"{_where(row)}, " if several else ""
        p = "" if row["p_adjusted"] is None else f", adjusted p {p_value(row['p_adjusted'])}"
        within = {"within_margin": False, **row}  # a pooled effect has no margin of its own
        said = f"{where}{label(row['condition'])}: {_points(row)}{p}"
        yield {"kind": str(row["verdict"]), "verdict": judgement(within), "said": said}


_FAMILIES = {
    "registered": "registered beforehand",
    "all": "not registered beforehand",
    "exploratory": "besides",
}


def _count(tested: Sequence[Row]) -> Iterator[str]:
    """A sentence for each family of tests, that counts the verdicts of each kind."""
    if not tested:
        yield "There is one condition only, so nothing is compared."
    for family, named in _FAMILIES.items():
        rows = [row for row in tested if row["family"] == family]
        if not rows:
            continue
        counts = Counter(judgement(row) if row["verdict"] == "equivalent" else str(row["verdict"]) for row in rows)
        said = ", ".join(f"{times} {verdict}" for verdict, times in counts.items())
        yield f"{len(rows)} {plural('comparison', len(rows))} {named}: {said}."


def _facts(board: Leaderboard, rows: Sequence[Row]) -> dict[str, str]:
    controls = [row for row in records(board.comparison) if row["verdict"] == "positive control"]
    bases = [row for row in rows if row["verdict"] == "baseline"]
    dates = sorted(str(one["created"])[:10] for one in board.receipt if one.get("created"))
    sizes = dict.fromkeys(
        f"{row['n']} {plural('problem', row['n'])}, {row['k']} {plural('sample', row['k'])} each" for row in bases
    )

    def join(said: Mapping[str, str]) -> str:
        """What is said of each model and layout, which are named where there are several."""
        return "; ".join(f"{where}: {text}" if len(bases) > 1 else text for where, text in said.items() if text)

    return {
        "Model": ", ".join(dict.fromkeys(str(row["model"]) for row in rows)),
        "Dataset": f"{task_name(board.receipt)} ({'; '.join(sizes)})",
        "Date": " to ".join(sorted({*dates[:1], *dates[-1:]})),
        "Positive control": join({_where(row): describe_control(row) for row in controls})
        or "None: nothing shows what this run can see.",
        "Noise (A/A)": join({_where(row): _noise(row) for row in bases})
        or "The baseline was run once, so nothing shows how far it moves by itself.",
    }


def _where(row: Row) -> str:
    return f"{row['model']}, {row['layout']}"


def _points(row: Row) -> str:
    """A difference with its interval and unit."""
    return f"{signed(row['difference'])} points {interval(row['low'], row['high'], sign=True)}".rstrip()


def _noise(base: Row) -> str:
    """What a second run of the baseline differs by; empty if there is none."""
    if base["aa_difference"] is None:
        return ""
    return f"The baseline run again moves by {signed(base['aa_difference'])} points, flips {flips(base, 'aa_')}"
