"""Curves with bands over prompts, and a ranking of heads between two conditions."""
