"""The errors of the capture relative to eager attention, by architecture and padding.

    python -m tests.capture_errors

The models are tiny, with random weights, four layers, grouped KV heads, and windows shorter than
the prompt. The reference is `output_attentions=True` of all layers, averaged in float64.
"""

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from attention_probe.model.attention_statistics import Capture, CaptureRequest
from attention_probe.model.capture import capture
from attention_probe.model.load_first_layers import LoadedModel

VOCABULARY, LENGTH, PADDING = 97, 45, 13
LAYERS = (0, 1, 2)
WINDOWED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,  # enough for weights far from uniform
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA_31 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
ARCHITECTURES = {
    "qwen2": {},
    "qwen3": {},
    "llama": {"rope_parameters": LLAMA_31},
    "mistral": {"sliding_window": 16},
    "gemma2": {"sliding_window": 16, "layer_types": WINDOWED, "attn_logit_softcapping": 5.0},
    "gemma3_text": {"sliding_window": 16, "layer_types": WINDOWED},
    "phi3": {"sliding_window": 16},
    "gpt2": {"n_inner": 80},
    "gpt_oss": {
        "sliding_window": 16,
        "layer_types": WINDOWED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "rope_parameters": {**YARN, "original_max_position_embeddings": 32},
    },
}
OTHERS = {
    "deepseek_v3": {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "num_key_value_heads": 6,
        "first_k_dense_replace": 1,
    },
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 48},
    "qwen3_next": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
}
"""Architectures outside the table: some are captured, and others are refused."""
PADDINGS = ("none", "right", "left")


def build_whole(model_type: str, **changes: object) -> PreTrainedModel:
    """A tiny random model of an architecture, with all of its layers."""
    settings = SHAPE | (ARCHITECTURES | OTHERS).get(model_type, {}) | changes
    settings = {name: value for name, value in settings.items() if value is not None}
    config = AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(5)
    return AutoModel.from_config(config, attn_implementation="eager").eval().requires_grad_(False)


def build(model_type: str, **changes: object) -> LoadedModel:
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


def prompts(padding: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask of two prompts, the second padded."""
    ids = torch.randint(1, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    if padding == "right":
        mask[1, -PADDING:] = 0
    elif padding == "left":
        mask[1, :PADDING] = 0
    return ids * mask, mask


def sets_and_regions() -> tuple[torch.Tensor, torch.Tensor]:
    """Two sets of queries, all and every third, and three regions that partition the keys.

    One region consists of two pieces.
    """
    positions = torch.arange(LENGTH)
    sets = torch.stack([positions >= 0, positions % 3 == 0]).expand(2, -1, -1)
    filler = (positions >= 15) & (positions < 25)
    regions = torch.stack([positions < 5, filler, (positions >= 5) & ~filler]).expand(2, -1, -1)
    return sets, regions


def ask(loaded: LoadedModel, padding: str, **options: object) -> Capture:
    """Capture the prompts. By default a chunk is 16 queries, which does not divide the length."""
    ids, mask = prompts(padding)
    sets, regions = sets_and_regions()
    options = {"chunk": 16, **options}
    request = CaptureRequest(query_sets=sets, key_regions=regions, **options)
    return capture(loaded, ids, attention_mask=mask, request=request)


def eager(model: PreTrainedModel, padding: str) -> dict[int, torch.Tensor]:
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


def reference(weights: torch.Tensor, padding: str) -> dict[str, torch.Tensor]:
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


def largest_error(measured: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference; infinite if only one of the two is NaN somewhere."""
    if not torch.equal(measured.isnan(), expected.isnan()):
        return float("inf")
    return float((measured.double() - expected.double()).abs().nan_to_num().max())


def errors(model_type: str, padding: str) -> dict[str, float]:
    """The largest error of each measure over Layers 1 to 3, all heads, queries and keys."""
    captured = ask(build(model_type), padding)
    largest: dict[str, float] = {}
    for layer, weights in eager(build_whole(model_type), padding).items():
        for name, expected in reference(weights, padding).items():
            error = largest_error(getattr(captured[layer], name), expected)
            largest[name] = max(error, largest.get(name, 0.0))
    return largest


def table() -> str:
    """The largest error of any measure, by architecture and padding, in Markdown."""
    headers = [f"{padding} padding" for padding in PADDINGS]
    lines = [["architecture", *headers], ["---"] * (1 + len(PADDINGS))]
    for model_type in ARCHITECTURES:
        cells = [f"{max(errors(model_type, padding).values()):.1e}" for padding in PADDINGS]
        lines.append([model_type, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())
