"""The machine's NVIDIA GPUs and the processes that hold their memory, read from `nvidia-smi` without using CUDA."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU.

    Attributes:
        memory: In MiB; 0 where the driver does not tell.
        orphan: Whether it is an engine of vLLM whose run has ended.
    """

    process_id: int
    name: str
    memory: int
    orphan: bool

    def __str__(self) -> str:
        """The process as messages name it."""
        kind = "an orphan of a run that was killed, " if self.orphan else ""
        return f"{self.name} (process {self.process_id}, {kind}{self.memory:,} MiB)"


def gpu_driver() -> str | None:
    """The version of the NVIDIA driver; None where `nvidia-smi` is missing or knows no GPU."""
    return next((driver for (driver,) in _query("--query-gpu=driver_version", 1)), None)


def gpu_processes() -> list[GpuProcess]:
    """The processes that hold GPU memory: orphans first, then by how much they hold.

    In a container the driver may hide processes, or name them by ids of the host.
    """
    found = [
        GpuProcess(process_id=int(pid), name=name, memory=_number(memory), orphan=_is_orphan(int(pid), name))
        for pid, name, memory in _query("--query-compute-apps=pid,process_name,used_memory", 3)
        if pid.isdigit()
    ]
    return sorted(found, key=lambda process: (not process.orphan, -process.memory))


def describe_gpu_processes() -> str:
    """Say which processes hold GPU memory and how to end orphans, for a message."""
    processes = gpu_processes()
    if not processes:
        return "nvidia-smi names no process that holds it."
    advice = "".join(f" End the orphan with `kill -9 {process.process_id}`." for process in processes if process.orphan)
    return f"It is held by {', '.join(map(str, processes))}.{advice}"


def _is_orphan(process_id: int, name: str) -> bool:
    """Whether this is a process of vLLM whose parent is neither Python nor vLLM, because its run has ended.

    The parent is then init, the service manager of a container or a user, or Slurm's daemon.
    """
    try:
        parent = psutil.Process(process_id).parent()
        command = parent.cmdline()[:1] if parent else []
        return "VLLM::" in name and not any(part in "".join(command) for part in ("python", "VLLM::"))
    except psutil.Error:
        return False


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _query(what: str, columns: int) -> list[list[str]]:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == columns]
