"""The legends and remarks below the table of a comparison: what its numbers mean, and its tests.

*Other texts* have the length and placement of a filler. Those of one kind are a *family*. The
*place* of a filler says whether its difference lies above, below or among those of other texts. A
*setting* is a model and a layout.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from harness.analysis.paired_tests import count_needed_problems
from harness.analysis.result_tables import Leaderboard, list_rows
from harness.analysis.sample_scores import NUMBER, SCORE_MEANINGS
from harness.analysis.verdicts import estimate_sample
from harness.constants import ALPHA, BASELINE, FEWEST_DRAWS, NOT_SHOWN, SIGNIFICANT_VERDICTS, Row
from harness.display.comparison_columns import COLUMN_BY_ENDING
from harness.display.value_texts import (
    LEVEL_TEXT,
    define_flips,
    describe_repeat,
    format_difference,
    format_interval,
    format_margin,
    format_p_value,
    label,
    plural,
)
from harness.errors import list_first
from harness.experiment.conditions import POSITIVE_CONTROL

UNGRADED_PERCENT_FOR_WARNING = 5.0
"""From this percentage of ungraded samples on, a warning says how they ended."""
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
PHRASE_BY_COUNTED_COLUMN = {
    "next_question": "with a next question in the format of the run, from which on nothing is "
    "graded",
    "no_reply": "without a whole completion of the server, which count as not correct",
}
"""Columns of mediators whose samples a remark counts in each condition, however few they are."""
LEAST_PRINTED_PERCENT = 0.05
"""Endings of a smaller percentage are left out, as it would be written as 0.0."""
FEWEST_CLUSTERS_WITHOUT_WARNING = 15
"""With fewer clusters there is a warning: with 8, intervals are 57 to 102 points long."""


class Explanation(NamedTuple):
    """What the table of a comparison says besides its numbers, the important texts first.

    Attributes:
        facts: The values of the names in braces in the columns' legends.
        warnings: Sentences without which the numbers would mislead.
        remarks: Further sentences.
    """

    facts: dict[str, Any]
    warnings: list[str]
    remarks: list[str]


class NoiseRemark(NamedTuple):
    """A sentence about noise, and whether it is a warning: the run is too insensitive."""

    sentence: str
    is_warning: bool


def explain_comparison(board: Leaderboard, rows: Sequence[Row]) -> Explanation:
    """The warnings and remarks of a comparison, and the facts in its legends.

    A sentence without which the numbers would mislead is a warning: about the data, too few
    clusters, the place among other texts, and a positive control that was not detected.

    Args:
        board: All tables.
        rows: The rows of the comparison that the table shows.
    """
    warnings = [*_warn_of_data(board)]
    compared_rows = [row for row in rows if row["role"] != "baseline"]
    if not compared_rows:
        return Explanation({}, warnings, ["There is only one condition, so nothing is compared."])
    tested_rows = [row for row in compared_rows if row["role"] == "tested"]
    problem_count = min(row["problems"] for row in rows)
    cluster_count = min(board.cluster_count or problem_count, problem_count)
    cluster_noun = "clusters" if board.cluster_count else "problems"
    if cluster_count < FEWEST_CLUSTERS_WITHOUT_WARNING:
        warnings.append(
            f"Only a very large difference can be shown with {cluster_count} {cluster_noun}."
        )
    warnings += _describe_places(board, tested_rows)
    # sentences are about all rows, so the row with the fewest draws decides
    draw_count = min(row["draws"] for row in compared_rows)
    scope_text = _describe_scope(board, draw_count)
    remarks = [
        *_remark_roles(compared_rows, tested_rows),
        *_remark_examples(board, draw_count, scope_text),
    ]
    if board.score != NUMBER:
        remarks += _remark_sample_size(tested_rows, cluster_count, cluster_noun, draw_count)
    if not board.by:
        for sentence, is_warning in remark_noise(board):
            (warnings if is_warning else remarks).append(sentence)
    facts = {
        "baseline": label(board.baseline),
        "flips": define_flips(compared_rows),
        "unit": "" if board.score == NUMBER else ", in points",
    }
    # without tests, the legends of p and verdict are left out because they lack these facts
    if tested_rows:
        margin = tested_rows[0]["margin"]
        facts |= {
            "adjustment": _describe_adjustment(board, tested_rows),
            "examples": f" with {scope_text}" if scope_text else "",
            "margin": margin,
            "fewest": f", on at least {count_needed_problems(margin / 100)} {cluster_noun}",
        }
    return Explanation(facts, warnings, remarks)


def _warn_of_data(board: Leaderboard) -> Iterator[str]:
    """Another score, ungraded samples, remarkable runs, problems that are left out."""
    if board.score:
        # a score such as `pass@2` has its meaning under its kind, `pass`
        score_kind = board.score.split("@")[0]
        yield f"{board.score} instead of accuracy: {SCORE_MEANINGS[score_kind]}."
    yield from warn_of_ungraded(board)
    yield from _warn_of_runs(board)
    if board.omitted_count:
        yield (
            f"{board.omitted_count} problems are left out, because not all models or conditions "
            "have them."
        )


def _remark_sample_size(
    tested_rows: Sequence[Row], cluster_count: int, cluster_noun: str, draw_count: int
) -> Iterator[str]:
    """The sample that would make an inconclusive contrast equivalent, if none is large enough."""
    sample_sizes = [
        estimate_sample(row, row["margin"], cluster_count, side_count=2)
        for row in tested_rows
        if row["verdict"] == "inconclusive"
    ]
    least_size = min(sample_sizes, default=0)
    if least_size > cluster_count:
        draws_text = " and as many times the draws" if draw_count >= FEWEST_DRAWS else ""
        yield (
            f"inconclusive: equivalence within {format_margin(tested_rows[0]['margin'])} would "
            f"need about {least_size:,} {cluster_noun}{draws_text}; here are {cluster_count:,}."
        )


def _describe_scope(board: Leaderboard, draw_count: int) -> str:
    """The examples for which verdicts, intervals and p hold; empty without examples.

    From FEWEST_DRAWS draws on, these are new draws: of examples, of instructions, or of both. With
    fewer draws they are the examples of the run.
    """
    fewshot_settings = [
        (receipt.get("settings") or {}).get("fewshot") or {} for receipt in board.receipts
    ]
    if draw_count < FEWEST_DRAWS:
        return "these examples" if draw_count > 1 or any(fewshot_settings) else ""
    if not all(fewshot.get("instructions") for fewshot in fewshot_settings):
        # a run without instructions draws examples only
        return "new draws of examples"
    if any(fewshot["num_fewshot"] for fewshot in fewshot_settings):
        return "new draws of examples and their instructions"
    return "new draws of instructions"


def _remark_examples(board: Leaderboard, draw_count: int, scope_text: str) -> Iterator[str]:
    """For which examples, and for which fillers, intervals and p hold."""
    if draw_count >= FEWEST_DRAWS:
        # `new draws of examples` becomes `4 draws of examples`
        yield (
            f"{draw_count} {scope_text.removeprefix('new ')}: intervals and p are for new draws "
            "from the same pool."
        )
    elif scope_text:
        yield (
            "Verdicts, intervals and p are for these examples only and say nothing about others. "
            f"From {FEWEST_DRAWS} draws of examples on, they are for new draws."
        )
    fresh_filler_names = chain(
        *((receipt.get("settings") or {}).get("fresh", ()) for receipt in board.receipts)
    )
    if fresh_filler_labels := [label(name) for name in dict.fromkeys(fresh_filler_names)]:
        yield (
            f"New fillers for each problem or sample: {list_first(fresh_filler_labels)}. "
            "Intervals and p are for new problems with new fillers."
        )


def _describe_places(board: Leaderboard, tested_rows: Sequence[Row]) -> Iterator[str]:
    """The places among other texts; if there is a primary contrast, only of this contrast."""
    has_settings = has_several_settings(tested_rows)
    for row in tested_rows:
        place = describe_place(board, row)
        if place and (row["primary"] or not board.primary):
            setting_text = f"{row['model']}, {row['layout']}, " if has_settings else ""
            yield f"{setting_text}{label(row['condition'])}: {place}."


def find_families(text_rows: Iterable[Row], contrast_row: Mapping[Any, Any]) -> list[Row]:
    """The rows of `text_table` for a row of the comparison, one for each family."""
    keys = ("model", "layout", "condition")
    return [row for row in text_rows if all(row[key] == contrast_row[key] for key in keys)]


def describe_place(board: Leaderboard, contrast_row: Row) -> str:
    """The verdict together with the place among other texts; empty without other texts.

    If families show different places, the filler counts as among the other texts. The range of each
    family follows in brackets, or the reason why it shows no place.

    Args:
        board: All tables.
        contrast_row: A row of the comparison.
    """
    family_rows = find_families(list_rows(board.side_tables["texts"]), contrast_row)
    if not family_rows:
        return ""
    place = contrast_row["other_texts"]
    if place == NOT_SHOWN and not any(row["reason"] for row in family_rows):
        # each family has a place, but they are not the same
        place = "among"
    sentence = _join_verdict_and_place(board, contrast_row["verdict"], place)
    return f"{sentence} ({'; '.join(map(_describe_family, family_rows))})"


def _join_verdict_and_place(board: Leaderboard, verdict: str | None, place: str) -> str:
    """Two clauses: one compares the filler with the baseline, one with the other texts.

    If only the other texts differ from the filler, both are one clause.
    """
    baseline_noun = baseline_phrase = label(board.baseline)
    if board.baseline == BASELINE:
        # the usual baseline, `wo`, is the problem without a filler
        baseline_noun = "no text"
        baseline_phrase = "without a text"
    if verdict == "inconclusive" and place in ("above", "below"):
        # in one clause, because "inconclusive; better than" would seem to contradict itself
        return f"differs from other texts of this length, not from {baseline_noun}"
    direction = verdict if verdict in SIGNIFICANT_VERDICTS else "better or worse"
    clause_by_place = {
        "above": "better than other texts of this length",
        "below": "worse than other texts of this length",
        "among": f"not shown to be {direction} than other texts of this length",
        NOT_SHOWN: "its place among other texts of this length is not shown",
    }
    if verdict in SIGNIFICANT_VERDICTS:
        return f"{verdict} than {baseline_phrase}; {clause_by_place[place]}"
    # an exploratory difference has no verdict
    return f"{verdict}; {clause_by_place[place]}" if verdict else clause_by_place[place]


def _describe_family(family_row: Row) -> str:
    """A family of other texts: the filler's place and the range, or why no place is shown."""
    family_text = f"{family_row['texts']} {family_row['kind']}"
    if family_row["reason"]:
        return f"{family_text}: {family_row['reason']}"
    range_text = format_interval(family_row["range_low"], family_row["range_high"], has_sign=True)
    return f"{family_text}: {family_row['place']} their {LEVEL_TEXT} range {range_text}"


