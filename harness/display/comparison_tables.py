"""The table of a comparison, by condition or by model, for `mless table` and the report: rows, columns and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.analysis.paired_tests import fewest_problems
from harness.analysis.pool_models import FEWEST_DRAWS
from harness.analysis.result_tables import Leaderboard, records
from harness.constants import ALPHA
from harness.display import comparison_columns as declared
from harness.display.comparison_columns import word
from harness.display.format_table import Column, Row, Table
from harness.display.format_values import (
    LEVEL,
    define_flips,
    describe_repeat,
    difference,
    label,
    p_value,
    plural,
    signed,
)
from harness.errors import list_first
from harness.experiment.conditions import read_contrast

if TYPE_CHECKING:
    import pandas

TOLD_UNGRADED = 0.05
"""From this share of ungraded samples on, a line says why they are."""
SHOWN_POINTS = 0.05
"""Fewer points or percent are 0.0 where they are shown."""

_SHARED = {
    "model": "",
    "layout": "",
    "words": "",
    "models": "model",
    "problems": "problem",
    "repeats": "sample",
}
"""Columns that a title names in place of a column if all rows agree, with the noun of those that count something."""


def show_comparison(board: Leaderboard) -> Table:
    """One row per condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = rows_of_conditions(board, board.comparison)
    title, words = describe_table(board)
    format_moved = any(
        abs((row["answered_difference"] or 0) - (row["difference"] or 0)) >= SHOWN_POINTS
        for row in rows
    )
    columns = [declared.ACCURACY, declared.DIFFERENCE, declared.P, declared.VERDICT]
    columns.append(
        declared.ANSWERS if format_moved else declared.FLIPS
    )  # both are wider than a terminal
    facts, remarks = _explain(board, rows)
    return Table(title, rows, [*words, *_explained(columns, facts)], remarks, facts)


def show_leaderboard(board: Leaderboard) -> Table:
    """One row per model and layout, best baseline first: the primary difference whole, the others as bare numbers."""
    rows = rows_of_conditions(board, board.comparison)
    others = [
        name for name in dict.fromkeys(row["condition"] for row in rows) if name != board.baseline
    ]
    main = next((row["condition"] for row in rows if row["primary"]), others[0] if others else "")
    not_run = dict.fromkeys(board.comparison.columns) | {"verdict": "not run"}
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        setting = tuple(row[key] for key in ("model", "layout", *board.by))
        lines.setdefault(setting, dict.fromkeys(others, not_run))[row["condition"]] = row
    title, words = describe_table(board)
    base = [*(one for one in words if one.heading != "condition"), declared.ACCURACY]
    base[-1] = replace(declared.ACCURACY, heading=f"{label(board.baseline)} %")
    whole = replace(
        declared.DIFFERENCE, heading=f"{label(main)}{' *' if board.primary else ''} [{LEVEL}]"
    )
    facts, remarks = _explain(board, rows)
    columns = [
        *(replace(one, of=board.baseline) for one in base),
        *(
            replace(one, of=main)
            for one in _explained([whole, declared.P, declared.VERDICT], facts)
            if main
        ),
        *(replace(declared.BARE, heading=label(name), of=name) for name in others if name != main),
    ]
    first = "Best baseline first. All but the baseline's are differences: bold if the test was passed, else in brackets"
    remarks.insert(0, f"{first} if exploratory.")
    ordered = sorted(lines.values(), key=lambda line: -line[board.baseline]["accuracy"])
    return Table(title, ordered, columns, remarks, facts)


def rows_of_conditions(board: Leaderboard, table: pandas.DataFrame) -> list[Row]:
    """The rows of a table of the leaderboard, without those of reference conditions."""
    return [row for row in records(table) if row.get("condition") not in board.reference_conditions]


def describe_table(board: Leaderboard) -> tuple[str, list[Column]]:
    """The title, which names what all rows have in common, and the columns of words for what they do not."""
    clusters = 0 if board.by else board.clusters
    names = ("model", "layout", *board.by, "condition", "problems", "repeats")
    title, differing = describe_shared_values(records(board.comparison), names, clusters)
    return title or "Differences from the baseline", [*map(word, differing)]


def describe_shared_values(
    rows: Sequence[Row], names: Sequence[str], clusters: int = 0
) -> tuple[str, list[str]]:
    """What all rows have in common, in words, and the names of the columns in which they differ.

    Columns of conditions, fillers and splits count as differing, as there is usually more than one.
    """
    texts, differing = [], []
    for name in names:
        values = {row[name] for row in rows} - {None}
        if name not in _SHARED or len(values) > 1:
            differing.append(name)
        for value in values if name not in differing else ():
            text = f"{value} {plural(_SHARED[name], value)}" if _SHARED[name] else str(value)
            if name == "problems" and clusters:
                text += f" in {clusters} clusters"
            texts.append(f"{text} each" if name == "repeats" else text)
    return ", ".join(texts), differing


def _explained(columns: Sequence[Column], facts: dict[str, Any]) -> list[Column]:
    """The columns with the legends that there are facts for: where nothing is tested, nothing of tests is said."""
    return [
        column if column.legend and facts.get(column.key, facts) else replace(column, legend="")
        for column in columns
    ]


