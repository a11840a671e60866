"""attention_probe/measure."""
