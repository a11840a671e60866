"""The report: one self-contained HTML file about one run or several.

    runs -> card, forest plot, tables, packed samples, attention of the probe, receipts -> one page

Models write hostile text. The template escapes everything, the script builds nodes and never
markup, and the page's own policy forbids every script but ours and every connection.
"""
