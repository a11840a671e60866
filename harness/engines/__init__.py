"""Engines: requests go in, and completions come out as they finish.

`backends` opens the backend of a run config. All backends return `completions`. `vllm_engine` runs
vLLM's engines, and `engine_options` has their arguments; `engine_choice` opens one of them, or an
`engine_pool` that puts several in Ray actors (`ray_carrier`) behind one queue. `served_model` sends
requests to a server. All other backends are models of lm-eval's. An engine ends with the run that
started it (`engine_processes`), a call of an engine that hangs is given up (`watched_calls`), and
the error of a failed start names its cause (`start_errors`).
"""
