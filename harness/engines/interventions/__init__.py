"""Interventions carried out: the arithmetic, inside vLLM's workers, and in Hugging Face to check it against."""

import os

from harness.engines.engine_processes import INTERVENTIONS


def install() -> None:
    """A general plugin of vLLM's: where INTERVENTIONS is set, its workers open those layers as they load the model."""
    if INTERVENTIONS in os.environ:
        from harness.engines.interventions.vllm_worker import install_at_load

        install_at_load()
