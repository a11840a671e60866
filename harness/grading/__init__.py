"""Right or wrong: from a completion to a verdict. Model output is hostile text, and is never evaluated as code."""

from harness.grading.audit import (
    COLUMNS,
    UNGRADED,
    Audit,
    AuditColumns,
    AuditJob,
    as_record,
    as_text,
    column,
)
from harness.grading.grade_completion import GRADER_VERSION, Grade, GradeJob, Verdict, describe_gold, grade
from harness.grading.pool import GraderPool

__all__ = [
    "COLUMNS",
    "GRADER_VERSION",
    "UNGRADED",
    "Audit",
    "AuditColumns",
    "AuditJob",
    "Grade",
    "GradeJob",
    "GraderPool",
    "Verdict",
    "as_record",
    "as_text",
    "column",
    "describe_gold",
    "grade",
]
