"""Figures from configs or traces: curves of heads, or the first MLP's activations."""
