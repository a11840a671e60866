"""mless: does a run of meaningless tokens before a maths question make a language model answer better?"""

from harness.runs.sample_frame import load_run

__all__ = ["load_run"]
