"""One command that shows on one machine what is claimed of runs, and one that checks what another machine showed.

`verify` measures: it starts real runs in processes of their own and keeps what they wrote. `check` believes no number:
it derives every one of them again from the files, without a GPU.
"""

from harness.verification.verifier import Settings, check, verify

__all__ = ["Settings", "check", "verify"]
