import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from attention_probe.model.load_first_layers import load_model
from harness.errors import ModelError
from tests.capture_errors import LLAMA_31

VOCABULARY = 97
PAD = 5
TOKENS = torch.tensor(
    [[3, 90, 5, 41, 41, 7, 8, 9, 0, 96, 12, 5, 3, 77]]
)  # longer than the windows; with padding's row
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = LLAMA_31 | {"original_max_position_embeddings": 16}
GEMMA3 = SHAPE | {
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 4,
    "sliding_window_pattern": 3,
    "rope_theta": 1e6,
    "rope_local_base_freq": 100.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 2,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
CONFIGS = {
    "qwen2": lambda: hf.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=2
    ),
    "qwen2-tied": lambda: hf.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: hf.Qwen3Config(
        **SHAPE, head_dim=16, use_sliding_window=True, sliding_window=4
    ),
    "llama": lambda: hf.LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "mistral": lambda: hf.MistralConfig(**SHAPE, sliding_window=4),
    "gemma2": lambda: hf.Gemma2Config(
        **SHAPE, head_dim=8, query_pre_attn_scalar=8, sliding_window=4
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(**GEMMA3),
    "gemma3-multimodal": lambda: hf.Gemma3Config(
        text_config=GEMMA3, vision_config=VISION, mm_tokens_per_image=4, image_token_index=95
    ),
    "phi3": lambda: hf.Phi3Config(**SHAPE, sliding_window=4),
    "gpt2": lambda: hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=5,
        n_head=4,
        n_positions=64,
        scale_attn_by_inverse_layer_idx=True,
    ),
    "gpt-oss": lambda: hf.GptOssConfig(
        **SHAPE,
        head_dim=8,
        sliding_window=4,
        num_local_experts=4,
        rope_parameters={"rope_theta": 1e4},
    ),
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(**SHAPE, head_dim=8, **MOE),
    "mixtral": lambda: hf.MixtralConfig(**SHAPE, num_local_experts=4),
    "gpt-neox": lambda: hf.GPTNeoXConfig(
        **{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}
    ),
    "nanochat": lambda: hf.NanoChatConfig(**SHAPE),  # its final norm is its first one too
    "laguna": lambda: hf.LagunaConfig(
        **SHAPE, head_dim=8, **MOE
    ),  # writes unguarded when it initialises
}


