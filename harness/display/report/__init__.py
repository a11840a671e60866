"""A report: one HTML file about one run or several, which needs nothing else to be read.

    run folders -> Content (samples, prompts, receipts) -> tables, words, drawings, packed details -> one page

What models wrote is hostile text. The template escapes everything, the script builds nodes and never markup, and the
page's own policy forbids every script but ours and every connection.
"""

from harness.display.report.attention import AttentionFile, MeanCurve, PromptCurves
from harness.display.report.page import write_report

__all__ = ["AttentionFile", "MeanCurve", "PromptCurves", "write_report"]
