"""The first layers of a run's prompts twice: by our capture, and by Hugging Face's eager attention; both are kept.

`mless verify` runs it as `python -m attention_probe.capture_beside_eager RUN OUT N LAYERS DEVICE [MODEL]`, and derives
the largest difference from the file.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

from attention_probe.model.capture import Capture, capture
from attention_probe.prompts.token_roles import tokenize
from attention_probe.settings import ProbeSettings
from harness.analysis.flips import Criterion
from harness.analysis.selection import select, selected_problems
from harness.errors import ModelError
from harness.runs.prompt_source import BASELINE, read_source


def write_both(run: Path, path: Path, *, n: int, layers: tuple[int, ...], device: str, model: str | None) -> None:
    """Capture `n` drawn problems of a run under its last condition both ways, into one NPZ file.

    For each problem `ID/ours` and `ID/eager` [layer, head, key]: average attention weights, float32, NaN where no later
    query exists. `seconds` [ours, eager]: of all forward passes together.

    Raises:
        HarnessError: the run or the model cannot be read, or the model gives no attention, or none but eager.
    """
    source = read_source(run)
    settings = ProbeSettings(model=model, layers=layers, device=device).fitted(source)
    problems = selected_problems(select(source, Criterion(n=n)), source)
    tokenizer, condition = settings.load_tokenizer(), settings.conditions[-1]
    prompts = {
        problem.id: tokenize(problem, tokenizer, conditions=settings.conditions, baseline=BASELINE)[condition]
        for problem in problems
    }
    loaded = settings.load_model()
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
    seconds = np.zeros(2)
    for problem, prompt in prompts.items():
        token_ids = torch.from_numpy(prompt.token_ids.astype(np.int64))[None]
        for side, name in enumerate(("ours", "eager")):
            started = time.perf_counter()
            found = capture(loaded, token_ids, eager=name == "eager")
            if name == "ours" and found.eager:
                raise ModelError(
                    f"{loaded.name} has eager attention only, so there is nothing to compare with: expected a model "
                    "whose attention our capture computes. Take another model."
                )
            arrays[f"{problem}/{name}"] = _means(found, layers)
            seconds[side] += time.perf_counter() - started
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{"seconds": seconds, **arrays})  # type: ignore[arg-type]


def _means(found: Capture, layers: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Average attention weights [layer, head, key]; on a GPU this also waits for the pass to end."""
    return np.stack([found[layer].column_mean[0, 0].float().cpu().numpy() for layer in layers])


if __name__ == "__main__":
    given, out, count, first, place, *name = sys.argv[1:]
    write_both(
        Path(given),
        Path(out),
        n=int(count),
        layers=tuple(range(int(first))),
        device=place,
        model=name[0] if name else None,
    )
