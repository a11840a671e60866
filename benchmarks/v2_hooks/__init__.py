"""Interventions in vLLM's V2 model runner, with one Triton kernel for attention: see README.md."""
