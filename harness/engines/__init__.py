"""Who answers: requests go in, and completions come out as they finish.

`backends` opens what a run config names. vLLM is used in `vllm_engine` alone; `engine_pool` puts several such engines,
in Ray actors (`ray_carrier`), behind one queue; `served_model` asks a server, and every other backend is one of
lm-eval's models. An engine ends with the run that started it (`engine_processes`), and a failed start names its cause
(`start_errors`).
"""
