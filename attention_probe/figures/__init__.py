"""attention_probe/figures."""
