"""Logs of lm-eval, Inspect and lighteval, and tables of scores: what other programs wrote."""
