"""The legends and remarks below the table of a comparison: what its numbers mean, and its tests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from harness.analysis.paired_tests import fewest_problems
from harness.analysis.result_tables import Leaderboard, records
from harness.analysis.sample_scores import NUMBER, SCORE_MEANINGS
from harness.analysis.verdicts import estimate_sample
from harness.constants import ALPHA, BASELINE, FEWEST_DRAWS, NOT_SHOWN, SIGNIFICANT_VERDICTS, Row
from harness.display.comparison_columns import UNGRADED_ENDINGS
from harness.display.value_texts import (
    LEVEL,
    define_flips,
    describe_repeat,
    difference,
    interval,
    label,
    p_value,
    plural,
    points,
)
from harness.errors import list_first
from harness.experiment.conditions import POSITIVE_CONTROL

MANY_UNGRADED = 5.0
"""From this percentage of ungraded samples on, a remark says how they ended."""
ADVICE_BY_ENDING = {
    "no box": "Without a box nothing is graded. `mless run` can show examples (--num-fewshot 8), "
    "or read the first line (--set answer=line). A stop string (`until`) may come before an "
    "answer.",
    "cut off": "Raise max_gen_toks.",
    "unfinished": "Reasoning that has no end does not count as an answer. Raise max_gen_toks.",
    "unfinished before the limit": "Reasoning that has no end does not count as an answer. If a "
    "stop string ended it, set `answer: box`, without `until`; if its end has another text, set "
    "`thinking`.",
    "refused": "The grader cannot compare these answers; --audit shows what other graders say.",
    "timeout": "The comparison took too long; --audit shows what other graders say.",
}
"""What a user can do about the most frequent ending of ungraded samples."""
COUNTED_SAMPLES = {
    "next_question": "with a next question in the format of the run, from which on nothing is "
    "graded",
    "no_reply": "without a whole completion of the server, which count as not correct",
}
"""Columns of mediators whose samples a remark counts in each condition, however few they are."""
ROUNDS_TO_ZERO = 0.05
"""Percentages below this are written as 0.0."""
FEW_CLUSTERS = 15
"""With fewer clusters a warning says so: of 8 clusters intervals are 57 to 102 points long."""


def explain_comparison(
    board: Leaderboard, rows: Sequence[Row]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The facts that the legends name, the warnings, and the remarks: the important ones first."""
    warnings = [*warn_of_ungraded(board), *_warn_of_runs(board)]
    if board.score:
        kind, _, _ = board.score.partition("@")
        warnings.insert(0, f"{board.score} instead of accuracy: {SCORE_MEANINGS[kind]}.")
    if board.omitted:
        warnings.append(
            f"{board.omitted} problems are left out, because not all models or conditions have "
            "them."
        )
    compared_rows = [row for row in rows if row["role"] != "baseline"]
    if not compared_rows:
        return {}, warnings, ["There is only one condition, so nothing is compared."]
    problems = min(row["problems"] for row in rows)
    clusters = min(board.clusters or problems, problems)
    unit = "clusters" if board.clusters else "problems"
    if clusters < FEW_CLUSTERS:
        warnings.append(f"Only a very large difference can be shown with {clusters} {unit}.")
    # what is said about all rows must hold for the one with the fewest draws
    draws = min(row["draws"] for row in compared_rows)
    is_for_new_examples = draws >= FEWEST_DRAWS
    run_settings = [run.get("settings") or {} for run in board.receipt]
    fewshots = [run.get("fewshot") or {} for run in run_settings]
    examples = ""
    if is_for_new_examples:
        source = "draws of examples"
        if all(fewshot.get("instructions") for fewshot in fewshots):
            has_examples = any(fewshot["num_fewshot"] for fewshot in fewshots)
            source = f"{source} and their instructions" if has_examples else "draws of instructions"
        examples = f" with new {source}"
    elif any(fewshots) or draws > 1:
        examples = " with these examples"
    repeats = max(row["repeats"] for row in compared_rows)
    facts = {
        "baseline": label(board.baseline),
        "flips": define_flips(repeats),
        "unit": "" if board.score == NUMBER else ", in points",
    }
    judged_rows = [row for row in compared_rows if row["role"] == "tested"]
    margin = compared_rows[0]["margin"]
    if judged_rows:
        # for the legends of the adjusted p and the verdict
        facts |= {
            "adjustment": _describe_adjustment(board, judged_rows),
            "examples": examples,
            "margin": margin,
            "fewest": f", on at least {fewest_problems(margin / 100)} {unit}",
        }
    remarks = [*_remark_tests(board, compared_rows, judged_rows)]
    if is_for_new_examples:
        remarks.append(f"{draws} {source}: intervals and p are for new draws from the same pool.")
    elif examples:
        remarks.append(
            "Verdicts, intervals and p are for these examples only and say nothing about others. "
            f"From {FEWEST_DRAWS} draws of examples on, they are for new draws."
        )
    if fresh := dict.fromkeys(chain(*(run.get("fresh", ()) for run in run_settings))):
        remarks.append(
            f"New fillers for each problem or sample: {list_first(list(map(label, fresh)))}. "
            "Intervals and p are for new problems with new fillers."
        )
    inconclusive_rows = [row for row in judged_rows if row["verdict"] == "inconclusive"]
    sample_sizes = [estimate_sample(row, margin, clusters, sides=2) for row in inconclusive_rows]
    if sample_sizes and min(sample_sizes) > clusters and board.score != NUMBER:
        sample = f"{min(sample_sizes):,} {unit}"
        if is_for_new_examples:
            sample += " and as many times the draws"
        remarks.append(
            f"inconclusive: equivalence within {points(margin)} would need about {sample}; "
            f"here are {clusters:,}."
        )
    warnings += _describe_places(board, judged_rows)
    if not board.by:
        for remark, is_warning in remark_noise(board):
            (warnings if is_warning else remarks).append(remark)
    return facts, warnings, remarks


