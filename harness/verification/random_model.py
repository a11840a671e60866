"""A model folder with a real model's exact shape and random weights, for a machine without the hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness import resources

SHAPE = "qwen2.5-math-1.5b"
SEED = 0


def write_random_model(folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Write the model once; a folder that is there already is left as it is.

    The tokenizer is the bundled one, with a word for every further id of the vocabulary: else most of what random
    weights generate would decode to no text, and the journal and the graders would have nothing to do.

    Args:
        folder: Where; made only when it is whole.
        changes: Other values of the shape, such as fewer layers.
    """
    if folder.is_dir():
        return folder
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = resources.folder("configs") / "architectures" / f"{SHAPE}.yaml"
    facts: dict[str, Any] = yaml.safe_load(shape.read_text(encoding="utf-8"))["config"] | dict(changes or {})
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**facts), dtype=torch.bfloat16)
    model.save_pretrained(part)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(resources.demo_model() / name, part / name)
    tokenizer = Tokenizer.from_file(str(resources.demo_model() / "tokenizer.json"))
    tokenizer.add_tokens([f" w{number}" for number in range(tokenizer.get_vocab_size(), facts["vocab_size"])])
    tokenizer.save(str(part / "tokenizer.json"))
    ends = {"bos_token_id": facts["bos_token_id"], "eos_token_id": facts["eos_token_id"], "do_sample": False}
    (part / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    part.replace(folder)
    return folder
