"""Interventions: their arithmetic, in vLLM's workers, and in Hugging Face as the reference."""
