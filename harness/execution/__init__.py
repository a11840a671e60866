"""harness/execution."""
