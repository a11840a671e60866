"""The study's way to generate: transformers' plain `generate`, one prompt at a time.

A handful of prompts, greedily; with random weights every completion is made to run to the limit. Loading and the first,
short warm-up call are not counted.

    python -m benchmarks.hf_loop --model FOLDER --dtype float32 --prompts 3 --max-new-tokens 512 --json FIGURES
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.runs import CONFIG, base_overrides, write_json
from harness.config import load_config
from harness.plan import make_plan

WARM_UP_TOKENS = 8


def main() -> None:
    """Time the loop and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model's name or folder; without weights they are random")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--json", type=Path, required=True, help="write the figures here")
    arguments = parser.parse_args()
    write_json(arguments.json, measure(arguments.model, arguments.dtype, arguments.prompts, arguments.max_new_tokens))


@torch.inference_mode()
def measure(name: str, dtype: str, prompts: int, max_new_tokens: int) -> dict[str, Any]:
    """Tokens and seconds of the loop."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, random_weights = load(name, getattr(torch, dtype), device)
    tokenizer = AutoTokenizer.from_pretrained(name)
    pretrained = f"model.arguments.pretrained={name}"
    rows = make_plan(load_config(CONFIG, [*base_overrides(), pretrained]), limit=prompts).prompts[:prompts]
    least = {"min_new_tokens": max_new_tokens} if random_weights else {}

    def complete(text: str, **limits: int) -> int:
        inputs = tokenizer(text, return_tensors="pt").to(device)
        output = model.generate(**inputs, do_sample=False, pad_token_id=0, **limits)
        new = output[0, inputs["input_ids"].shape[1] :]
        tokenizer.decode(new)  # reads the tokens back, so the device has finished
        return len(new)

    complete(rows[0]["prompt"], max_new_tokens=WARM_UP_TOKENS)
    started = time.perf_counter()
    tokens = [complete(row["prompt"], max_new_tokens=max_new_tokens, **least) for row in rows]
    seconds = time.perf_counter() - started
    return {
        "dtype": dtype,
        "prompts": len(rows),
        "tokens": sum(tokens),
        "seconds": round(seconds, 2),
        "tokens_per_second": round(sum(tokens) / seconds, 2),
        "random_weights": random_weights,
    }


def load(name: str, dtype: torch.dtype, device: str) -> tuple[Any, bool]:
    """The model, and whether its weights are random because its folder has none."""
    folder = Path(name)
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval(), False
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name), dtype=dtype)
    return model.to(device).eval(), True


if __name__ == "__main__":
    main()
