"""The figures of `mless plot`. Each has a name in `FigureKind` and a case in `draw_figures`."""

from collections.abc import Iterator, Sequence

import pandas
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.analysis.result_tables import Leaderboard, join_conditions, list_rows
from harness.constants import FigureKind
from harness.display.figures.forest_figure import draw_forest
from harness.display.figures.sweep_figure import draw_dose, find_sweeps
from harness.display.value_texts import replace_accuracy
from harness.errors import ComparisonError
from harness.runs.run_reader import Run


def draw_figures(
    board: Leaderboard, runs: Sequence[Run], kinds: Sequence[FigureKind]
) -> Iterator[tuple[FigureKind, tuple[Figure, pandas.DataFrame]]]:
    """The figures of the requested kinds, with the numbers that they show.

    If no kind is requested, these are all figures that can be drawn of the runs: always the forest
    plot, and the sweep if a filler has two lengths.

    Raises:
        ComparisonError: nothing is compared with the baseline, or a requested kind needs other
            runs.
    """
    run_names = " ".join(run.name for run in runs)
    comparison = board.comparison
    if comparison.loc[comparison["role"] != "reference", "difference"].isna().all():
        raise ComparisonError(f"{run_names}: there is nothing to compare with {board.baseline}.")
    conditions = join_conditions(runs)
    drawable_kinds = [*FigureKind] if find_sweeps(conditions) else [FigureKind.FOREST]
    for kind in dict.fromkeys(kinds or drawable_kinds):
        if kind not in drawable_kinds:
            raise ComparisonError(
                f"{run_names}: no filler has two lengths, so there is no such figure to draw."
            )
        if kind == FigureKind.FOREST:
            numbers = comparison
            figure = draw_forest(numbers, list_rows(board.side_tables["texts"]))
        else:
            # the axis shows differences from the baseline, so contrasts with others are left out
            rows = comparison[comparison["baseline"] == board.baseline]
            condition_facts = [
                {"condition": name} | conditions[name].describe() for name in conditions
            ]
            numbers = rows.merge(pandas.DataFrame(condition_facts), on="condition", how="left")
            figure = draw_dose(numbers, conditions)
        # the figure's texts say accuracy, although the runs may be compared by another score
        for text in figure.findobj(Text):
            text.set_text(replace_accuracy(text.get_text(), board.score))
        yield kind, (figure, numbers)
