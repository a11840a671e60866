"""What the benchmarks share: the demo config, the bundled set repeated, and where figures go."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.experiment.problems import load_demo
from harness.verification.processes import run_mless

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "runs" / "demo.yaml"
CONDITIONS = ("wo", "mless", "mful")
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}  # for every process of every side


def work_folder(small: bool) -> Path:
    """Where runs, logs and figures go: beside ordinary runs, on the same disk, ignored by git."""
    folder = ROOT / "results" / ("bench-small" if small else "bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def mless_run(overrides: Sequence[str], output: Path, log: Path, *, limit: int | None = None) -> dict[str, Any]:
    """`mless run` on the demo config in a fresh process; the receipt's `timing`, and `wall_seconds` of the command."""
    return run_mless(CONFIG, output, log, overrides, limit)


def base_overrides() -> list[str]:
    """What every comparison runs: three conditions, in bfloat16 on both sides."""
    return [f"conditions={json.dumps(CONDITIONS)}", "model.arguments.dtype=bfloat16"]


def repeated_problems(folder: Path, *, copies: int, limit: int | None = None) -> Path:
    """The bundled problems several times over, ids told apart, as a JSONL file.

    Repeats make a run long enough to measure while decoding stays greedy, so that both sides generate the same tokens.
    """
    path = folder / f"problems-x{copies}.jsonl"
    lines = []
    for copy in range(1, copies + 1):
        for problem in load_demo().problems[:limit]:
            fields = asdict(problem)
            lines.append(json.dumps({**fields, "unique_id": f"{fields.pop('id')}#{copy}"}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_json(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Write figures where asked."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
