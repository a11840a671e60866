"""What is measured of each head, and the definition of every number that is kept."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "definitions": ["ARRAYS", "MEASURES", "Quantity"],
        "measure_prompts": ["Measurement", "Record", "measure_group"],
    },
)
