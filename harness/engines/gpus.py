"""The machine's NVIDIA GPUs and the processes that hold their memory, read from `nvidia-smi` without using CUDA."""

from __future__ import annotations

import subprocess


def gpu_driver() -> str | None:
    """The version of the NVIDIA driver; None where `nvidia-smi` is missing or knows no GPU."""
    return next((driver for (driver,) in _query("--query-gpu=driver_version", 1)), None)


def describe_gpu_processes() -> str:
    """Which processes hold GPU memory, for a message; empty if `nvidia-smi` names none.

    In a container the driver may hide processes, or name them by ids of the host.
    """
    rows = _query("--query-compute-apps=pid,process_name,used_memory", 3)
    held = ", ".join(f"{name} (process {process}, {memory} MiB)" for process, name, memory in rows)
    return f"It is held by {held}." if held else ""


def _query(what: str, columns: int) -> list[list[str]]:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == columns]
