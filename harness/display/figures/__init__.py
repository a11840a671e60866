"""The figures of accuracies and differences: a table in, a matplotlib figure out, and nothing computed in between.

Tables are those of `harness.analysis.compare`; only the lengths are drawn from samples. Every figure has a page and a
column width, colours that the colour-blind tell apart, and below it what its marks mean.
"""

from harness.display.figures.bars import draw_accuracy_bars, plot_accuracy_bars
from harness.display.figures.flip_matrix import draw_flip_matrix
from harness.display.figures.forest import draw_forest
from harness.display.figures.lengths import draw_lengths, length_shares
from harness.display.figures.saving import save_figure
from harness.display.figures.splits import draw_split_differences
from harness.display.figures.style import COLOURS, Width

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
