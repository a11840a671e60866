"""The figures of accuracies and differences: a table in, a matplotlib figure out, and nothing computed in between.

Tables are those of `harness.analysis.compare`; only the lengths are drawn from samples. Every figure has
colours that the colour-blind tell apart, and below it what its marks mean.
"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "accuracies": ["draw_accuracies"],
        "completion_lengths": ["draw_completion_lengths", "length_shares"],
        "forest": ["draw_forest"],
        "saving": ["save_figure", "write_figure"],
        "style": ["COLOURS"],
    },
)
