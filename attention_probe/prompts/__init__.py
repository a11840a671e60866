"""attention_probe/prompts."""
