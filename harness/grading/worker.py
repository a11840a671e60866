"""The protocol between grader pool and worker, from both ends, and the worker's program.

A worker is the one process in which mathematics meets model text. `harness.grading.pool` starts it, never a person. The
pool writes a request to a file that both have open, and its length as a line to the worker's standard input. The worker
answers with one message per line. Requests and messages are JSON, so that nothing that a text does to the worker can
run in the parent. A worker knows neither clock nor signals: the parent kills it if it takes too long. If the parent is
gone, the kernel kills it (Linux) or its input ends.

`Comparison` and `AuditSteps` are the parent's end: each holds a request and makes a result of the worker's replies.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, get_args

from harness.constants import GRADER_VERSION
from harness.grading.compare import compare
from harness.grading.extract import Grade, Verdict, read_boxes
from harness.grading.other_graders import FILLS, STEPS, Audit, AuditJob, is_prepared, prepare, run_step

NICENESS = 5
"""Below the engine, which may need the same cores, but not so far that deadlines in wall time mean nothing."""

OPEN_FILES = 64
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class Comparison:
    """An answer to be compared with its target. The worker replies once."""

    def __init__(self, answer: str, target: str) -> None:
        self.key: Hashable = (answer, target, GRADER_VERSION)
        self.request = {"answer": answer, "target": target}
        self.result: Grade | None = None

    @property
    def lasting(self) -> bool:
        """Whether the result says something about the answer, rather than about the moment."""
        return self.result is not None and self.result.verdict not in ("timeout", "crashed")

    def take(self, reply: Mapping[str, Any]) -> None:
        """Make the result of the worker's reply.

        Raises:
            KeyError, ValueError: the reply is no verdict.
        """
        if reply["verdict"] not in get_args(Verdict):
            raise ValueError("not a verdict")
        self.result = Grade(verdict=reply["verdict"], answer=self.request["answer"], reason=reply["reason"])

    def fail(self, verdict: Verdict, reason: str) -> None:
        """Make the result without a reply, because the worker was lost."""
        self.result = Grade(verdict=verdict, answer=self.request["answer"], reason=reason)


class AuditSteps:
    """An audit. The worker replies once for every step, so that a step that hangs costs only its own columns."""

    def __init__(self, job: AuditJob) -> None:
        self._job = asdict(job.essential())
        self.key: Hashable = ("audit", hashlib.sha256(json.dumps(self._job).encode()).hexdigest(), GRADER_VERSION)
        self.lasting = True
        self._steps = list(STEPS)
        self._columns: dict[str, bool | None] = {}
        self._remarks: list[str] = []

    @property
    def request(self) -> dict[str, Any]:
        """The job with the steps that are left."""
        return {"audit": self._job, "steps": self._steps}

    @property
    def result(self) -> Audit | None:
        """The audit, once no step is left."""
        if self._steps:
            return None
        further = max(0, len(read_boxes(self._job["completion"])) - 1)
        return Audit(**self._columns, boxes_after_first=further, reason="; ".join(self._remarks) or None)

    def take(self, reply: Mapping[str, Any]) -> None:
        """Keep what the next step found.

        Raises:
            KeyError, ValueError: the reply is not that step's.
        """
        step = self._steps[0]
        columns = {column: reply["fields"][column] for column in FILLS[step]}
        if reply["step"] != step or any(value not in (True, False, None) for value in columns.values()):
            raise ValueError(f"not the columns of {step}")
        self._end_step(columns, reply["remark"])

    def fail(self, verdict: Verdict, reason: str) -> None:
        """Leave the next step's columns None, because the worker was lost in it. The steps after it are still to do."""
        self.lasting = False
        self._end_step(dict.fromkeys(FILLS[self._steps[0]]), reason)

    def _end_step(self, columns: Mapping[str, bool | None], remark: str | None) -> None:
        step = self._steps.pop(0)
        self._columns.update(columns)
        if remark is not None:
            self._remarks.append(f"{step}: {remark}")


def main(memory_bytes: int, requests: int, *, audits: bool = False) -> None:
    """The worker's program: prepare the process, say that it is ready, and serve requests until the input ends.

    Args:
        memory_bytes: The address space that the process may use.
        requests: The descriptor of the file of requests.
        audits: Whether to load the other graders at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    # the protocol moves away from descriptors 0 and 1, so that what a library prints goes nowhere
    lengths, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    _to_nowhere(0, 1)
    out_of_memory = f"out of memory (limit {memory_bytes / 2**20:.0f} MiB)"
    farewell = _line({"leaving": out_of_memory})  # made now: later there may be no memory to make it
    try:
        if audits:
            prepare()
        _limit(memory_bytes)
        _to_nowhere(2)  # until now a broken installation could report itself; from now on only libraries would write
        gc.freeze()  # what is loaded by now stays: no collection needs to look at it again
        replies.write(_line({"ready": True}))
        for length in lengths:
            for message in _serve(json.loads(os.pread(requests, int(length), 0))):
                replies.write(_line(message))
    except MemoryError:
        replies.write(farewell)
        os._exit(1)
    except BrokenPipeError:
        os._exit(0)  # the parent has gone


def _serve(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Do what one request asks for: yield the verdict of a comparison, or what each step of an audit found."""
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


def _to_nowhere(*descriptors: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _limit(memory_bytes: int) -> None:
    """Limit memory and open files, and forbid core files and written files. Limits only ever go down."""
    os.nice(NICENESS)
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, OPEN_FILES)]
    if sys.platform == "linux":  # elsewhere address space cannot be limited
        limits.append((resource.RLIMIT_AS, memory_bytes))
    for kind, value in limits:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
