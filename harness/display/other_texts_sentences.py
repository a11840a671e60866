"""The place of a contrast among other texts, in words beside its verdict."""

from harness.analysis.other_texts import AFTER_RUN, EXPLORATORY, NOT_SHOWN
from harness.analysis.result_tables import Leaderboard, records
from harness.constants import BASELINE, PASSED
from harness.display.format_table import Row

VERDICTS = {
    "better": "better than {baseline}",
    "worse": "worse than {baseline}",
    "equivalent": "as accurate as {baseline}",
    "inconclusive": "not shown to be better or worse than {baseline}",
    "unmeasured": "unmeasured compared with {baseline}",
    None: "without a verdict compared with {baseline}",
}
PLACES = {
    "above": "better than {others}",
    "below": "worse than {others}",
    "among": "not shown to be {direction} than {others}",
    NOT_SHOWN: "its place among {others} is not shown: {reasons}",
}


def find_families(board: Leaderboard, contrast: Row) -> list[Row]:
    """The rows of `text_table` of the families that decide about a row of the comparison."""
    keys = ("model", "layout", "condition")
    return [
        row
        for row in records(board.side_tables["texts"])
        if row["named"] != EXPLORATORY and all(row[key] == contrast[key] for key in keys)
    ]


def describe_place(board: Leaderboard, contrast: Row) -> str:
    """The verdict together with the place among other texts; empty without texts that decide.

    Args:
        board: All tables.
        contrast: A row of the comparison.
    """
    families = find_families(board, contrast)
    if not families:
        return ""
    others = "other texts of this length"
    if families[0]["named"] == AFTER_RUN:
        others = "other texts named after the run"
    verdict, place = contrast["verdict"], contrast["other_texts"]
    is_usual = board.baseline == BASELINE
    if verdict == "inconclusive" and place in ("above", "below"):
        return f"differs from {others}, not from {'no text' if is_usual else board.baseline}"
    reasons = [f"{row['reason'] or row['place']} ({row['kind']})" for row in families]
    facts = {
        "baseline": "without a text" if is_usual else board.baseline,
        "direction": verdict if verdict in PASSED else "better or worse",
        "others": others,
        "reasons": ", ".join(reasons),
    }
    return f"{VERDICTS[verdict]}; {PLACES[place]}".format_map(facts)
