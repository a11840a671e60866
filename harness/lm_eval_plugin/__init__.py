"""harness/lm_eval_plugin."""
