"""The first layers of a model: loaded alone, run once, their attention reduced while it is computed."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "load_first_layers": ["LoadedModel", "load_model"],
        "reduce_attention": ["Capture"],
        "capture": ["capture"],
    },
)
