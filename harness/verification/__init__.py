"""Test on one machine what is claimed of runs, and check what another machine measured: `mless verify`.

`verify` measures: it starts real runs in processes of their own and keeps what they wrote. `check` derives every number
again from these files, without a GPU, and names what does not fit together.
"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__, {"verifier": ["check", "verify"], "record": ["PAGE", "Settings"]})
