"""attention_probe/analysis."""