def _describe_places(board: Leaderboard, judged_rows: Sequence[Row]) -> Iterator[str]:
    """The places among other texts; if there is a primary contrast, only of this contrast."""
    has_settings = has_several_settings(judged_rows)
    for row in judged_rows:
        place = describe_place(board, row)
        if place and (row["primary"] or not board.primary):
            setting = f"{row['model']}, {row['layout']}, " if has_settings else ""
            yield f"{setting}{label(row['condition'])}: {place}."


def find_families(texts: Iterable[Row], contrast: Mapping[Any, Any]) -> list[Row]:
    """The rows of `text_table` for a row of the comparison, one for each family."""
    keys = ("model", "layout", "condition")
    return [row for row in texts if all(row[key] == contrast[key] for key in keys)]


def describe_place(board: Leaderboard, contrast: Row) -> str:
    """The verdict together with the place among other texts; empty without other texts.

    Args:
        board: All tables.
        contrast: A row of the comparison.
    """
    families = find_families(records(board.side_tables["texts"]), contrast)
    if not families:
        return ""
    no_text, without_text = label(board.baseline), label(board.baseline)
    if board.baseline == BASELINE:
        no_text, without_text = "no text", "without a text"
    references = "other texts of this length"
    verdict, place = contrast["verdict"], contrast["other_texts"]
    if place == NOT_SHOWN and not any(row["reason"] for row in families):
        # The families differ, so a difference from all of them is not shown.
        place = "among"
    direction = verdict if verdict in SIGNIFICANT_VERDICTS else "better or worse"
    sentences = {
        "above": f"better than {references}",
        "below": f"worse than {references}",
        "among": f"not shown to be {direction} than {references}",
        NOT_SHOWN: f"its place among {references} is not shown",
    }
    text = f"{verdict} than {without_text}" if verdict in SIGNIFICANT_VERDICTS else f"{verdict}"
    text += f"; {sentences[place]}"
    # in one clause, because "inconclusive; better than" would seem to contradict itself
    if verdict == "inconclusive" and place in ("above", "below"):
        text = f"differs from {references}, not from {no_text}"
    facts = []
    for row in families:
        fact = row["reason"]
        if not fact:
            ends = interval(row["range_low"], row["range_high"], sign=True)
            fact = f"{row['place']} their {LEVEL} range {ends}"
        facts.append(f"{row['texts']} {row['kind']}: {fact}")
    return f"{text} ({'; '.join(facts)})"


def _describe_adjustment(board: Leaderboard, judged_rows: Sequence[Row]) -> str:
    """How p is adjusted for several tests. The primary contrast is in no family of Holm."""
    family = [row for row in judged_rows if not row["primary"]]
    if not family:
        return " of the primary contrast alone"
    tests = f"{len(family)} {plural('test', len(family))}"
    if board.contrasts is None:
        article = "the" if len(family) == 1 else "all"
        return f", adjusted by Holm over {article} {tests} of this table, not named before the run"
    origin = "named before the run"
    if board.primary:
        origin += " besides the primary contrast"
        if has_several_settings(judged_rows):
            tests = "tests of each model and layout"
    return f", adjusted by Holm over the {tests} {origin}"


def _warn_of_runs(board: Leaderboard) -> Iterator[str]:
    """Runs that grew after their table was printed, or asked a server."""
    for receipt in board.receipt:
        if remarks := receipt.get("remarks"):
            yield f"{receipt['name']}: {'; '.join(remarks)}."
        if (looks := receipt.get("looks", 1)) > 1:
            yield (
                f"{receipt['model']}: look {looks}. Problems or samples were added after a table "
                f"was printed, so p is multiplied by {looks}."
            )
        added_tokens = receipt.get("added_tokens", 0)
        if added_tokens is None:
            yield (
                f"{receipt['model']}: it is unknown whether the server cut prompts, because it "
                "reports no number of prompt tokens, or the same for all, or "
                "model.model_args.tokenizer is missing."
            )
        elif added_tokens:
            yield f"{receipt['model']}: the server counts {added_tokens:+} tokens in every prompt."


