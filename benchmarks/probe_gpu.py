"""The probe on a GPU beside Hugging Face's eager attention: a model of the asked shape with random weights, float32.

One section of the page that `benchmarks/gpu.sh` writes; each figure is from a fresh process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks import report
from benchmarks.runs import ROOT, run_logged, say

LENGTHS, SMALL_LENGTHS = (2048, 8192), (64, 128)
LAYERS = 3
WAYS = {
    "truncated_eager": f"Hugging Face `output_attentions`, {LAYERS} layers",
    "full_eager": "Hugging Face `output_attentions`, whole model",
}


def measure(architecture: Path, folder: Path, *, device: str, small: bool, **changes: Any) -> report.Figures:
    """Seconds and memory of the probe's capture and of eager attention, or that the latter did not fit.

    Args:
        architecture: The shape, an ARCH.yaml.
        folder: Where figures and logs go.
        device: `cuda`; `cpu` to see that it works.
        small: Short prompts.
        changes: To the shape's config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lengths = SMALL_LENGTHS if small else LENGTHS
    facts = yaml.safe_load(architecture.read_text(encoding="utf-8"))
    facts["config"] |= {"max_position_embeddings": lengths[-1], **changes}
    shapes = {"ours": folder / "shape.yaml", "eager": folder / "config.json"}
    shapes["ours"].write_text(yaml.safe_dump(facts), encoding="utf-8")
    shapes["eager"].write_text(json.dumps(facts["config"]), encoding="utf-8")
    rows = []
    for length in lengths:
        ours = _way("ours", shapes["ours"], length, folder, device)
        assert ours is not None
        rows.append(report.row(f"{length:,} tokens: ours", _told(ours)))
        for way, called in WAYS.items():
            found = _way(way, shapes["eager"], length, folder, device)
            measured = "does not fit the GPU's memory" if found is None else _told(found)
            ratio = None if found is None else found["wall"] / ours["wall"]
            rows.append(report.row(f"{length:,} tokens: {called}", measured, ratio=ratio))
    return {
        "title": "Attention probe",
        "what": f"{facts['name']} with random weights in float32, Layers 1 to {LAYERS}, all heads. Ratios are how many "
        "times longer than ours.",
        "rows": rows,
        "notes": ["Ours records what every probe records; the others hand back whole matrices."],
    }


def _way(way: str, shape: Path, length: int, folder: Path, device: str) -> dict[str, Any] | None:
    """One of the ways of `benchmarks.attention`; None if the GPU's memory did not hold it."""
    written = folder / f"{way}-{length}.json"
    say(f"gpu: {way}, {length:,} tokens")
    command = [sys.executable, str(ROOT / "benchmarks" / "attention.py"), way, "--config", str(shape)]
    command += ["--length", str(length), "--layers", str(LAYERS), "--json", str(written), "--device", device]
    log = written.with_suffix(".log")
    try:
        run_logged(command, log)
    except SystemExit:
        if "OutOfMemoryError" in log.read_text(encoding="utf-8", errors="replace"):
            return None
        raise
    return dict(json.loads(written.read_text(encoding="utf-8")))


def _told(found: dict[str, Any]) -> str:
    memory = found.get("gpu_peak", found["peak"]) / 1e9
    return f"{1000 * found['wall']:.3g} ms, {memory:.2f} GB"
