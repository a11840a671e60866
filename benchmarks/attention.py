"""Ways to the attention weights of a model's first layers, one a process: seconds of a forward pass, peak memory.

Drawing the weights is not counted in the seconds.

    python -m benchmarks.attention WAY --config CONFIG.json --length 2048 --layers 3 --json FIGURES
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MOST_RUNS = 5
ENOUGH_SECONDS = 10.0
WARM_UP_TOKENS = 16
FILLER_TOKENS = 55
"""As in the study; short prompts of --small have fewer."""


def main() -> None:
    """Measure one way and write its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--config", type=Path, required=True, help="keys of a config.json")
    parser.add_argument("--length", type=int, required=True, help="tokens of the prompt")
    parser.add_argument(
        "--layers", type=int, required=True, help="how many of the first layers are asked for"
    )
    parser.add_argument("--json", type=Path, required=True, help="write the figures here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    figures = WAYS[arguments.way](arguments.config, arguments.length, arguments.layers)
    figures |= {
        "way": arguments.way,
        "length": arguments.length,
        "layers": arguments.layers,
        "peak": peak_memory(),
    }
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def ours(path: Path, length: int, layers: int) -> dict[str, Any]:
    """The probe's capture, with everything that a probe always records."""
    from transformers import AutoModel

    from attention_probe.measure.head_decomposition import REGIONS
    from attention_probe.model.attention_statistics import CaptureRequest
    from attention_probe.model.capture import capture
    from attention_probe.model.load_first_layers import LoadedModel

    config = _config(path)
    cut: Any = AutoModel.from_config(
        _config(path, num_hidden_layers=layers), dtype=torch.float32, attn_implementation="eager"
    )
    loaded = LoadedModel(
        name=path.stem,
        model=cut.eval().requires_grad_(False),
        config=config,
        layers=tuple(range(layers)),
        layers_path="layers",
        revision=None,
    )

    def run(tokens: int) -> None:
        start = min(30, tokens // 4)
        end = start + min(FILLER_TOKENS, tokens // 4)
        regions = torch.zeros(1, len(REGIONS), tokens, dtype=torch.bool)
        spans = {
            "first": (0, 1),
            "instruction": (1, start),
            "filler": (start, end),
            "problem": (end, tokens),
        }
        for name, (first, last) in {**spans, "inserted": (start, end)}.items():
            regions[0, REGIONS.index(name), first:last] = True
        common = ~regions[:, REGIONS.index("inserted")]
        found = capture(
            loaded,
            _ids(loaded.config, tokens),
            request=CaptureRequest(
                query_sets=torch.stack([torch.ones_like(common), common], 1), key_regions=regions
            ),
        )
        assert sorted(found.layers) == list(range(layers))
        mass = found[layers - 1].region_mass[..., :5].sum(-1)
        assert torch.allclose(mass, torch.ones_like(mass), atol=1e-4)

    return timed(run, length)


def full_eager(path: Path, length: int, layers: int) -> dict[str, Any]:
    """Hugging Face as documented: the whole model, `output_attentions=True`; the logits' part of it also by itself."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_config(
        _config(path), dtype=torch.float32, attn_implementation="eager"
    )
    model = model.eval()

    def run(tokens: int) -> None:
        found = model(_ids(model.config, tokens), output_attentions=True, use_cache=False)
        _check(found.attentions[:layers], tokens)

    figures = timed(run, length)
    hidden = torch.randn(1, length, model.config.hidden_size)
    logits = timed(lambda tokens: model.lm_head(hidden[:, :tokens]), length)
    return figures | {"logits_cpu_seconds": logits["cpu"]}


WAYS = {"ours": ours, "full_eager": full_eager}


def timed(run: Callable[[int], object], length: int) -> dict[str, Any]:
    """The least CPU seconds of a few runs, after a short one that warms up."""
    with torch.inference_mode():
        run(min(WARM_UP_TOKENS, length))
        runs: list[tuple[float, float]] = []
        while not runs or (
            len(runs) < MOST_RUNS and sum(wall for _, wall in runs) < ENOUGH_SECONDS
        ):
            cpu, wall = time.process_time(), time.perf_counter()
            run(length)
            runs.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = min(runs)
    return {"cpu": cpu, "wall": wall, "runs": len(runs)}


def peak_memory() -> int:
    """Most bytes that this process ever had in memory; getrusage would count the parent's in."""
    status = Path(f"/proc/{os.getpid()}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _config(path: Path, **changes: Any) -> Any:
    from transformers import AutoConfig

    facts = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    return AutoConfig.for_model(facts.pop("model_type"), **facts)


def _ids(config: Any, tokens: int) -> torch.Tensor:
    return torch.randint(min(1000, config.vocab_size), (1, tokens))


def _check(patterns: Any, tokens: int) -> None:
    """That these are attention weights, whole."""
    for pattern in patterns:
        assert pattern.shape[0] == 1 and pattern.shape[2:] == (tokens, tokens)
        assert abs(float(pattern[0, -1, -1].sum()) - 1) < 1e-4


if __name__ == "__main__":
    main()
