"""The attention probe: what the first layers' heads do with a filler. Not built yet."""