def has_several_settings(rows: Sequence[Row]) -> bool:
    """Whether rows have several pairs of model and layout."""
    return len({(row["model"], row["layout"]) for row in rows}) > 1


def _remark_tests(
    board: Leaderboard, compared_rows: Sequence[Row], judged_rows: Sequence[Row]
) -> Iterator[str]:
    if any(row["primary"] for row in compared_rows):
        share = ""
        if has_several_settings(compared_rows):
            share = ", with an equal share of alpha for each model and layout"
        yield (
            f"*: the primary contrast, tested first{share}. "
            "The other contrasts are tested only if it is significant."
        )
    if len(judged_rows) < len(compared_rows):
        yield (
            "exploratory: not named before the run, so p is not adjusted, and there is no verdict."
        )


def warn_of_ungraded(board: Leaderboard) -> Iterator[str]:
    """How ungraded samples ended, and the contrasts that are `unmeasured` with the reason."""
    if not board.by:
        yield from _warn_of_endings(board)
    conditions: dict[str, dict[str, None]] = {}
    for row in records(board.comparison):
        if row["verdict"] == "unmeasured":
            names = conditions.setdefault(row["unmeasured"], {})
            names[label(row["condition"])] = None
    for reason, names in conditions.items():
        yield f"unmeasured ({list_first(list(names), 4)}): {reason}."


def _warn_of_endings(board: Leaderboard) -> Iterator[str]:
    """How the ungraded samples ended, in each model and layout.

    Only the conditions with the fewest and the most are named.
    """
    rows_by_setting: dict[str, list[Row]] = {}
    for row in records(board.side_tables["mediators"]):
        if row["condition"] not in board.reference_conditions:
            rows_by_setting.setdefault(f"{row['model']}, {row['layout']}", []).append(row)
    for setting, rows in rows_by_setting.items():
        setting_text = f", {setting}" if len(rows_by_setting) > 1 else ""
        for column, text in COUNTED_SAMPLES.items():
            counts = [
                f"{label(row['condition'])} {row[column] * row['samples'] / 100:.0f}"
                for row in rows
                if row[column]
            ]
            if counts:
                yield f"Samples {text}{setting_text}: {', '.join(counts)}."
        # the sort is stable: if conditions have equal sums, the first and the last are named
        rows.sort(key=_sum_endings)
        least, most = rows[0], rows[-1]
        if _sum_endings(most) < MANY_UNGRADED:
            continue
        text = f"most in {_list_endings(most)}"
        if least is not most:
            text = f"least in {_list_endings(least)}; {text}"
        ending = max(UNGRADED_ENDINGS, key=lambda name: most[UNGRADED_ENDINGS[name].key])
        if ending == "unfinished" and 2 * most["cut_reasoning"] <= most["unfinished"]:
            ending += " before the limit"
        yield f"Not graded{setting_text}: {text}. {ADVICE_BY_ENDING[ending]}"


def _sum_endings(row: Row) -> float:
    return float(sum(row[column.key] for column in UNGRADED_ENDINGS.values()))


def _list_endings(row: Row) -> str:
    endings = [
        f"{ending} {row[column.key]:.1f} %"
        for ending, column in UNGRADED_ENDINGS.items()
        if row[column.key] >= ROUNDS_TO_ZERO
    ]
    return f"{label(row['condition'])} ({', '.join(endings) or '0 %'})"


def remark_noise(board: Leaderboard) -> Iterator[tuple[str, bool]]:
    """The repeat run (A/A) and the positive control, by model and layout.

    The second value says whether the remark is a warning: the run is too insensitive. A repeat run
    needs no warning, because tests and intervals allow for the noise of samples.
    """
    for row in records(board.comparison):
        setting = f"{row['model']}, {row['layout']}"
        if row["aa_difference"] is not None:
            name = label(row["condition"])
            text = f"A/A, {setting}, {name} and its baseline: {describe_repeat(row)}."
            if not all(receipt.get("greedy") for receipt in board.receipt):
                text += " The samples of both have the same seeds, and the repeat run has others."
            yield text, False
            continue
        fields = board.reference_conditions.get(row["condition"], {})
        if fields.get("kind") == POSITIVE_CONTROL:
            # the control must lower the accuracy: a rise does not show that the run can see effects
            is_visible = row["p"] < ALPHA and row["difference"] < 0
            outcome = "NOT DETECTED, so effects that this run does not find may still exist"
            if is_visible:
                outcome = "detected, so grader and pairing work"
            change = difference(row["difference"], row["low"], row["high"])
            yield (
                f"Positive control, {setting} ({row['condition']}): "
                f"{change}, p {p_value(row['p'])}: {outcome}.",
                not is_visible,
            )
