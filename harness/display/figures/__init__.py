"""The figures of both packages: rows with intervals (`interval_rows`), and lines over x (`lines`).

The functions make a matplotlib figure from a table. Every figure has the style of `figure_style`,
which also writes it, and a note below that explains its marks.
"""
