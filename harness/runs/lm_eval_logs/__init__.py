"""lm-eval's logs, of our tasks and of any other: one sample log, the results file beside it, and several as one run."""
