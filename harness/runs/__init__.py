"""The stored form of a run, and the readers of runs, logs and tables.

journal + scores + prompts + receipt = a run folder -> a frame of samples
"""