def _describe_adjustment(board: Leaderboard, tested_rows: Sequence[Row]) -> str:
    """How p is adjusted for several tests: by Holm over all contrasts but the primary one."""
    holm_rows = [row for row in tested_rows if not row["primary"]]
    if not holm_rows:
        return " of the primary contrast alone"
    tests_text = f"{len(holm_rows)} {plural('test', len(holm_rows))}"
    if board.contrasts is None:
        determiner = "the" if len(holm_rows) == 1 else "all"
        return (
            f", adjusted by Holm over {determiner} {tests_text} of this table, not named before "
            "the run"
        )
    if not board.primary:
        return f", adjusted by Holm over the {tests_text} named before the run"
    if has_several_settings(tested_rows):
        # the tests of each setting are adjusted on their own, after its primary contrast
        tests_text = "tests of each model and layout"
    return (
        f", adjusted by Holm over the {tests_text} named before the run besides the primary "
        "contrast"
    )


def _warn_of_runs(board: Leaderboard) -> Iterator[str]:
    """Runs that grew after their table was printed, or asked a server."""
    for receipt in board.receipts:
        if remarks := receipt.get("remarks"):
            yield f"{receipt['name']}: {'; '.join(remarks)}."
        if (look_count := receipt.get("looks", 1)) > 1:
            yield (
                f"{receipt['model']}: look {look_count}. Problems or samples were added after a "
                f"table was printed, so p is multiplied by {look_count}."
            )
        added_tokens = receipt.get("added_tokens", 0)
        # None: the server's number of prompt tokens cannot be compared with ours
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


