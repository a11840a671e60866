"""The figures of accuracies and differences: a table in, a matplotlib figure out, and nothing computed in between.

Tables are those of `harness.statistics.compare`; only the lengths are drawn from samples. Every figure has a page and a
column width, colours that the colour-blind tell apart, and below it what its marks mean.
"""

from harness.figures.bars import draw_accuracy_bars, plot_accuracy_bars
from harness.figures.flip_matrix import draw_flip_matrix
from harness.figures.forest import draw_forest
from harness.figures.lengths import draw_lengths, length_shares
from harness.figures.saving import save_figure
from harness.figures.splits import draw_split_differences
from harness.figures.style import COLOURS, Width

__all__ = [
    "COLOURS",
    "Width",
    "draw_accuracy_bars",
    "draw_flip_matrix",
    "draw_forest",
    "draw_lengths",
    "draw_split_differences",
    "length_shares",
    "plot_accuracy_bars",
    "save_figure",
]
