"""harness/display."""
