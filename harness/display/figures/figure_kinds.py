"""The figures of `mless plot`. Each has a name in `FigureKind` and a case in `draw_figures`."""

from collections.abc import Iterator, Sequence

import pandas
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.analysis.result_tables import Leaderboard, join_conditions, records
from harness.constants import FigureKind
from harness.display.figures.figure_style import without_reference_conditions
from harness.display.figures.forest_figure import draw_forest
from harness.display.figures.sweep_figure import draw_dose, find_sweeps
from harness.display.value_texts import name_score
from harness.errors import ComparisonError
from harness.runs.run_reader import Run


def draw_figures(
    board: Leaderboard, runs: Sequence[Run], kinds: Sequence[FigureKind]
) -> Iterator[tuple[FigureKind, tuple[Figure, pandas.DataFrame]]]:
    """The figures of the requested kinds, with the numbers that they show.

    If no kind is requested, these are all figures that can be drawn of the runs.

    Raises:
        ComparisonError: nothing is compared with the baseline, or a requested kind needs other
            runs.
    """
    run_names = " ".join(run.name for run in runs)
    table = without_reference_conditions(board.comparison)
    if table["difference"].isna().all():
        raise ComparisonError(f"{run_names}: there is nothing to compare with {board.baseline}.")
    conditions = join_conditions(runs)
    for kind in dict.fromkeys(kinds or FigureKind):
        if kind == FigureKind.DOSE and not find_sweeps(conditions):
            if not kinds:
                continue
            raise ComparisonError(
                f"{run_names}: no filler has two lengths, so there is no such figure to draw."
            )
        numbers = board.comparison
        if kind == FigureKind.FOREST:
            figure = draw_forest(numbers, records(board.side_tables["texts"]))
        else:
            fields = [{"condition": name} | conditions[name].describe() for name in conditions]
            # the axis shows differences from the baseline, which all other contrasts are not
            numbers = numbers[numbers["baseline"] == board.baseline]
            numbers = numbers.merge(pandas.DataFrame(fields), on="condition", how="left")
            figure = draw_dose(numbers, conditions)
        # the figure's texts say accuracy, although the runs may be compared by another score
        for text in figure.findobj(Text):
            text.set_text(name_score(text.get_text(), board.score))
        yield kind, (figure, numbers)
