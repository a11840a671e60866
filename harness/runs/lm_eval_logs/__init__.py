"""lm-eval's logs, of our tasks and of any other: one sample log, the results file beside it, and several as one run."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {"run_of_logs": ["read_logs"], "sample_log": ["SampleLog", "find_logs", "read_log"]},
)
