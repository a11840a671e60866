"""The tables of a comparison, for `mless table`, `mless leaderboard` and the report: rows, columns and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.analysis.leaderboard import Leaderboard, records
from harness.analysis.pooled import FEWEST_DRAWS
from harness.analysis.tests import fewest_problems
from harness.constants import ALPHA, SHOWN_POINTS, TOLD_UNGRADED
from harness.display import columns as declared
from harness.display.columns import word
from harness.display.table import Column, Row, Table
from harness.display.wording import (
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

    from harness.analysis.reference import Reference


def show_comparison(board: Leaderboard) -> Table:
    """One row per condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = shown_rows(board, board.comparison)
    title, words = heading(board)
    format_moved = any(abs((row["answer_difference"] or 0) - (row["difference"] or 0)) >= SHOWN_POINTS for row in rows)
    columns = [declared.ACCURACY, declared.DIFFERENCE, declared.P, declared.VERDICT]
    columns.append(declared.ANSWERS if format_moved else declared.FLIPS)  # both are wider than a terminal
    facts, remarks = _explain(board, rows)
    return Table(title, rows, [*words, *_explained(columns, facts)], remarks, facts)


def show_leaderboard(board: Leaderboard) -> Table:
    """One row per model and layout, best baseline first: the primary difference whole, the others as bare numbers."""
    rows = shown_rows(board, board.comparison)
    others = [name for name in dict.fromkeys(row["condition"] for row in rows) if name != board.baseline]
    main = next((row["condition"] for row in rows if row["primary"]), others[0] if others else "")
    not_run = dict.fromkeys(board.comparison.columns) | {"verdict": "not run"}
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        setting = tuple(row[key] for key in ("model", "layout", *board.by))
        lines.setdefault(setting, dict.fromkeys(others, not_run))[row["condition"]] = row
    title, words = heading(board)
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


def shown_rows(board: Leaderboard, table: pandas.DataFrame) -> list[Row]:
    """The rows of a table of the leaderboard, without those of reference conditions."""
    return [row for row in records(table) if row["condition"] not in board.reference_conditions]


def heading(board: Leaderboard) -> tuple[str, list[Column]]:
    """The title, which names what all rows share, and the columns of words for what they do not."""
    clusters = 0 if board.by else board.clusters
    title, differing = _share(records(board.comparison), ("model", "layout", "n", "k"), clusters)
    names = [name for name in ("model", "layout", *board.by, "condition", "n", "k") if name in differing]
    return title or "Differences from the baseline", [*map(word, names)]


def _share(rows: Sequence[Row], names: Sequence[str], clusters: int = 0) -> tuple[str, set[str]]:
    """In words what all rows share of these fields, and the names of all other fields."""
    nouns = {"n": "problem", "k": "sample", "models": "model"}
    said, differing = [], set(rows[0]) if rows else set()
    for name in names:
        values = {row[name] for row in rows} - {None}
        if len(values) < 2:
            differing.discard(name)
        for value in values if len(values) == 1 else ():
            noun = f" {plural(nouns[name], value)}" if name in nouns else ""
            noun += f" in {clusters} clusters" if name == "n" and clusters else ""
            said.append(f"{value}{noun}{' each' if name == 'k' else ''}")
    return ", ".join(said), differing


def _settings(board: Leaderboard) -> list[Column]:
    return [column for column in heading(board)[1] if column.key not in ("n", "k")]


