"""A grader worker: the one process in which mathematics meets model text.

Started by `harness.grading.pool`, never by hand. It reads one job a line (JSON) from its standard input and writes one
or more lines back; JSON both ways, so that whatever the text does to this process cannot run in the parent. It knows no
clock and no signals: the parent kills it when it takes too long. When the parent is gone it is killed too, by the
kernel where that can be asked for (Linux), else at the end of its input.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

NICENESS = 5
"""Below the engine, which may need the same cores; not so far that a deadline in wall time means nothing."""

OPEN_FILES = 64
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(memory_bytes: int, *, audits: bool = False) -> None:
    """Prepare the process, say that it is ready, and serve jobs until the input ends."""
    _die_with_parent()
    requests, replies = _private_pipes()
    out_of_memory = f"out of memory (limit {memory_bytes / 2**20:.0f} MiB)"
    farewell = _line({"failed": out_of_memory, "leaving": True})  # made now: later there may be no memory to make it
    try:
        _warm_up(audits=audits)
        _limit(memory_bytes)
        _silence_errors()
        gc.freeze()  # what is loaded by now stays: no reason to look at it again at every collection
        replies.write(_line({"ready": True}))
        for request in requests:
            _serve(json.loads(request), replies)
    except MemoryError:
        replies.write(farewell)
        os._exit(1)
    except BrokenPipeError:
        os._exit(0)  # the parent has gone


def _serve(request: Mapping[str, Any], replies: BinaryIO) -> None:
    from harness.grading.audit import AuditJob, is_prepared, prepare, run_step
    from harness.grading.grade_completion import compare

    if "steps" not in request:
        try:
            graded = compare(request["answer"], request["target"])
            reply = {"verdict": graded.verdict, "reason": graded.reason}
        except MemoryError:
            raise
        except Exception as error:  # `compare` should have caught it; the worker is sound, so it goes on
            reply = {"failed": f"{type(error).__name__} in the grader"}
        replies.write(_line(reply))
        return
    if not is_prepared():
        replies.write(_line({"preparing": True}))  # loading other graders is not this job's time
        prepare()
        replies.write(_line({"prepared": True}))
    job = AuditJob(**request["audit"])
    for step in request["steps"]:
        fields, remark = run_step(step, job)
        replies.write(_line({"step": step, "fields": fields, "remark": remark}))


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's two ends, moved away from descriptors 0 and 1: what a library prints goes nowhere."""
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb", buffering=0)


def _silence_errors() -> None:
    """Until now a broken installation could say what is wrong; from now on only libraries talk."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _warm_up(*, audits: bool) -> None:
    """Load sympy and its parser before the first job, so that no deadline pays for it."""
    importlib.import_module("latex2sympy2_extended")  # a broken installation must fail here, not in every comparison
    from harness.grading.grade_completion import compare

    if audits:
        from harness.grading.audit import prepare

        prepare()
    compare(r"\sin x", r"\cos x")  # functions are what only sympy can read


def _limit(memory_bytes: int) -> None:
    """No memory beyond the given, no core files, no written files, few open ones. Limits only ever go down."""
    os.nice(NICENESS)
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, OPEN_FILES)]
    if sys.platform == "linux":  # elsewhere address space cannot be limited
        limits.append((resource.RLIMIT_AS, memory_bytes))
    for kind, value in limits:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
