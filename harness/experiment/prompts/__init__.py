"""Prompts: template -> prompt -> chat template and tokens -> built prompt -> checked prompts."""
