"""The attention probe: chosen prompts of a run through the first layers alone, and what each head does with a filler.

prompts -> the first layers, reduced while they run -> measures -> traces -> curves, rankings, figures
"""
