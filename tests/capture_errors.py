"""The errors of the capture relative to eager attention, by architecture and padding.

The models are tiny, with random weights, four layers, grouped KV heads, and windows shorter than
the prompt. The reference is `output_attentions=True` of all layers, averaged in float64.
"""

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from attention_probe.model.attention_statistics import CaptureRequest
from attention_probe.model.capture import capture
from attention_probe.model.load_first_layers import LoadedModel
from tests.make import read_data

LENGTH, PADDING = 45, 13
LAYERS = (0, 1, 2)
MODELS = read_data("architectures")
SHAPE, ARCHITECTURES = MODELS["shape"], MODELS["captured"]
VOCABULARY = SHAPE["vocab_size"]
PADDINGS = {"none": 7, "right": 16, "left": 64}
"""The queries of a chunk by padding: two numbers that do not divide LENGTH, and a larger one."""


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
    config = AutoConfig.for_model(model_type, **MODELS["language models"], **changes)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


def build(model_type, **changes):
    """The same model cut after layer 2."""
    model = build_whole(model_type, **changes)
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    del layers[len(LAYERS) :]
    return LoadedModel(
        name=f"tiny {model_type}",
        model=model,
        config=model.config,
        layers=LAYERS,
        decoder_layers=layers,
    )


def prompts(padding):
    """Token ids and attention mask of two prompts, the second padded."""
    ids = torch.randint(1, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    if padding == "right":
        mask[1, -PADDING:] = 0
    elif padding == "left":
        mask[1, :PADDING] = 0
    return ids * mask, mask


def sets_and_regions():
    """Two sets of queries, all and every third, and three regions that partition the keys.

    One region consists of two pieces.
    """
    positions = torch.arange(LENGTH)
    sets = torch.stack([positions >= 0, positions % 3 == 0]).expand(2, -1, -1)
    filler = (positions >= 15) & (positions < 25)
    regions = torch.stack([positions < 5, filler, (positions >= 5) & ~filler]).expand(2, -1, -1)
    return sets, regions


def ask(loaded, padding, **options):
    """Capture the prompts."""
    ids, mask = prompts(padding)
    sets, regions = sets_and_regions()
    options = {"chunk": PADDINGS[padding], **options}
    request = CaptureRequest(query_sets=sets, key_regions=regions, **options)
    return capture(loaded, ids, attention_mask=mask, request=request)


def eager(model, padding):
    """The attention weights of an uncut model in float64, by layer. Rows of padding are NaN."""
    ids, mask = prompts(padding)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    output = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, output_attentions=True
    )
    is_padding = mask[:, None, :, None] == 0
    return {
        layer: output.attentions[layer].double().masked_fill(is_padding, torch.nan)
        for layer in LAYERS
    }


def reference(weights, padding):
    """The measures by their definitions, from an attention matrix."""
    _, mask = prompts(padding)
    sets, regions = sets_and_regions()
    query, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    is_token = mask.bool()
    is_counted = sets[:, :, :, None] & (query > key)
    is_counted &= is_token[:, None, :, None] & is_token[:, None, None, :]
    counted = weights.nan_to_num()[:, None] * is_counted[:, :, None]
    return {
        "column_mean": counted.sum(-2) / is_counted.sum(-2)[:, :, None],
        "column_count": is_counted.sum(-2),
        "region_mass": (weights[..., None, :] * regions[:, None, None]).sum(-1),
    }


def largest_error(measured, expected):
    """The largest difference; infinite if only one of the two is NaN somewhere."""
    if not torch.equal(measured.isnan(), expected.isnan()):
        return float("inf")
    return float((measured.double() - expected.double()).abs().nan_to_num().max())


def errors(model_type, padding):
    """The largest error of each measure over Layers 1 to 3, all heads, queries and keys."""
    captured = ask(build(model_type), padding)
    largest = {}
    for layer, weights in eager(build_whole(model_type), padding).items():
        for name, expected in reference(weights, padding).items():
            error = largest_error(getattr(captured[layer], name), expected)
            largest[name] = max(error, largest.get(name, 0.0))
    return largest
