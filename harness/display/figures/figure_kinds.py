"""The figures of `mless plot`. A new kind has a name in `Kind` and an entry in `FIGURES`."""

from collections.abc import Callable, Iterator, Sequence

import pandas
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.analysis.result_tables import Leaderboard, join_conditions, name_datasets
from harness.analysis.sweeps import find_sweeps
from harness.constants import Kind
from harness.display.figures.figure_style import without_contrasts, without_reference_conditions
from harness.display.figures.interval_rows import draw_accuracies, draw_forest
from harness.display.figures.lines import draw_dose
from harness.display.format_values import name_score
from harness.errors import ComparisonError
from harness.runs.read_runs import Run

Drawing = tuple[Figure, pandas.DataFrame]
"""A figure and the numbers that it shows."""


def draw_figures(
    board: Leaderboard, runs: Sequence[Run], kinds: Sequence[Kind]
) -> Iterator[tuple[Kind, Drawing]]:
    """The figures of the requested kinds; without a request, all that these runs have.

    Raises:
        ComparisonError: nothing is compared with the baseline, or a requested kind needs other
            runs.
    """
    run_names = " ".join(run.name for run in runs)
    if without_reference_conditions(board.comparison)["difference"].isna().all():
        raise ComparisonError(f"{run_names}: there is nothing to compare with {board.baseline}.")
    for kind in dict.fromkeys(kinds or Kind):
        drawing = FIGURES[kind](board, runs)
        if drawing is not None:
            for text in drawing[0].findobj(Text):
                text.set_text(name_score(text.get_text(), board.score))
            yield kind, drawing
        elif kinds:
            reason = "no filler has two lengths"
            raise ComparisonError(f"{run_names}: {reason}, so there is no such figure to draw.")


def _draw_accuracies(board: Leaderboard, runs: Sequence[Run]) -> Drawing:
    table = without_reference_conditions(board.comparison)
    title = f"Results on {name_datasets(board.receipt)}"
    return draw_accuracies(table, title=title), table


def _draw_differences(board: Leaderboard, runs: Sequence[Run]) -> Drawing:
    return draw_forest(board.comparison), board.comparison


def _draw_filler_lengths(board: Leaderboard, runs: Sequence[Run]) -> Drawing | None:
    conditions = join_conditions(runs)
    if not find_sweeps(conditions):
        return None
    rows = [{"condition": name, **condition.describe()} for name, condition in conditions.items()]
    table = without_contrasts(board.comparison)
    table = table.merge(pandas.DataFrame(rows), on="condition", how="left")
    return draw_dose(table, conditions), table


FIGURES: dict[Kind, Callable[[Leaderboard, Sequence[Run]], Drawing | None]] = {
    Kind.ACCURACY: _draw_accuracies,
    Kind.FOREST: _draw_differences,
    Kind.DOSE: _draw_filler_lengths,
}
