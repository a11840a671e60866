"""One YAML, one figure: curves of chosen heads or the first MLP's activations, measured where they are missing."""
