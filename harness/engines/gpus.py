"""The machine's NVIDIA GPUs and the processes that hold their memory, read from `nvidia-smi` without using CUDA."""

from __future__ import annotations

import os
import subprocess


def gpu_driver() -> str | None:
    """The version of the NVIDIA driver; None where `nvidia-smi` is missing or knows no GPU."""
    return next((driver for (driver,) in _query("--query-gpu=driver_version", 1)), None)


def describe_gpu_processes() -> str:
    """Which other processes hold memory of the GPUs that are visible here, for a message; empty if none is known.

    In a container the driver may hide processes, or name them by ids of the host.
    """
    rows = _query("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", 4)
    seen = _visible_uuids()
    held = ", ".join(
        f"{name} (process {process}, {memory} MiB)"
        for uuid, process, name, memory in rows
        if (seen is None or uuid in seen) and process != str(os.getpid())
    )
    return f"It is held by {held}." if held else ""


def _visible_uuids() -> set[str] | None:
    """The GPUs of CUDA_VISIBLE_DEVICES, which may have numbers, or UUIDs cut short; None for all."""
    wanted = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    if not wanted or any(one.startswith("MIG-") for one in wanted):
        return None
    known = _query("--query-gpu=index,uuid", 2)
    return {uuid for index, uuid in known for one in wanted if one == index or (len(one) > 4 and uuid.startswith(one))}


def _query(what: str, columns: int) -> list[list[str]]:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == columns]
