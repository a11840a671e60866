"""Why an engine did not start, in one line.

vLLM tells the process that starts it "Engine core initialization failed. See root cause above": the cause is what a
child printed. So the children's standard error is read on its way, and both texts are searched for known causes. An
unknown cause is quoted, and no advice is guessed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.engines.gpus import describe_gpu_processes
from harness.experiment.tokens import explain_hub_error

KEPT_BYTES = 2**18
QUOTED = 500
"""Characters of another program's text in a message, at most."""

_MARK = b"\0"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of failed starts.

    Attributes:
        pattern: Finds it in what vLLM, torch or Triton print, with blanks and line breaks as single blanks.
        message: What happened and what to do, over the pattern's named groups; `{name}` is the model, `{holders}` says
            who holds GPU memory, `{hub}` explains an error of the hub.
    """

    pattern: str
    message: str


_NUMBER = r"-?[\d.]+"
_LOWER = (
    "Lower model.arguments.max_model_len, max_num_seqs or max_num_batched_tokens, use `dtype: bfloat16`, or spread the "
    "model over several GPUs with tensor_parallel_size."
)

CAUSES = (
    Cause(
        r"before the current process has finished its bootstrapping phase",
        "The script that starts it has no main guard: the engine's process imports the script again, which starts an "
        'engine again. Put the call under `if __name__ == "__main__":`.',
    ),
    Cause(
        rf"Free memory on device \S+ \((?P<free>{_NUMBER})/(?P<total>{_NUMBER}) GiB\) on startup is less than desired "
        rf"GPU memory utilization \((?P<share>{_NUMBER}), (?P<wanted>{_NUMBER}) GiB\)",
        "The GPU's memory is in use: {free} of {total} GiB are free, and gpu_memory_utilization {share} asks for "
        "{wanted} GiB. {holders} Otherwise lower model.arguments.gpu_memory_utilization.",
    ),
    Cause(
        rf"out of memory\. Tried to allocate (?P<wanted>{_NUMBER} \w+)\. GPU \d+ has a total capacity of "
        rf"(?P<total>{_NUMBER} \w+) of which (?P<free>{_NUMBER} \w+) is free",
        "The GPU ran out of memory: {wanted} more were wanted, {free} of {total} were free. {holders} " + _LOWER,
    ),
    Cause(
        r"OutOfMemoryError|(CUDA|HIP) error: out of memory",
        "The GPU ran out of memory. {holders} " + _LOWER,
    ),
    Cause(
        r"No available memory for the cache blocks",
        "The weights leave no memory for the KV cache. Raise model.arguments.gpu_memory_utilization (at most 1), or "
        "kv_cache_memory_bytes where it is given. {holders} " + _LOWER,
    ),
    Cause(
        rf"max seq len \((?P<length>\d+)\), \((?P<needed>{_NUMBER}) GiB KV cache is needed, which is larger than the "
        rf"available KV cache memory \((?P<available>{_NUMBER}) GiB\)\.(?P<fits>( Based on the available memory, the "
        r"estimated maximum model length is \d+\.)?)",
        "The KV cache is too small for one request of max_model_len {length}: {needed} GiB wanted, {available} given."
        "{fits} Lower model.arguments.max_model_len, or raise gpu_memory_utilization, or kv_cache_memory_bytes where "
        "it is given.",
    ),
    Cause(
        r"Error in memory profiling\.",
        "Another process freed GPU memory while vLLM measured its own. Wait until it has ended and start again. "
        "{holders}",
    ),
    Cause(
        r"driver on your system is too old|CUDA driver version is insufficient|forward compatibility was attempted on",
        "The NVIDIA driver is too old for this build of torch and vLLM (`mless doctor` names both). Install a newer "
        "driver, or a vLLM wheel for an older CUDA.",
    ),
    Cause(
        r"Failed to infer device type|Device string must not be empty",
        "vLLM sees no device that it was built for. Check with `mless doctor`; on a machine without GPU install "
        "mless[cpu].",
    ),
    Cause(
        r"World size \((?P<wanted>\d+)\) is larger than the number of available GPUs \((?P<seen>\d+)\)",
        "tensor_parallel_size times pipeline_parallel_size is {wanted}, and {seen} GPUs are visible. Lower "
        "model.arguments.tensor_parallel_size, or check CUDA_VISIBLE_DEVICES.",
    ),
    Cause(
        r"creating shared memory segment|No space left on device: '/(psm_|dev/shm)",
        "/dev/shm, the shared memory between the engine's processes, is full or too small. Enlarge it (in Docker "
        "`--shm-size=8g` or `--ipc=host`), and remove what killed programs left in it.",
    ),
    Cause(
        r"NCCL error[^.]*|DistBackendError|nccl\w+Error",
        "NCCL, the connection between GPUs, failed. Run again with NCCL_DEBUG=INFO, which says why; NCCL_P2P_DISABLE=1 "
        "shows whether it is the direct connection of two GPUs.",
    ),
    Cause(
        r"Timed out waiting for engine core processes.*?Waited (?P<seconds>\d+)\s?s",
        "The engine was not ready after {seconds} seconds; large weights or a slow disk take longer. Start again, when "
        "the files may be cached, or raise VLLM_ENGINE_READY_TIMEOUT_S.",
    ),
    Cause(
        r"Failed to find C compiler|No working C\+\+ compiler found|Compiler: \S+ is not found",
        "No C compiler was found, and Triton and torch.compile build small programs with one. Install gcc and g++, or "
        "name one in CC and CXX.",
    ),
    Cause(
        r"Python\.h: No such file",
        "Python's header files are missing, and Triton builds small programs with them. Install them (Debian, Ubuntu: "
        "`apt install python3-dev`), or use a Python that has them, such as uv's or conda's.",
    ),
    Cause(
        r"Could not find nvcc",
        "nvcc was not found, and FlashInfer compiles with it. Install the CUDA toolkit of torch's version, or choose "
        "`attention_backend: TRITON_ATTN` and set VLLM_USE_FLASHINFER_SAMPLER=0.",
    ),
    Cause(
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. Your (?P<gpu>.*?) GPU",
        "This GPU ({gpu}) cannot compute in bfloat16. Use `dtype: float16` or `dtype: float32` in model.arguments.",
    ),
    Cause(
        r"Unknown dtype: '?(?P<dtype>[\w.]+)",
        "model.arguments.dtype is {dtype!r}. Expected auto, float32, bfloat16 or float16.",
    ),
    Cause(
        r"Cannot find any model weights with `(?P<where>[^`]+)`",
        "{where} has no weights. Expected *.safetensors or *.bin beside its config.json: fetch the model again.",
    ),
    Cause(
        r"SafetensorError: Error while deserializing header: (?P<what>[a-z ,]+)",
        "A weights file of {name} is damaged or incomplete ({what}). Fetch the model again.",
    ),
    Cause(
        r"Model architectures \[(?P<classes>[^\]]*)\] are not supported",
        "This vLLM cannot run the model's architecture ({classes}). Try a newer vLLM, or `backend: hf`.",
    ),
    Cause(
        r"\d+ validation errors? for \w+ Value error, (?P<what>.+?) \[type=",
        "vLLM refuses model.arguments: {what}",
    ),
    Cause(
        r"\d+ validation errors? for \w+ (?P<field>\w+)\S* (?P<what>.+?) "
        r"\[type=\w+, input_value=(?P<given>.*?), input_",
        "vLLM refuses model.arguments.{field}: {what}, got {given}.",
    ),
    Cause(
        r"(?P<library>lib[\w+-]+\.so[\d.]*): cannot open shared object file",
        "The library {library} is missing: vLLM and torch were built for another CUDA than is installed. Install both "
        "again, in one command, so that they fit: `pip install 'mless[gpu]'`.",
    ),
    Cause(
        r"huggingface_hub\.errors\.|OfflineModeIsEnabled|We couldn't connect to|is not a valid model identifier|"
        r"httpx\d?\.Connect\w+|gated repo",
        "{hub}",
    ),
)
"""Searched in this order: what follows from another cause stands after it.