def _explained(columns: Sequence[Column], facts: dict[str, Any]) -> list[Column]:
    """The columns with the legends that there are facts for: where nothing is tested, nothing of tests is said."""
    return [
        column if column.legend and facts.get(column.key, facts) else replace(column, legend="") for column in columns
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
    has_examples = any((run.get("settings") or {}).get("demonstrations") for run in board.receipt)
    fewest_draws = min(row["draws"] for row in compared)
    examples = ""
    if fewest_draws >= FEWEST_DRAWS:
        examples = " with new draws of examples"
    elif has_examples or fewest_draws > 1:
        examples = " with these examples"
    prompts = f"{len(instructions)} instructions together" if len(instructions) > 1 else "this prompt"
    facts = {
        "baseline": label(board.baseline),
        "prompts": prompts + examples,
        "family": family,
        "margin": compared[0]["margin"],
        "fewest": f"{fewest_problems(compared[0]['margin'] / 100)} {'clusters' if board.clusters else 'problems'}",
        "flips": define_flips(max(row["k"] for row in compared)),
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


def _remark_tests(board: Leaderboard, compared: Sequence[Row], judged: Sequence[Row]) -> Iterator[str]:
    if board.primary:
        several = len({(row["model"], row["layout"]) for row in compared}) > 1
        share = ", with an equal share of alpha for each model and layout" if several else ""
        yield f"*: the primary contrast, tested first{share}. The others are tested only if it is significant."
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
    shares = {(one["model"], one["layout"], one["condition"]): one for one in records(board.mediators)}
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
            present = {word: shares[key][state] for state, word in states.items() if shares[key][state] >= 0.05}
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
            change = f"{difference(row['difference'], row['low'], row['high'])}, p {p_value(row['p'])}"
            yield f"Positive control, {where} ({row['condition']}): {change}: {seen}."


def show_sweeps(board: Leaderboard) -> Table | None:
    """Each filler that was run in several lengths: all lengths together, and the best of them. None without any."""
    rows = records(board.sweeps)
    _, differing = _share(rows, ("model", "layout", "words"))
    words = [word(name) for name in ("model", "layout", "filler", "placement", "words") if name in differing]
    return Table("Lengths of a filler, difference in points", rows, [*words, *declared.SWEEPS]) if rows else None


def show_texts(board: Leaderboard) -> Table | None:
    """Each condition against other texts of its length and place; None where there are too few."""
    rows = records(board.texts)
    remark = "Intervals are for new texts of the kind, on new problems. Exploratory: neither adjusted nor judged."
    _, differing = _share(rows, ("model", "layout"))
    words = [word(name) for name in ("model", "layout", "condition") if name in differing]
    title = "Against other texts of as many tokens at its place, points"
    return Table(title, rows, [*words, *declared.TEXTS], [remark]) if rows else None


def show_wordings(board: Leaderboard) -> Table | None:
    """Each contrast over all instructions that it was asked under; None where there was one."""
    rows = records(board.wordings)
    remark = (
        "Verdicts above are of these instructions; the interval here is for new ones of this kind, on new problems."
    )
    _, differing = _share(rows, ("model", "layout"))
    words = [word(name) for name in ("model", "layout", "condition") if name in differing]
    return Table("Over all instructions, points", rows, [*words, *declared.WORDINGS], [remark]) if rows else None


def show_causes(board: Leaderboard) -> Table | None:
    """What of each filler changes accuracy; None without a position gap."""
    rows = records(board.causes)
    title, differing = _share(rows, ("model", "layout", "n"))
    words = [word(name) for name in ("model", "layout", "filler", "condition") if name in differing]
    remark = (
        "Each condition is compared with the position gap. Where scale or bias is on alone, attention weights do not "
        "add up to 1: this is not valid attention, and no prompt makes a model compute it."
    )
    title = f"Parts of a filler: {title}, points"
    return Table(title, rows, [*words, *declared.CAUSES], [remark]) if rows else None


def show_mediators(board: Leaderboard) -> Table:
    """What else a condition changes."""
    title = "What else changed: percent of the samples"
    return Table(title, shown_rows(board, board.mediators), [*_settings(board), *declared.MEDIATORS])


def show_audit(board: Leaderboard) -> Table:
    """What the other graders say of the same completions."""
    title = "The same completions by other graders: percent right, difference in points"
    return Table(title, shown_rows(board, board.audit), [*_settings(board), *declared.GRADERS])


def show_pooled(board: Leaderboard) -> Table | None:
    """One effect over all models, of each contrast; None without rows."""
    rows = records(board.pooled)
    if not rows:
        return None
    shared, differing = _share(rows, ("layout", "models", "n"))
    words = [word(name) for name in ("layout", "condition", "models", "n") if name in differing]
    columns = [column for column in declared.POOLED if any(row[column.key.split()[0]] is not None for row in rows)]
    title = ", ".join(filter(None, ["All models together", shared, "in points"]))
    return Table(title, rows, [*words, *columns], ["Exploratory: neither adjusted nor judged."])


def show_reference(table: pandas.DataFrame, reference: Reference, differences: Sequence[str]) -> Table:
    """Published numbers beside ours."""
    rows = records(table)
    shared, differing = _share(rows, ("model", "layout"))
    words = [word(name) for name in ("model", "layout", "condition") if name in differing]
    samples = f"{reference.setup.samples} {plural('sample', reference.setup.samples)}"
    read = "" if reference.exact else f", read off a figure to within {reference.uncertainty:g} points"
    remark = f"theirs: means of {samples} a problem{read}."
    title = ", ".join(filter(None, [f"Reference: {reference.source}", shared]))
    return Table(title, rows, [*words, *declared.REFERENCE], [remark, *differences])
