"""Tiny models with random weights, by architecture.

They have four layers, grouped KV heads, and windows shorter than the prompts of the tests.
"""

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from tests.make import TOY_MODEL, read_data

MODELS = read_data("architectures")
SHAPE, ARCHITECTURES = MODELS["shape"], MODELS["captured"]
VOCABULARY = SHAPE["vocab_size"]


def build_whole(model_type, **changes):
    """A tiny random model of an architecture, with all of its layers."""
    settings = SHAPE | (ARCHITECTURES | MODELS["others"]).get(model_type, {}) | changes
    settings = {name: value for name, value in settings.items() if value is not None}
    config = AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(5)
    return AutoModel.from_config(config, attn_implementation="eager").eval().requires_grad_(False)


def build_language_model(model_type, seed=0, **changes):
    """A small random model that vLLM runs, with the toy model's vocabulary."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **MODELS["language models"] | changes)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


def save_language_model(folder, model):
    """Save a model with the toy model's tokenizer; matrices are larger, so that weights differ.

    Else all weights of attention are about the same.
    """
    for weights in model.parameters():
        if weights.ndim == 2:
            weights.data *= 4
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(TOY_MODEL).save_pretrained(folder)


def largest_error(measured, expected):
    """The largest difference; infinite if only one of the two is NaN somewhere."""
    if not torch.equal(measured.isnan(), expected.isnan()):
        return float("inf")
    return float((measured.double() - expected.double()).abs().nan_to_num().max())
