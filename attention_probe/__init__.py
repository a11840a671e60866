"""The attention probe runs selected prompts through a model's first layers and measures each head.

prompts -> the first layers, reduced while they run -> measures -> traces -> curves, figures
"""