def _remark_roles(compared_rows: Sequence[Row], tested_rows: Sequence[Row]) -> Iterator[str]:
    """The meaning of the star and of the word exploratory, if the table has them."""
    if any(row["primary"] for row in compared_rows):
        share_text = ""
        if has_several_settings(compared_rows):
            share_text = ", with an equal share of alpha for each model and layout"
        yield (
            f"*: the primary contrast, tested first{share_text}. "
            "The other contrasts are tested only if it is significant."
        )
    if len(tested_rows) < len(compared_rows):
        yield (
            "exploratory: not named before the run, so p is not adjusted, and there is no verdict."
        )


def warn_of_ungraded(board: Leaderboard) -> Iterator[str]:
    """How ungraded samples ended, and the contrasts that are `unmeasured` with the reason."""
    if not board.by:
        yield from _warn_of_endings(board)
    labels_by_reason: dict[str, list[str]] = {}
    for row in list_rows(board.comparison):
        if row["verdict"] == "unmeasured":
            labels_by_reason.setdefault(row["unmeasured"], []).append(label(row["condition"]))
    for reason, labels in labels_by_reason.items():
        # a condition has a row for each model and layout, but is listed once
        yield f"unmeasured ({list_first(list(dict.fromkeys(labels)), 4)}): {reason}."


