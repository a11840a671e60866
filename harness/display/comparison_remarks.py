"""The legends and remarks below the table of a comparison: what its numbers mean, and its tests."""

from collections.abc import Iterator, Sequence
from typing import Any

from harness.analysis.paired_tests import fewest_problems
from harness.analysis.pool_models import FEWEST_DRAWS
from harness.analysis.result_tables import Leaderboard, find_interim, records
from harness.constants import ALPHA
from harness.display import comparison_columns
from harness.display.format_table import Row
from harness.display.format_values import (
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

MANY_UNGRADED = 5.0
"""From this percentage of ungraded samples on, a remark says how they ended."""
ROUNDS_TO_ZERO = 0.05
"""Points and percentages below this are written as 0.0."""


def explain_comparison(board: Leaderboard, rows: Sequence[Row]) -> tuple[dict[str, Any], list[str]]:
    """The facts that the legends name, and the remarks in the order in which they matter."""
    compared = [row for row in rows if row["role"] != "baseline"]
    if not compared:
        return {}, ["There is only one condition, so nothing is compared."]
    # what is said about all rows must hold for the one with the fewest draws
    draws = min(row["draws"] for row in compared)
    is_for_new_examples = draws >= FEWEST_DRAWS
    has_examples = any((run.get("settings") or {}).get("fewshot") for run in board.receipt)
    examples = ""
    if is_for_new_examples:
        examples = " with new draws of examples"
    elif has_examples or draws > 1:
        examples = " with these examples"
    facts = {
        "baseline": label(board.baseline),
        "flips": define_flips(max(row["repeats"] for row in compared)),
    }
    judged = [row for row in compared if row["p_adjusted"] is not None]
    if judged:
        facts |= _describe_tests(board, judged, examples)
    # Remarks that change how verdicts must be read come first.
    remarks = [*remark_ungraded(board), *remark_looks(board)]
    remarks += _remark_tests(board, compared, judged)
    if is_for_new_examples:
        remarks.append(
            f"{draws} draws of examples: intervals and p are for new draws from the same pool, "
            "because draws and problems are crossed random effects."
        )
    elif examples:
        remarks.append(
            "Verdicts, intervals and p are for these examples and may differ with others. "
            f"From {FEWEST_DRAWS} draws of examples on, they are for new draws."
        )
    if not board.by:
        remarks += [*remark_noise(board), *_remark_draws(board)]
    return facts, remarks


def _describe_tests(board: Leaderboard, judged: Sequence[Row], examples: str) -> dict[str, Any]:
    """The facts for the legends of the adjusted p and the verdict."""
    tests = f"{len(judged)} {plural('test', len(judged))}"
    names = ", ".join(dict.fromkeys(label(row["condition"]) for row in judged))
    if board.contrasts is not None:
        family = f"the {tests} named before the run ({names})"
    else:
        article = "the" if len(judged) == 1 else "all"
        family = f"{article} {tests} of this table, not named before the run"
    # The instruction with the number 0 is the run's own.
    instructions = {fields["number"] for fields in board.reference_conditions.values()} | {0}
    prompts = "this prompt"
    if len(instructions) > 1:
        prompts = f"{len(instructions)} instructions together"
    margin = judged[0]["margin"]
    unit = "clusters" if board.clusters else "problems"
    return {
        "family": family,
        "prompts": prompts + examples,
        "margin": margin,
        "fewest": f"{fewest_problems(margin / 100)} {unit}",
    }


def remark_looks(board: Leaderboard) -> Iterator[str]:
    """Runs that are smaller than planned, and runs that grew after their table was printed."""
    for entry in find_interim(board.receipt):
        yield (
            f"{entry['model']}: interim, {entry['problems']} of {entry['planned']} planned "
            "problems, so there is no verdict yet."
        )
    for entry in board.receipt:
        if (looks := entry.get("looks", 1)) > 1:
            yield (
                f"{entry['model']}: look {looks}. Problems or samples were added after a table was "
                f"printed, so p is multiplied by {looks}."
            )


def _remark_draws(board: Leaderboard) -> Iterator[str]:
    """The differences of each contrast, draw by draw."""
    has_settings = has_several_settings(board.draws)
    for contrast in board.draws:
        setting = f", {contrast['model']}, {contrast['layout']}" if has_settings else ""
        differences = ", ".join(map(signed, contrast["differences"]))
        yield f"{contrast['contrast']} by draw{setting}: {differences}"


def has_several_settings(rows: Sequence[Row]) -> bool:
    """Whether rows have several pairs of model and layout."""
    return len({(row["model"], row["layout"]) for row in rows}) > 1


def _remark_tests(
    board: Leaderboard, compared: Sequence[Row], judged: Sequence[Row]
) -> Iterator[str]:
    if board.primary:
        share = ""
        if has_several_settings(compared):
            share = ", with an equal share of alpha for each model and layout"
        yield (
            f"*: the primary contrast, tested first{share}. "
            "The other contrasts are tested only if it is significant."
        )
    if not judged:
        yield (
            "No contrast was named before the run, so all are exploratory: "
            "p is not adjusted, and there is no verdict."
        )
    elif len(judged) < len(compared):
        yield (
            "exploratory: not named before the run, so p is not adjusted, and there is no verdict."
        )
    contrasts = [row["condition"] for row in compared if row["baseline"] != board.baseline]
    if contrasts:
        names = ", ".join(dict.fromkeys(contrasts))
        yield f"{names}: the first condition minus the second."


def remark_ungraded(board: Leaderboard) -> Iterator[str]:
    """The conditions that are `unmeasured`, with the reason, and how ungraded samples ended.

    The second remark is about the contrast with the most ungraded samples.
    """
    judged = [row for row in records(board.comparison) if row["p_adjusted"] is not None]
    conditions: dict[str, dict[str, None]] = {}
    for row in judged:
        if row["verdict"] == "unmeasured":
            names = conditions.setdefault(row["unmeasured"], {})
            names[label(row["condition"])] = None
    for reason, names in conditions.items():
        yield f"unmeasured ({list_first(list(names), 4)}): {reason}."
    if judged and not board.by:
        yield from _remark_endings(board, judged)


def _remark_endings(board: Leaderboard, judged: Sequence[Row]) -> Iterator[str]:
    endings = {
        column.heading.removesuffix(" %"): column.key
        for column in comparison_columns.UNGRADED_ENDINGS
    }
    shares: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in records(board.side_tables["mediators"]):
        setting = (row["model"], row["layout"], row["condition"])
        shares[setting] = {heading: row[key] for heading, key in endings.items()}

    def read_shares(row: Row) -> dict[str, dict[str, float]]:
        """The shares of endings under both conditions of a contrast."""
        condition = row["condition"]
        if row["baseline"] != board.baseline:
            condition, _ = read_contrast(condition)
        names = (row["baseline"], condition)
        return {name: shares[row["model"], row["layout"], name] for name in names}

    def total(contrast: dict[str, dict[str, float]]) -> float:
        return sum(sum(percents.values()) for percents in contrast.values())

    worst = max(map(read_shares, judged), key=total)
    if max(sum(percents.values()) for percents in worst.values()) < MANY_UNGRADED:
        return
    texts = []
    for name, percents in worst.items():
        counts = [
            f"{heading} {percent:.1f} %"
            for heading, percent in percents.items()
            if percent >= ROUNDS_TO_ZERO
        ]
        if counts:
            texts.append(f"{label(name)} {', '.join(counts)}")
    text = "; ".join(texts)
    advice = ": raise max_gen_toks" if "truncated" in text else ""
    yield f"Ungraded: {text}{advice}."


def remark_noise(board: Leaderboard) -> Iterator[str]:
    """The repeat run (A/A) and the positive control, by model and layout."""
    for row in records(board.comparison):
        setting = f"{row['model']}, {row['layout']}"
        if row["aa_difference"] is not None:
            name = label(row["condition"])
            yield f"A/A, {setting}, {name} and its baseline: {describe_repeat(row)}."
        elif row["role"] == "reference":
            # the control must lower the accuracy: a rise does not show that the run can see effects
            is_visible = row["p"] < ALPHA and row["difference"] < 0
            outcome = "NOT DETECTED, so this run may be unable to detect any effect"
            if is_visible:
                outcome = "detected, so grader and pairing work"
            change = difference(row["difference"], row["low"], row["high"])
            yield (
                f"Positive control, {setting} ({row['condition']}): "
                f"{change}, p {p_value(row['p'])}: {outcome}."
            )
