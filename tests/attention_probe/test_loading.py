import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from attention_probe.model.load_first_layers import load_model
from harness.errors import ModelError
from tests.capture_errors import ARCHITECTURES, SHAPE, VOCABULARY, largest_error
from tests.make import with_cases

TOKENS = 7 * torch.arange(45)[None] % VOCABULARY
"""Longer than all windows, with the id of padding."""
WINDOW = {"use_sliding_window": True, "sliding_window": 4}
GEMMA3 = SHAPE | {
    "query_pre_attn_scalar": 8,
    "sliding_window": 4,
    "sliding_window_pattern": 3,
    "rope_theta": 1e6,
    "rope_local_base_freq": 100.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 2,
}
CONFIGS = ARCHITECTURES | {
    "qwen2": WINDOW | {"max_window_layers": 2},
    "qwen2-tied": {"tie_word_embeddings": True},
    "qwen2-bfloat16": {"dtype": "bfloat16"},
    "qwen3": WINDOW | {"head_dim": 16},
    "gemma3": {
        "text_config": GEMMA3,
        "vision_config": VISION,
        "mm_tokens_per_image": 4,
        "image_token_index": 95,
    },
    "gemma3_text": GEMMA3,
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},
    "qwen3_moe": MOE,
    "mixtral": {"num_local_experts": 4},
    "gpt_neox": {},
    "nanochat": {},  # its final norm is its first one too
    "laguna": MOE,  # writes unguarded when it initialises
}
"""Changes of SHAPE by model type."""


def build(name):
    """A full model in which every tensor is random, also norms and the row of the padding token."""
    model_type, _, _ = name.partition("-")
    config = hf.AutoConfig.for_model(model_type, **SHAPE | CONFIGS[name])
    dtype = config.dtype or torch.float32
    model = hf.AutoModelForCausalLM.from_config(config, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    @cache
    def save(name):
        folder = tmp_path_factory.mktemp(name)
        build(name).save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def qwen2(checkpoint, tmp_path):
    return Path(shutil.copytree(checkpoint("qwen2"), tmp_path / "model"))


def layer_outputs(model, layers):
    outputs = []
    hooks = [
        layer.register_forward_hook(lambda *call: outputs.append(call[-1])) for layer in layers
    ]
    with torch.no_grad():
        model(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS))
    for hook in hooks:
        hook.remove()
    # some architectures return a tuple
    return torch.cat([output[0] if isinstance(output, tuple) else output for output in outputs])


def full_outputs(folder):
    """The outputs of all layers of the model as transformers loads it, with eager attention."""
    model = hf.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    count = model.config.get_text_config().num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return layer_outputs(model, next(layers for layers in lists if len(layers) == count))


def rewrite(folder, change):
    """Change the stored tensors of a checkpoint."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", CONFIGS)
def test_every_loaded_layer_gives_its_output_in_the_full_model_in_float32(checkpoint, name):
    folder = checkpoint(name)
    expected = full_outputs(folder)
    assert expected.flatten(1).std(1).min() > 1e-3
    for requested in ([0], [2, 1], [3]):
        loaded = load_model(str(folder), layers=requested)
        outputs = layer_outputs(loaded.model, loaded.decoder_layers)
        assert largest_error(outputs, expected[: max(requested) + 1]) < 1e-6
        assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
        assert loaded.layers == tuple(sorted(requested))
        assert loaded.config.num_hidden_layers == 4


MEMORY = """
import sys
from attention_probe.model.load_first_layers import load_model
from tests.make import with_cases
from benchmarks.attention import peak_memory

load_model(sys.argv[1], layers=[0])  # what is imported on the way is not counted
peaks = [peak_memory()]
for deepest in (0, 4):
    load_model(sys.argv[2], layers=[deepest])
    peaks.append(peak_memory())
