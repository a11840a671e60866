"""mless: does a run of meaningless tokens before a maths question make a language model answer better?"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "experiment.config": ["RunConfig", "load_config"],
        "experiment.plan": ["make_plan"],
        "grading": ["grade"],
        "runs.sample_frame": ["load_run"],
        "runs.read_run": ["read_run"],
        "analysis.comparison": ["compare"],
        "execution.run": ["execute"],
        "execution.own_process": ["run"],
    },
)
