"""One command that shows on one machine what is claimed of runs, and one that checks what another machine showed.

`verify` measures: it starts real runs in processes of their own and keeps what they wrote. `check` derives every number
again from the files, without a GPU, and names what does not fit together.
"""

from harness.verification.verifier import PAGE, Settings, check, verify

__all__ = ["PAGE", "Settings", "check", "verify"]
