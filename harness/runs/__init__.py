"""The stored form of a run, and the readers of runs and of lm-eval's logs.

journal + scores + prompts + receipt = a run folder -> a frame of samples
"""
