"""attention_probe/model."""
