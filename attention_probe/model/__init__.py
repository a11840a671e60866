"""The first layers of a model: loaded alone, run once, their attention reduced while it is computed."""
