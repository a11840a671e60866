"""One YAML, one figure: curves of chosen heads or the first MLP's activations, measured where they are missing."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "config": ["FigureConfig", "load_figure_config"],
        "make_figure": ["make_figure"],
        "draw": ["draw_figure"],
        "activations": ["draw_activations"],
    },
)
