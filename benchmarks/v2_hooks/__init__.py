"""Interventions in vLLM's V2 model runner, with one Triton kernel for attention: see README.md."""

import os
from types import SimpleNamespace

if "TRITON_INTERPRET" in os.environ:  # so that Triton and vLLM's V2 runner work on a CPU
    from triton.backends import backends

    # vLLM only asks, when it is imported, whether a device has an active driver
    driver = SimpleNamespace(is_active=lambda: True)
    backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)