The texts are those of vLLM 0.24 to 0.33, torch 2.11 to 2.14 and Triton 3.6.
"""


class ChildErrors:
    """Standard error of processes that are started meanwhile: passed on to ours, the last of it kept.

    A pipe, not a file: what the engine prints in hours must not fill a disk.
    """

    def __init__(self) -> None:
        self._ours = os.dup(2)
        self._read, self._write = os.pipe()
        self._kept = b""
        self._caught_up = threading.Event()
        threading.Thread(target=self._pass_on, name="mless-engine-errors", daemon=True).start()

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Processes started inside write to the pipe for their whole life; this one does so until the end of it."""
        sys.stderr.flush()
        os.dup2(self._write, 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(self._ours, 2)

    def forget(self) -> None:
        """Keep nothing of what was written until now."""
        self.last()
        self._kept = b""

    def last(self) -> str:
        """The end of all that was written until now."""
        self._caught_up.clear()
        with contextlib.suppress(OSError):  # closed
            os.write(self._write, _MARK)
            self._caught_up.wait(timeout=5)
        return self._kept.decode(errors="replace")

    def close(self) -> str:
        """Stop passing on, and return what `last` does."""
        said = self.last()
        with contextlib.suppress(OSError):
            os.close(self._write)
            self._write = -1
        return said

    def _pass_on(self) -> None:
        while chunk := os.read(self._read, 2**16):
            text = chunk.replace(_MARK, b"")
            with contextlib.suppress(OSError):  # nobody reads ours
                os.write(self._ours, text)
            self._kept = (self._kept + text)[-KEPT_BYTES:]
            if _MARK in chunk:
                self._caught_up.set()
        os.close(self._read)
        os.close(self._ours)


def explain_start_error(name: str, error: BaseException, said: str = "", *, program: str = "vLLM") -> str:
    """Why a model did not start, and what to do where that is known.

    Args:
        name: The model's folder or hub name.
        error: What the start raised.
        said: What the engine's processes wrote to standard error.
        program: What did not start, as the message's subject.
    """
    cause = known_cause(said + "\n" + "".join(traceback.format_exception(error)), name)
    own = " ".join(f"{type(error).__name__}: {error}".split())[:QUOTED]
    return f"{program} did not start. {cause or f'Its last error: {_last_error(said) or own}'}"


def known_cause(text: str, name: str = "") -> str:
    """The first of `CAUSES` that `text` names, as a message about the model `name`; empty if it names none."""
    flat = " ".join(_errors_in(text).split())
    for cause in CAUSES:
        if found := re.search(cause.pattern, flat):
            fields = {group: (text or "").rstrip()[:QUOTED] for group, text in found.groupdict().items()}
            fields["name"] = name
            if "{holders}" in cause.message:
                fields["holders"] = describe_gpu_processes()
            if "{hub}" in cause.message:
                fields["hub"] = explain_hub_error(name, OSError(flat[found.start() :][:QUOTED]))
            return cause.message.format(**fields)
    return ""


_SEE_ABOVE = re.compile(r"initialization failed|See root cause above|See stack trace|EngineCore failed to start")
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b.*")


def _last_error(text: str) -> str:
    """The last line that names an exception and does not point at another one."""
    lines = [line for line in _errors_in(text).splitlines() if _ERROR.match(line)]
    lines = [line for line in lines if not _SEE_ABOVE.search(line)] or lines
    return lines[-1][:QUOTED] if lines else ""


def _errors_in(text: str) -> str:
    """The lines that are no lesser messages, without the process, level, date and place that vLLM puts before each."""
    place = r"[\d-]+ [\d:.]+ \[[^\]]*\] "
    lesser = rf"(?m)^(\(\w+[^)]*\) )?(DEBUG|INFO|WARNING) {place}.*$"
    return re.sub(rf"(?m)^(\(\w+[^)]*\) )?([A-Z]+ {place})?", "", re.sub(lesser, "", text))
