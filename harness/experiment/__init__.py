"""What is asked: conditions and problems become prompts, checked token by token, and a config becomes a plan.

config -> problems x conditions -> prompts with their token checks -> plan -> requests
"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "conditions": ["Condition", "Filler", "Placement", "Sentence", "named_conditions"],
        "problems": ["Dataset", "Problem"],
        "prompt": ["Layout", "Prompt", "build_prompt"],
        "token_checks": ["PromptBuilder"],
        "sampling": ["Sampling"],
        "config": ["RunConfig", "load_config"],
        "plan": ["Plan", "make_plan"],
        "requests": ["Request"],
    },
)
