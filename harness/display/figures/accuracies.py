"""Each condition's accuracy as a dot with its interval."""

from __future__ import annotations

from functools import partial

import pandas
from matplotlib.figure import Figure

from harness.display.figures import style
from harness.display.figures.rows import Row, draw_estimate, draw_rows
from harness.display.numbers import LEVEL, interval, number
from harness.display.visible import visible


def draw_accuracies(table: pandas.DataFrame, *, title: str) -> Figure:
    """A row for each model, layout and condition, in the table's order. The axis holds the intervals, not zero.

    Args:
        table: Rows with model, layout, condition, n, accuracy and its interval, accuracy_low to accuracy_high, as of
            `harness.analysis.compare` or `outcomes.accuracy_table`; rows of yardsticks and contrasts are left out.
        title: Above it.
    """
    shown = style.without_contrasts(style.without_yardsticks(table))
    looks, size = style.looks(shown["condition"]), style.FONT
    rows = []
    for name, mine in style.split_settings(shown).items():
        rows.append(Row(f"{name} (n = {mine['n'].iloc[0]})"))
        for row in mine.to_dict("records"):
            low, high = row["accuracy_low"], row["accuracy_high"]
            draw = partial(
                draw_estimate,
                look=looks[row["condition"]],
                low=low,
                value=row["accuracy"],
                high=high,
                filled=True,
                size=size,
            )
            cells = {"%": number(row["accuracy"]), "interval": interval(low, high)}
            rows.append(Row(style.label(row["condition"]), draw, cells))
    note = (
        f"Lines: {LEVEL} score intervals, each of one accuracy by itself. Whether two conditions differ is a paired "
        "question: overlap does not answer it, the forest plot does." + style.about_yardsticks(table)
    )
    columns = {"%": 0.1, "interval": 0.5}
    figure, axes = draw_rows(rows, columns=columns, right=1.3, note=note, title=visible(title, keep=""))
    axes.set_xlabel("Accuracy (%)")
    return figure
