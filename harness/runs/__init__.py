"""harness/runs."""
