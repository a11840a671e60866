"""Ways to the attention weights of a model's first layers: seconds of a forward pass, peak memory.

Each way runs in a process of its own. The seconds do not include the random weights.

    python -m benchmarks.attention WAY --config CONFIG.json --length 2048 --layers 3 --json FIGURES
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.arithmetic import limit, timed

FILLER_TOKENS = 55
"""As in the study. The short prompts of --small have fewer."""


def main() -> None:
    """Measure one way and write its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--config", type=Path, required=True, help="keys of a config.json")
    parser.add_argument("--length", type=int, required=True, help="tokens of the prompt")
    parser.add_argument("--layers", type=int, required=True, help="the number of first layers")
    parser.add_argument("--json", type=Path, required=True, help="write the figures here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    way, length, layers = arguments.way, arguments.length, arguments.layers
    figures = WAYS[way](arguments.config, length, layers)
    figures |= {"way": way, "length": length, "layers": layers, "peak": peak_memory()}
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def probe(path: Path, length: int, layers: int) -> dict[str, Any]:
    """The probe's capture, with everything that a probe always records."""
    from transformers import AutoModel

    from attention_probe.model.attention_statistics import CaptureRequest
    from attention_probe.model.capture import capture_attention
    from attention_probe.model.first_layers import LoadedModel

    config = _config(path, num_hidden_layers=layers)
    model: Any = AutoModel.from_config(config, dtype=torch.float32, attn_implementation="eager")
    loaded = LoadedModel(
        name=path.stem,
        model=model.eval().requires_grad_(False),
        config=_config(path),
        layer_indices=tuple(range(layers)),
        decoder_layers=model.layers,
    )

    def run(tokens: int) -> None:
        start = min(30, tokens // 4)
        end = start + min(FILLER_TOKENS, tokens // 4)
        sets = torch.ones(3, tokens, dtype=torch.bool)
        sets[1:, start:end] = False  # the common queries
        sets[2, :start] = False  # those of the problem
        request = CaptureRequest(query_sets=sets)
        (token_ids,) = _token_ids(loaded.config, tokens)
        captured = capture_attention(loaded, token_ids, request=request)
        assert sorted(captured.layers) == list(range(layers))
        mass = captured.layers[layers - 1].sums[-1].sum(-1) / (tokens - end)
        assert torch.allclose(mass, torch.ones_like(mass), atol=1e-4)

    return timed(run, length)


def full_eager(path: Path, length: int, layers: int) -> dict[str, Any]:
    """Hugging Face as documented: all layers, `output_attentions=True`."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_config(
        _config(path), dtype=torch.float32, attn_implementation="eager"
    )
    model = model.eval()

    def run(tokens: int) -> None:
        token_ids = _token_ids(model.config, tokens)
        output = model(token_ids, output_attentions=True, use_cache=False)
        for weights in output.attentions[:layers]:
            assert weights.shape[0] == 1 and weights.shape[2:] == (tokens, tokens)
            assert abs(float(weights[0, -1, -1].sum()) - 1) < 1e-4

    return timed(run, length)


WAYS = {"probe": probe, "full_eager": full_eager, "arithmetic": limit}


def peak_memory() -> int:
    """The peak memory of this process in bytes. `getrusage` would include that of its parent."""
    status = Path(f"/proc/{os.getpid()}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _config(path: Path, **changes: Any) -> Any:
    from transformers import AutoConfig

    facts = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    return AutoConfig.for_model(facts.pop("model_type"), **facts)


def _token_ids(config: Any, tokens: int) -> torch.Tensor:
    return torch.randint(min(1000, config.vocab_size), (1, tokens))


if __name__ == "__main__":
    main()
