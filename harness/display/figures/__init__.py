"""The figures of both packages: rows with intervals (`interval_rows`), and lines over x (`lines`).

A table goes in, a matplotlib figure comes out. Every figure has the looks of `figure_style`, which also writes it, and
a caption below says what its marks mean.
"""
