"""What exists only because of lm-eval: functions that the tasks name, links to the tasks, lm-eval's result files."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "links": ["include_path", "link", "unlink"],
        "check_tasks": ["check_tasks"],
        "standalone": ["write_standalone"],
        "write_results": ["export"],
    },
)