def _warn_of_endings(board: Leaderboard) -> Iterator[str]:
    """How samples ended, in each model and layout.

    A first sentence counts special samples in every condition, such as those with a next question.
    A second one names the conditions with the fewest and the most ungraded samples, if the most
    are many.
    """
    rows_by_setting: dict[str, list[Row]] = {}
    for row in list_rows(board.side_tables["mediators"]):
        if row["condition"] not in board.reference_conditions:
            rows_by_setting.setdefault(f"{row['model']}, {row['layout']}", []).append(row)
    for setting_name, rows in rows_by_setting.items():
        setting_text = f", {setting_name}" if len(rows_by_setting) > 1 else ""
        yield from _describe_special_samples(rows, setting_text)
        # the sort is stable: if conditions have equal sums, the first and the last are named
        sorted_rows = sorted(rows, key=_sum_ungraded_percent)
        least_row = sorted_rows[0]
        most_row = sorted_rows[-1]
        if _sum_ungraded_percent(most_row) >= UNGRADED_PERCENT_FOR_WARNING:
            extremes_text = f"most in {_describe_endings(most_row)}"
            if least_row is not most_row:
                extremes_text = f"least in {_describe_endings(least_row)}; {extremes_text}"
            yield f"Not graded{setting_text}: {extremes_text}. {_advise_on_endings(most_row)}"


def _describe_special_samples(rows: Sequence[Row], setting_text: str) -> Iterator[str]:
    """In each condition, the samples with a next question, or without a whole completion."""
    for column, phrase in PHRASE_BY_COUNTED_COLUMN.items():
        count_texts = [
            f"{label(row['condition'])} {row[column] * row['samples'] / 100:.0f}"
            for row in rows
            if row[column]
        ]
        if count_texts:
            yield f"Samples {phrase}{setting_text}: {', '.join(count_texts)}."


def _advise_on_endings(row: Row) -> str:
    """What a user can do about the most frequent ending of the ungraded samples of a row."""
    ending = max(COLUMN_BY_ENDING, key=lambda ending: row[COLUMN_BY_ENDING[ending].field_names])
    # a higher limit helps only if most of the unfinished reasoning was cut off by it
    if ending == "unfinished" and 2 * row["cut_reasoning"] <= row["unfinished"]:
        ending += " before the limit"
    return ADVICE_BY_ENDING[ending]


def _sum_ungraded_percent(row: Row) -> float:
    """The percentage of ungraded samples."""
    return float(sum(row[column.field_names] for column in COLUMN_BY_ENDING.values()))


def _describe_endings(row: Row) -> str:
    """The condition of a row, with the percentage of each ending of its ungraded samples."""
    endings = [
        f"{ending} {row[column.field_names]:.1f} %"
        for ending, column in COLUMN_BY_ENDING.items()
        if row[column.field_names] >= LEAST_PRINTED_PERCENT
    ]
    return f"{label(row['condition'])} ({', '.join(endings) or '0 %'})"


def remark_noise(board: Leaderboard) -> Iterator[NoiseRemark]:
    """The repeat run (A/A) and the positive control, by model and layout."""
    for row in list_rows(board.comparison):
        reference_fields = board.reference_conditions.get(row["condition"], {})
        if row["aa_difference"] is not None:
            sentence = (
                f"A/A, {row['model']}, {row['layout']}, {label(row['condition'])} and its "
                f"baseline: {describe_repeat(row)}."
            )
            # greedy samples have no seeds
            if not all(receipt.get("greedy") for receipt in board.receipts):
                sentence += (
                    " The samples of both have the same seeds, and the repeat run has others."
                )
            # no warning, because tests and intervals allow for the noise of samples
            yield NoiseRemark(sentence, is_warning=False)
        elif reference_fields.get("kind") == POSITIVE_CONTROL:
            yield _judge_control(row)


def _judge_control(row: Row) -> NoiseRemark:
    """Whether the positive control was detected; a warning if it was not."""
    # the control must lower the accuracy, so a rise does not show that effects are visible
    is_detected = row["p"] < ALPHA and row["difference"] < 0
    outcome_text = "NOT DETECTED, so effects that this run does not find may still exist"
    if is_detected:
        outcome_text = "detected, so grader and pairing work"
    return NoiseRemark(
        f"Positive control, {row['model']}, {row['layout']} ({row['condition']}): "
        f"{format_difference(row['difference'], row['low'], row['high'])}, "
        f"p {format_p_value(row['p'])}: {outcome_text}.",
        is_warning=not is_detected,
    )
