"""From traces to answers: curves with bands over prompts, and which heads differ between two conditions."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "curve": ["Curve", "as_frame"],
        "averaging": ["aligned_curve", "average_curves", "difference_curve", "full_curve"],
        "head_ranking": ["max_t", "permute_labels", "rank_heads"],
        "summary": ["summary"],
    },
)
