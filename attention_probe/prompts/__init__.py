"""Which prompts are rerun, and which role each of their tokens has."""
