"""mless: do meaningless tokens before a maths question make a language model answer better?"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.baseline_comparison import compare as compare
    from harness.execution.prepared_run import run as run
    from harness.execution.prompt_attention import attention as attention
    from harness.experiment.run_config import RunConfig as RunConfig
    from harness.experiment.run_config import load_config as load_config
    from harness.grading import grade as grade
    from harness.runs.run_reader import Run as Run
    from harness.runs.samples_frame import load_run as load_run
else:
    from importlib import import_module

    MODULE_BY_NAME = {
        "attention": "execution.prompt_attention",
        "RunConfig": "experiment.run_config",
        "load_config": "experiment.run_config",
        "grade": "grading",
        "load_run": "runs.samples_frame",
        "Run": "runs.run_reader",
        "compare": "analysis.baseline_comparison",
        "run": "execution.prepared_run",
    }
    """The public names, each with its module, which is imported when the name is first used:
    `mless --help` needs none."""
    __all__ = sorted(MODULE_BY_NAME)

    def __getattr__(name):
        if name not in MODULE_BY_NAME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public_object = getattr(import_module(f"{__name__}.{MODULE_BY_NAME[name]}"), name)
        globals()[name] = public_object  # Python then no longer calls this function for the name
        return public_object

    def __dir__():
        return __all__
