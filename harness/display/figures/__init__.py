"""The figures of accuracies and differences: a table in, a matplotlib figure out, and nothing computed in between.

Tables are those of `harness.analysis.compare`; only the lengths are drawn from samples. Every figure has
colours that the colour-blind tell apart, and below it what its marks mean.
"""
