"""mless: do meaningless tokens before a maths question make a language model answer better?"""

from importlib import import_module
from typing import Any

PLACES = {
    "attention": "execution.attend_prompts",
    "RunConfig": "experiment.run_config",
    "load_config": "experiment.run_config",
    "grade": "grading",
    "load_run": "runs.samples_frame",
    "Run": "runs.read_runs",
    "compare": "analysis.compare_with_baseline",
    "run": "execution.run_in_subprocess",
}
"""The public names, each with its module, which is imported when the name is first used: `mless
--help` needs none."""
__all__ = sorted(PLACES)


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