def build(config, *, dtype=torch.float32, seed=0):
    """A whole model in which every tensor is random, norms and the row of the padding token too."""
    auto = (
        hf.Gemma3ForConditionalGeneration
        if config.model_type == "gemma3"
        else hf.AutoModelForCausalLM
    )
    model = (auto._from_config if auto is not hf.AutoModelForCausalLM else auto.from_config)(
        config, dtype=dtype
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def save(tmp_path_factory, name, *, dtype=torch.float32, **options):
    folder = tmp_path_factory.mktemp(name)
    build(CONFIGS[name](), dtype=dtype).save_pretrained(folder, **options)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = save(tmp_path_factory, name)
        return made[name]

    return get


@pytest.fixture
def qwen2(checkpoint, tmp_path):
    return Path(shutil.copytree(checkpoint("qwen2"), tmp_path / "model"))


def layer_outputs(model, layers, **inputs):
    outputs = []
    hooks = [
        layer.register_forward_hook(
            lambda _, __, out: outputs.append(out[0] if isinstance(out, tuple) else out)
        )
        for layer in layers
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return outputs


def whole(folder):
    """The whole model as transformers loads it, with the eager attention that the probe loads, and its layers."""
    config = hf.AutoConfig.from_pretrained(folder)
    auto = (
        hf.Gemma3ForConditionalGeneration
        if config.model_type == "gemma3"
        else hf.AutoModelForCausalLM
    )
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    count = config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    return model, lists[0]


def worst(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


# ---- the cut model is the whole one -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_every_kept_layer_gives_what_it_gives_in_the_whole_model(checkpoint, name):
    folder = checkpoint(name)
    model, layers = whole(folder)
    expected = layer_outputs(
        model, layers, input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)
    )
    assert min(e.std() for e in expected) > 1e-3
    for asked in ([0], [3, 1], [4]):
        loaded = load_model(str(folder), layers=asked)
        kept = loaded.decoder_layers
        assert len(kept) == max(asked) + 1
        got = layer_outputs(
            loaded.model, kept, input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)
        )
        assert worst(got, expected[: len(kept)]) < 1e-6
        assert loaded.layers == tuple(sorted(asked))
        assert loaded.config.num_hidden_layers == 5


def test_a_bfloat16_checkpoint_is_computed_in_float32(tmp_path_factory):
    folder = save(tmp_path_factory, "qwen2", dtype=torch.bfloat16)
    model, layers = whole(folder)
    loaded = load_model(str(folder), layers=[1])
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    got = layer_outputs(loaded.model, loaded.decoder_layers, input_ids=TOKENS)
    assert worst(got, layer_outputs(model, layers, input_ids=TOKENS)[:2]) < 1e-6


# ---- what is read -------------------------------------------------------------------------------------------------

MEMORY = """
import sys
from attention_probe.model.load_first_layers import load_model
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
    config = hf.Qwen2Config(**SHAPE | {"hidden_size": 64, "intermediate_size": 32768})
    hf.Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path, **options)
    command = [sys.executable, "-c", MEMORY, str(checkpoint("qwen2")), str(tmp_path)]
    one, all_five = map(
        int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    )
    layer = 3 * 64 * 32768 * 4
    assert one < 2.2 * layer < 3 * layer < all_five, (
        "a layer, and as much again of the file's pages"
    )


# ---- key layouts --------------------------------------------------------------------------------------------------


def prefixed(prefix):
    def change(tensors):
        for name in list(tensors):
            if name.startswith("model."):
                tensors[prefix + name.removeprefix("model.")] = tensors.pop(name)

    return change


@pytest.mark.parametrize("prefix", ["", "model.language_model.", "language_model.model."])
def test_the_known_prefixes_before_the_base_model_are_found(qwen2, prefix):
    expected = load_model(str(qwen2), layers=[1])
    rewrite(qwen2, prefixed(prefix))
    got = load_model(str(qwen2), layers=[1])
    assert torch.equal(got.model(TOKENS)[0], expected.model(TOKENS)[0])


def test_stored_mask_buffers_of_old_gpt2_checkpoints_are_no_surprise(checkpoint, tmp_path):
    folder = Path(shutil.copytree(checkpoint("gpt2"), tmp_path / "model"))
    expected = load_model(str(folder), layers=[1])

    def like_the_hub(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for layer in range(5):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64)
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    rewrite(folder, like_the_hub)
    got = load_model(str(folder), layers=[1])
    assert torch.equal(got.model(TOKENS)[0], expected.model(TOKENS)[0])


# ---- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "deepest", "message"),
    [
        (
            lambda t: t.pop("model.layers.2.mlp.down_proj.weight"),
            2,
            r"lacks .*: layers\.2\.mlp\.down_proj\.weight\.",
        ),
        (lambda t: t.pop("model.layers.2.mlp.down_proj.weight"), 1, None),
        (
            lambda t: t.update({"model.layers.2.self_attn.q_norm.weight": torch.ones(8)}),
            3,
            r"that the model does not: model\.layers\.2\.self_attn\.q_norm\.weight\.",
        ),
        (lambda t: t.update({"model.layers.2.self_attn.q_norm.weight": torch.ones(8)}), 1, None),
        (
            lambda t: [t.pop(n) for n in list(t) if ".layers.0." in n and "norm" not in n],
            0,
            r"needs: layers\.0\.mlp\.down_proj\.weight, .*6 more",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.ones(49, 32)}),
            0,
            r"another shape than config.json says: layers\.0\.mlp\.up_proj\.weight",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_fatal_in_kept_layers_only(qwen2, damage, deepest, message):
    rewrite(qwen2, damage)
    if message is None:
        assert load_model(str(qwen2), layers=[deepest])
        return
    with pytest.raises(ModelError, match=message):
        load_model(str(qwen2), layers=[deepest])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", None, r"cannot be read: .* no file named model\.safetensors"),
        ("config.json", None, r"cannot be read: .* config\.json"),
        ("model.safetensors", '{"weight', "cannot be read: SafetensorError: "),
        ("config.json", '{"model_type": "no-such-model"}', "no-such-model"),
        ("config.json", {"quantization_config": {"quant_method": "mxfp4"}}, "is quantised: "),
        ("config.json", hf.T5Config(num_layers=1), r"\(t5\) is an encoder-decoder"),
        ("config.json", hf.XLMConfig(n_layers=5), r"one list of its 5 layers, got attentions, "),
        (
            "config.json",
            hf.MiniMaxConfig(**SHAPE, num_local_experts=4),
            "depends on the number of layers",
        ),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_loaded_says_why(qwen2, file, content, message):
    (qwen2 / file).unlink() if content is None else None
    if isinstance(content, str):
        (qwen2 / file).write_text(content)
    elif isinstance(content, dict):
        edit_config(qwen2, **content)
    elif content is not None:
        content.save_pretrained(qwen2)
    with pytest.raises(ModelError, match=message):
        load_model(str(qwen2), layers=[0])


def test_a_model_that_is_nowhere_says_so(tmp_path):
    with pytest.raises(ModelError, match=r"Model folder .*nowhere does not exist"):
        load_model(str(tmp_path / "nowhere"), layers=[0])
    with pytest.raises(ModelError, match="hub could not be reached for some-one/some-model"):
        load_model("some-one/some-model", layers=[0])


@pytest.mark.parametrize(("chosen", "message"), [([5], "6"), ([0, -1], "0, 1"), ([], "none")])
def test_layers_out_of_range_name_the_range(checkpoint, chosen, message):
    with pytest.raises(ModelError, match=rf"has Layers 1 to 5, counted from 1; got {message}"):
        load_model(str(checkpoint("qwen2")), layers=chosen)
