"""harness/engines."""