def _explain(board: Leaderboard, rows: Sequence[Row]) -> tuple[dict[str, Any], list[str]]:
    """The facts that the legends name, and remarks on what was registered, the noise and the controls."""
    compared = [row for row in rows if row["role"] != "baseline"]
    if not compared:
        return {}, ["One condition only: nothing is compared."]
    judged = [row for row in compared if row["p_adjusted"] is not None]
    tests = f"{len(judged)} {plural('test', len(judged))}"
    names = ", ".join(dict.fromkeys(label(row["condition"]) for row in judged))
    family = f"the {tests} registered beforehand ({names})"
    if board.contrasts is None:
        family = f"{'the' if len(judged) == 1 else 'all'} {tests} shown, not registered beforehand"
    instructions = {fields["number"] for fields in board.reference_conditions.values()} | {0}
    has_examples = any((run.get("settings") or {}).get("fewshot") for run in board.receipt)
    fewest_draws = min(row["draws"] for row in compared)
    examples = ""
    if fewest_draws >= FEWEST_DRAWS:
        examples = " with new draws of examples"
    elif has_examples or fewest_draws > 1:
        examples = " with these examples"
    prompts = (
        f"{len(instructions)} instructions together" if len(instructions) > 1 else "this prompt"
    )
    facts = {
        "baseline": label(board.baseline),
        "prompts": prompts + examples,
        "family": family,
        "margin": compared[0]["margin"],
        "fewest": f"{fewest_problems(compared[0]['margin'] / 100)} {'clusters' if board.clusters else 'problems'}",
        "flips": define_flips(max(row["repeats"] for row in compared)),
        **({} if judged else {declared.P.key: False, declared.VERDICT.key: False}),
    }
    # what changes how verdicts must be read comes first
    remarks = [*remark_ungraded(board), *_remark_tests(board, compared, judged)]
    if fewest_draws >= FEWEST_DRAWS:
        remarks.append(
            f"{fewest_draws} draws of examples: intervals and p are for new draws from the same pool, as draws and "
            "problems are crossed random effects."
        )
    elif examples:
        remarks.append(
            f"Verdicts, intervals and p are for these examples: with others a difference can be another one. From "
            f"{FEWEST_DRAWS} draws on they are for new examples."
        )
    return facts, remarks if board.by else [*remarks, *remark_noise(board), *_remark_draws(board)]


def _remark_draws(board: Leaderboard) -> Iterator[str]:
    """What each draw of examples says."""
    several = len({(one["model"], one["layout"]) for one in board.draws}) > 1
    for one in board.draws:
        where = f", {one['model']}, {one['layout']}" if several else ""
        yield f"{one['contrast']} by draw{where}: {', '.join(map(signed, one['differences']))}"


def _remark_tests(
    board: Leaderboard, compared: Sequence[Row], judged: Sequence[Row]
) -> Iterator[str]:
    if board.primary:
        several = len({(row["model"], row["layout"]) for row in compared}) > 1
        share = ", with an equal share of alpha for each model and layout" if several else ""
        yield f"*: the primary contrast, tested first{share}. The others are tested only if it is significant."
    if not judged:
        yield "No test was registered beforehand, so all are exploratory: neither adjusted nor judged."
    elif len(judged) < len(compared):
        yield "exploratory: not registered beforehand, so neither adjusted nor judged."
    if others := dict.fromkeys(
        row["condition"] for row in compared if row["baseline"] != board.baseline
    ):
        yield f"{', '.join(others)}: the first condition less the second."


def remark_ungraded(board: Leaderboard) -> Iterator[str]:
    """Which conditions are `unmeasured`, with the reason; and how ungraded samples ended, if there are many."""
    rows = [row for row in records(board.comparison) if row["p_adjusted"] is not None]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] == "unmeasured":
            reasons.setdefault(row["unmeasured"], []).append(label(row["condition"]))
    for reason, names in reasons.items():
        yield f"unmeasured ({list_first(list(dict.fromkeys(names)), 4)}): {reason}."
    if board.by or not rows:
        return
    shares = {
        (one["model"], one["layout"], one["condition"]): one
        for one in records(board.side_tables["mediators"])
    }
    states = {column.key: column.heading.removesuffix(" %") for column in declared.MEDIATORS[:4]}
    ungraded = {key: sum(one[state] for state in states) for key, one in shares.items()}

    def sides(row: Row) -> list[tuple[Any, ...]]:
        is_contrast = row["baseline"] != board.baseline
        condition = read_contrast(row["condition"])[0] if is_contrast else row["condition"]
        return [(row["model"], row["layout"], name) for name in (row["baseline"], condition)]

    worst = max((sides(row) for row in rows), key=lambda keys: sum(ungraded[key] for key in keys))
    if max(ungraded[key] for key in worst) >= 100 * TOLD_UNGRADED:
        said = []
        for key in worst:
            present = {
                word: shares[key][state]
                for state, word in states.items()
                if shares[key][state] >= 0.05
            }
            endings = [f"{word} {share:.1f} %" for word, share in present.items()]
            said += [f"{label(key[-1])} {', '.join(endings)}"] if endings else []
        advice = ": raise max_gen_toks" if "cut off" in " ".join(said) else ""
        yield f"Ungraded: {'; '.join(said)}{advice}."


def remark_noise(board: Leaderboard) -> Iterator[str]:
    """The repeat run (A/A) and the positive control, by model and layout."""
    rows = sorted(records(board.comparison), key=lambda row: row["role"] == "baseline")
    for row in rows:
        where = ", ".join(row[key] for key in ("model", "layout"))
        if row["aa_difference"] is not None:
            yield f"A/A, {where}, {label(row['condition'])} and its baseline: {describe_repeat(row)}."
        elif row["role"] == "reference":
            harmed = row["p"] < ALPHA and row["difference"] < 0
            seen = (
                "seen: grader and pairing work"
                if harmed
                else "NOT SEEN: this run has not shown that it could see any effect"
            )
            change = (
                f"{difference(row['difference'], row['low'], row['high'])}, p {p_value(row['p'])}"
            )
            yield f"Positive control, {where} ({row['condition']}): {change}: {seen}."
