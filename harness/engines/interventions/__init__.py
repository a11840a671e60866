"""Interventions: their arithmetic, in vLLM's workers, and in Hugging Face as the reference."""

import os

from harness.engines.engine_processes import INTERVENTIONS


def install() -> None:
    """Have vLLM's workers open the layers of INTERVENTIONS, if it is set, as they load the model.

    vLLM calls this as a general plugin.
    """
    if INTERVENTIONS in os.environ:
        from harness.engines.interventions.vllm_worker import install_at_load

        install_at_load()
