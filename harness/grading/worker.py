"""A grader worker: the one process in which mathematics meets model text.

Started by `harness.grading.pool`, never by hand. It reads one job per line (JSON) from its standard input and writes
one or more messages back, one per line; JSON both ways, so that whatever the text does to this process cannot run in
the parent. It knows no clock and no signals: the parent kills it when it takes too long. When the parent is gone it is
killed too, by the kernel where that can be asked for (Linux), else at the end of its input.
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
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from harness.grading.audit import AuditJob, is_prepared, prepare, run_step
from harness.grading.grade_completion import compare

NICENESS = 5
"""Below the engine, which may need the same cores; not so far that a deadline in wall time means nothing."""

OPEN_FILES = 64
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(memory_bytes: int, *, audits: bool = False) -> None:
    """Prepare the process, say that it is ready, and serve jobs until the input ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    requests, replies = _private_pipes()
    out_of_memory = f"out of memory (limit {memory_bytes / 2**20:.0f} MiB)"
    farewell = _line({"leaving": out_of_memory})  # made now: later there may be no memory to make it
    try:
        _warm_up(audits=audits)
        _limit(memory_bytes)
        _to_nowhere(2)  # until now a broken installation could say what is wrong; from now on only libraries talk
        gc.freeze()  # what is loaded by now stays: no reason to look at it again at every collection
        replies.write(_line({"ready": True}))
        for request in requests:
            for message in _serve(json.loads(request)):
                replies.write(_line(message))
    except MemoryError:
        replies.write(farewell)
        os._exit(1)
    except BrokenPipeError:
        os._exit(0)  # the parent has gone


def _serve(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Do one job: the verdict of a comparison, or what each step of an audit found."""
    if "steps" not in request:
        graded = compare(request["answer"], request["target"])
        yield {"verdict": graded.verdict, "reason": graded.reason}
        return
    if not is_prepared():
        yield {"loading": True}
        prepare()
        yield {"loading": False}
    job = AuditJob(**request["audit"])
    for step in request["steps"]:
        fields, remark = run_step(step, job)
        yield {"step": step, "fields": fields, "remark": remark}


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's two ends, moved away from descriptors 0 and 1: what a library prints goes nowhere."""
    requests, replies = os.dup(0), os.dup(1)
    _to_nowhere(0, 1)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb", buffering=0)


def _to_nowhere(*descriptors: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _warm_up(*, audits: bool) -> None:
    """Load sympy and its parser before the first job, so that no deadline pays for it."""
    importlib.import_module("latex2sympy2_extended")  # a broken installation must fail here, not in every comparison
    if audits:
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
