"""Loads a model's first layers, runs them once, and reduces their attention on the way."""
