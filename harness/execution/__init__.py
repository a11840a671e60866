"""It is done: a plan is run or continued, a finished run is graded again."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "run": ["execute", "finish"],
        "regrade": ["regrade"],
    },
)
