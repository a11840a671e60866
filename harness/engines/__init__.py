"""Who answers: requests in, completions out as they finish.

vLLM is touched in `vllm` alone; every other backend is one of lm-eval's models. Engines end with the run that started
them (`lifetime`), and a start that fails names its cause (`start_errors`).
"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "vllm": ["VLLMEngine", "check_arguments"],
        "lm_eval_models": ["open_backend"],
        "lm_eval_vllm": ["MlessVLLM"],
        "gpus": ["gpus"],
    },
)
