"""The table of a comparison, by condition or by model, for `mless table` and the report: rows, columns and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.analysis.controls import APART
from harness.analysis.leaderboard import Leaderboard, records
from harness.analysis.tests import fewest_problems
from harness.constants import ALPHA, SHOWN_POINTS, TOLD_UNGRADED
from harness.display import columns as declared
from harness.display.columns import word
from harness.display.table import Column, Row, Table
from harness.display.wording import LEVEL, define_flips, difference, label, p_value, plural, signed
from harness.errors import list_first
from harness.experiment.conditions import CONTROLS

if TYPE_CHECKING:
    import pandas

_TESTS = {"mcnemar": "exact McNemar test", "sign-flip and score": "sign-flip and score test, the larger p of the two"}
_NOISE = {
    True: "under greedy decoding this measures only what the engine does not repeat exactly",
    False: "drawn with other seeds, this is one instance of what chance alone does, and no bound on it",
}
"""What running both sides again measures, under greedy decoding (True) and when sampling."""
_SHARED = {"model": "", "layout": "", "words": "", "models": "model", "n": "problem", "k": "sample"}
"""Columns that a title names in place of a column if all rows agree, with the noun of those that count something."""


def show_comparison(board: Leaderboard) -> Table:
    """One row per condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = rows_of_conditions(board, board.comparison)
    title, words = describe_table(board)
    format_moved = any(abs((row["answer_difference"] or 0) - (row["difference"] or 0)) >= SHOWN_POINTS for row in rows)
    columns = [declared.ACCURACY, declared.DIFFERENCE, declared.P, declared.VERDICT]
    columns.append(declared.ANSWERS if format_moved else declared.FLIPS)  # both are wider than a terminal
    facts, remarks = _explain(board, rows)
    return Table(title, rows, [*words, *_explained(columns, facts)], remarks, facts)


def show_leaderboard(board: Leaderboard) -> Table:
    """One row per model and layout, best baseline first: the primary difference whole, the others as bare numbers."""
    rows = rows_of_conditions(board, board.comparison)
    others = [name for name in dict.fromkeys(row["condition"] for row in rows) if name != board.baseline]
    main = next((row["condition"] for row in rows if row["primary"]), others[0] if others else "")
    not_run = dict.fromkeys(board.comparison.columns) | {"verdict": "not run"}
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        setting = tuple(row[key] for key in ("model", "layout", *board.by))
        lines.setdefault(setting, dict.fromkeys(others, not_run))[row["condition"]] = row
    title, words = describe_table(board)
    base = [*(one for one in words if one.heading != "condition"), declared.ACCURACY]
    base[-1] = replace(declared.ACCURACY, heading=f"{label(board.baseline)} %")
    whole = replace(declared.DIFFERENCE, heading=f"{label(main)}{' *' if board.primary else ''} [{LEVEL}]")
    facts, remarks = _explain(board, rows)
    columns = [
        *(replace(one, of=board.baseline) for one in base),
        *(replace(one, of=main) for one in _explained([whole, declared.P, declared.VERDICT], facts) if main),
        *(replace(declared.BARE, heading=label(name), of=name) for name in others if name != main),
    ]
    first = "Best baseline first. All but the baseline's are differences: bold if the test was passed, else in brackets"
    remarks.insert(0, f"{first} if exploratory.")
    ordered = sorted(lines.values(), key=lambda line: -line[board.baseline]["accuracy"])
    return Table(title, ordered, columns, remarks, facts)


def rows_of_conditions(board: Leaderboard, table: pandas.DataFrame) -> list[Row]:
    """The rows of a table of the leaderboard, without those that conditions are held against."""
    return [row for row in records(table) if row.get("condition") not in board.yardsticks]


def describe_table(board: Leaderboard) -> tuple[str, list[Column]]:
    """The title, which names what all rows have in common, and the columns of words for what they do not."""
    clusters = 0 if board.by else board.clusters
    names = ("model", "layout", *board.by, "condition", "n", "k")
    title, differing = describe_shared_values(records(board.comparison), names, clusters)
    return title or "Differences from the baseline", [*map(word, differing)]


def describe_shared_values(rows: Sequence[Row], names: Sequence[str], clusters: int = 0) -> tuple[str, list[str]]:
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
            if name == "n" and clusters:
                text += f" in {clusters} clusters"
            texts.append(f"{text} each" if name == "k" else text)
    return ", ".join(texts), differing


def _explained(columns: Sequence[Column], facts: dict[str, Any]) -> list[Column]:
    """The columns with the legends that there are facts for: where nothing is tested, nothing of tests is said."""
    return [
        column if column.legend and facts.get(column.key, facts) else replace(column, legend="") for column in columns
    ]


