"""The figures of both packages: differences (`forest_figure`), and sweeps (`sweep_figure`).

The functions make a matplotlib figure from a table. Every figure has the style of `figure_style`,
which also writes it, and a note below that explains its marks.
"""
