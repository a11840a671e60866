"""From a completion to a verdict. Model output is hostile text: nothing here evaluates it."""

from harness.grading.grade import Grade, Verdict, grade

__all__ = ["Grade", "Verdict", "grade"]
