"""A report: one HTML file about one run or several, which needs nothing else to be read.

    run folders -> Content (samples, prompts, receipts) -> tables, words, drawings, packed details -> one page

What models wrote is hostile text. The template escapes everything, the script builds nodes and never markup, and the
page's own policy forbids every script but ours and every connection.
"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "attention": ["AttentionFile", "MeanCurve", "PromptCurves"],
        "page": ["write_report"],
    },
)
