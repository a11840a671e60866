"""The figures of both packages: rows with intervals (dots), lines over x (lines) and shares by length (ecdf).

A table goes in, a matplotlib figure comes out. Every figure has the looks of `style`, and a caption below says what its
marks mean. `saving` writes them.
"""
