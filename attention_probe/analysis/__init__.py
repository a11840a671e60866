"""Curves of attention with bands over prompts."""
