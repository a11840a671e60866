"""harness/experiment."""
