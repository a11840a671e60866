"""What is kept of a run, and how runs and lm-eval's logs are read again.

journal + scores + prompts + receipt = a run folder -> one frame of samples
"""
