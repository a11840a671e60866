import json
import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModel

from tests.make import TOY

TINY = {
    "Qwen/Qwen2.5-Math-7B": ("qwen2", 28, 4),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", 32, 8),
    "google/gemma-3-4b-it": ("gemma3_text", 8, 4),
}
"""Architecture, query heads and key-value heads of the study's models."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a model of three narrow layers, random weights, the heads of one of the study's models."""
    made, bundled = {}, TOY / "model"

    def save(name):
        if name not in made:
            model_type, heads, kv_heads = TINY[name]
            folder = tmp_path_factory.mktemp(model_type)
            config = AutoConfig.for_model(
                model_type,
                vocab_size=json.loads((bundled / "config.json").read_text())["vocab_size"],
                hidden_size=4 * heads,
                head_dim=4,
                intermediate_size=32,
                num_hidden_layers=3,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                max_position_embeddings=1024,
            )
            torch.manual_seed(0)
            AutoModel.from_config(config).save_pretrained(folder)
            for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(bundled / file, folder)
            made[name] = folder
        return made[name]

    return save