print(peaks[1] - peaks[0], peaks[2] - peaks[0])
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow, id="single"),
        pytest.param({"max_shard_size": "30MB"}, id="sharded"),
    ],
)
def test_later_layers_are_not_read(checkpoint, tmp_path, options):
    shape = {"hidden_size": 64, "intermediate_size": 32768, "num_hidden_layers": 5}
    model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**SHAPE | shape))
    model.to(torch.bfloat16).save_pretrained(tmp_path, **options)
    command = [sys.executable, "-c", MEMORY, str(checkpoint("qwen2")), str(tmp_path)]
    stdout = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first_layer, all_layers = map(int, stdout.split())
    layer = 3 * 64 * 32768 * 4
    # a layer needs as much again for the file's pages
    assert first_layer < 2.2 * layer < 3 * layer < all_layers


@with_cases
def test_known_prefixes_and_stored_mask_buffers_are_ignored(
    checkpoint, tmp_path, name, prefix, stored_prefix
):
    folder = Path(shutil.copytree(checkpoint(name), tmp_path / "model"))
    expected = load_model(str(folder), layers=[1])

    def store_as_on_the_hub(tensors):
        for key in [key for key in tensors if key.startswith(prefix)]:
            tensors[stored_prefix + key.removeprefix(prefix)] = tensors.pop(key)
        if name == "gpt2":
            for layer in range(4):
                tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 128, 128)
                tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    rewrite(folder, store_as_on_the_hub)
    loaded = load_model(str(folder), layers=[1])
    assert torch.equal(loaded.model(TOKENS)[0], expected.model(TOKENS)[0])


def add(name, *shape):
    return lambda tensors: tensors.update({name: torch.ones(shape)})


def remove(pattern):
    def change(tensors):
        for name in [name for name in tensors if re.search(pattern, name)]:
            del tensors[name]

    return change


@pytest.mark.parametrize(
    ("damage", "layer", "message"),
    [
        (
            remove(r"layers\.2\.mlp\.down_proj"),
            2,
            r"lacks .*: layers\.2\.mlp\.down_proj\.weight\.",
        ),
        (
            add("model.layers.2.self_attn.q_norm.weight", 8),
            2,
            r"that the model does not: model\.layers\.2\.self_attn\.q_norm\.weight\.",
        ),
        (
            remove(r"layers\.0\.(?!.*norm)"),
            0,
            r"needs: layers\.0\.mlp\.down_proj\.weight, .*6 more",
        ),
        (
            add("model.layers.0.mlp.up_proj.weight", 49, 32),
            0,
            r"another shape than config.json says: layers\.0\.mlp\.up_proj\.weight",
        ),
    ],
)
def test_unsuitable_tensors_are_refused_in_loaded_layers_only(qwen2, damage, layer, message):
    rewrite(qwen2, damage)
    with pytest.raises(ModelError, match=message):
        load_model(str(qwen2), layers=[layer])
    if layer:
        assert load_model(str(qwen2), layers=[layer - 1])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", "", r"cannot be read: .* no file named model\.safetensors"),
        ("config.json", "", r"cannot be read: .* config\.json"),
        ("model.safetensors", '{"weight', "cannot be read: SafetensorError: "),
        ("config.json", '{"model_type": "no-such-model"}', "no-such-model"),
        (
            "config.json",
            hf.Qwen2Config(quantization_config={"quant_method": "mxfp4"}),
            "is quantised: ",
        ),
        ("config.json", hf.T5Config(num_layers=1), r"\(t5\) is an encoder-decoder"),
        ("config.json", hf.XLMConfig(n_layers=5), "one list of its 5 layers, got attentions, "),
        (
            "config.json",
            hf.MiniMaxConfig(**SHAPE, num_local_experts=4),
            "depends on the number of layers",
        ),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_loaded_is_refused_with_the_reason(qwen2, file, content, message):
    path = qwen2 / file
    path.unlink()
    if isinstance(content, hf.PretrainedConfig):
        content.save_pretrained(qwen2)
    elif content:
        path.write_text(content)
    with pytest.raises(ModelError, match=message):
        load_model(str(qwen2), layers=[0])


@with_cases
def test_a_model_that_does_not_exist_is_refused(name, message):
    with pytest.raises(ModelError, match=message):
        load_model(name, layers=[0])


def test_layers_out_of_range_are_refused_with_the_range(checkpoint):
    with pytest.raises(ModelError, match=r"has Layers 1 to 4, counted from 1; got 1, 5"):
        load_model(str(checkpoint("qwen2")), layers=[0, 4])
