"""From a completion to a verdict. Model output is hostile text, and is never evaluated as code."""

from harness.grading.answer_extraction import GRADED_VERDICTS, Grade, GradeJob, Verdict
from harness.grading.answer_grading import describe_gold, grade, read_elements
from harness.grading.grader_pool import GraderPool
from harness.grading.other_graders import GRADERS

__all__ = [
    "GRADED_VERDICTS",
    "GRADERS",
    "Grade",
    "GradeJob",
    "GraderPool",
    "Verdict",
    "describe_gold",
    "grade",
    "read_elements",
]