def _explain(board: Leaderboard, rows: Sequence[Row]) -> tuple[dict[str, Any], list[str]]:
    """The facts that the legends name, and remarks on what was registered, the noise and the controls."""
    compared = [row for row in rows if row["test"] is not None]
    if not compared:
        return {}, ["One condition only: nothing is compared."]
    judged = [row for row in compared if row["p_adjusted"] is not None]
    tests = f"{len(judged)} {plural('test', len(judged))}"
    names = ", ".join(dict.fromkeys(label(row["condition"]) for row in judged))
    family = f"the {tests} registered beforehand ({names})"
    if board.contrasts is None:
        family = f"{'the' if len(judged) == 1 else 'all'} {tests} shown, not registered beforehand"
    wordings = {name[-3:] for name, kind in board.yardsticks.items() if kind == "other wording"}
    facts = {
        "baseline": label(board.baseline),
        "prompts": f"{len(wordings) + 1} instructions together" if wordings else "this prompt",
        "zero": f" that holds 0 exactly where adjusted p is not below {ALPHA:g}" if judged else "",
        "test": " or ".join(_TESTS[name] for name in dict.fromkeys(row["test"] for row in compared)),
        "family": family,
        "margin": compared[0]["margin"],
        "fewest": f"{fewest_problems(compared[0]['margin'] / 100)} {'clusters' if board.clusters else 'problems'}",
        "flips": define_flips(max(row["k"] for row in compared)),
        **({} if judged else {declared.P.key: False, declared.VERDICT.key: False}),
    }
    # what changes how verdicts must be read comes first
    remarks = [*remark_ungraded(board), *_remark_tests(board, compared, judged)]
    if board.draws:
        remarks.append("Intervals and p are for these draws of examples: others can move the differences further.")
    return facts, remarks if board.by else [*remarks, *remark_noise(board), *_remark_draws(board)]


def _remark_draws(board: Leaderboard) -> Iterator[str]:
    """What each draw of examples says."""
    several = len({(one["model"], one["layout"]) for one in board.draws}) > 1
    for one in board.draws:
        where = f", {one['model']}, {one['layout']}" if several else ""
        yield f"{one['contrast']} by draw{where}: {', '.join(map(signed, one['differences']))}"


def _remark_tests(board: Leaderboard, compared: Sequence[Row], judged: Sequence[Row]) -> Iterator[str]:
    if board.primary:
        several = len({(row["model"], row["layout"]) for row in compared}) > 1
        share = ", with an equal share of alpha for each model and layout" if several else ""
        yield f"*: the primary contrast, tested first{share}: the others can only be found behind it."
    if not judged:
        yield "No test was registered beforehand, so all are exploratory: neither adjusted nor judged."
    elif len(judged) < len(compared):
        yield "exploratory: not registered beforehand, so neither adjusted nor judged."
    if others := dict.fromkeys(row["condition"] for row in compared if row["baseline"] != board.baseline):
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
    shares = {(one["model"], one["layout"], one["condition"]): one for one in records(board.side_tables["mediators"])}
    states = {column.key: column.heading.removesuffix(" %") for column in declared.MEDIATORS[:4]}
    worst = max(rows, key=lambda row: row["most_difference"] - row["least_difference"])
    said, most = [], 0.0
    contrast = worst["condition"].removesuffix(f" - {worst['baseline']}")
    for name in (worst["baseline"], contrast):
        one = shares[worst["model"], worst["layout"], name]
        most = max(most, sum(one[state] for state in states))
        found = [f"{word} {one[state]:.1f} %" for state, word in states.items() if one[state] >= SHOWN_POINTS]
        said += [f"{label(name)} {', '.join(found)}"] if found else []
    if most >= 100 * TOLD_UNGRADED:
        advice = ": raise max_gen_toks" if "cut off" in " ".join(said) else ""
        ends = f"{signed(worst['least_difference'])} to {signed(worst['most_difference'])}"
        yield (
            f"Ungraded: {'; '.join(said)}{advice}. If all of these were right on one side only, the difference would "
            f"be {ends}."
        )


def remark_noise(board: Leaderboard) -> Iterator[str]:
    """The positive control, the noise of A/A, and rewordings that were set apart, by model and layout."""
    rows = sorted(records(board.comparison), key=lambda row: row["verdict"] == "baseline")
    for row in rows:
        where = ", ".join(row[key] for key in ("model", "layout"))
        if row["aa_difference"] is not None:
            again = difference(row["aa_difference"], row["aa_low"], row["aa_high"])
            name = label(row["condition"])
            said = f"{name} less its baseline, both run again, moves by {again}"
            yield f"A/A, {where}: {said}; {_NOISE[row['model'] in board.greedy]}."
        elif row["verdict"] == "positive control":
            harmed = row["p"] < ALPHA and row["difference"] < 0
            seen = (
                "seen: grader and pairing work"
                if harmed
                else "NOT SEEN: this run has not shown that it could see any effect"
            )
            change = f"{difference(row['difference'], row['low'], row['high'])}, p {p_value(row['p'])}"
            yield f"Positive control, {where} ({CONTROLS[row['condition']]}): {change}: {seen}."
    if apart := [f"{row['condition']} ({row['model']})" for row in rows if row["verdict"] == APART]:
        yield f"Set apart, as they change how many samples have a gradable answer: {', '.join(apart)}."
