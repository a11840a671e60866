"""The attention probe: chosen prompts of a run through the first layers alone, and what each head does with a filler.

prompts -> the first layers, reduced while they run -> measures -> traces -> curves, rankings, figures
"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "run_probe": ["run_probe"],
        "settings": ["ProbeSettings"],
        "traces": ["AttentionTraces"],
        "analysis.averaging": ["aligned_curve", "full_curve"],
        "analysis.head_ranking": ["rank_heads"],
        "figures.make_figure": ["make_figure"],
    },
)
