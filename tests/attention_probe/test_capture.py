from math import isnan

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_probe.check_probe import column_means, eager_means, largest_difference
from attention_probe.model.attention_function import ATTENTION
from attention_probe.model.attention_statistics import CaptureRequest
from attention_probe.model.capture import capture
from attention_probe.model.load_first_layers import load_model
from harness.errors import ModelError
from tests.capture_errors import (
    ARCHITECTURES,
    LAYERS,
    LENGTH,
    PADDINGS,
    VOCABULARY,
    ask,
    build,
    build_whole,
    eager,
    errors,
    largest_error,
    prompts,
    sets_and_regions,
)


@pytest.fixture(scope="module")
def qwen2():
    return build("qwen2")


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_curves_masses_and_entropies_are_those_of_eager_attention(model_type, padding):
    found = errors(model_type, padding)
    assert set(found) >= {"column_mean", "region_mass"}
    assert found.pop("column_count") == 0
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize(
    ("model_type", "layers"),
    # of qwen3_next's four layers one has softmax attention, and is the first that is shown
    [("deepseek_v3", [0, 2]), ("opt", [0, 2]), ("qwen3_next", [3])],
)
def test_other_architectures_give_the_means_of_the_whole_model(tmp_path, model_type, layers):
    whole = build_whole(model_type)
    whole.save_pretrained(tmp_path)
    ids, mask = prompts("right")
    shown = whole(ids, attention_mask=mask, output_attentions=True).attentions
    loaded = load_model(str(tmp_path), layers=layers)
    ours = capture(loaded, ids, attention_mask=mask)
    later = torch.ones(LENGTH, LENGTH).tril(-1) * mask[:, None, :, None] * mask[:, None, None, :]
    for layer in layers:
        weights = shown[0 if model_type == "qwen3_next" else layer]
        expected = ((weights * later).sum(-2) / later.sum(-2)).masked_fill(
            mask[:, None] == 0, torch.nan
        )
        assert largest_error(ours[layer].column_mean[:, 0], expected) < 1e-5
    assert largest_difference(column_means(loaded, ids[0]), eager_means(loaded, ids[0])) < 1e-5


@pytest.mark.parametrize("layers", [[0], [0, 3], [3, 4]])
def test_layers_without_softmax_attention_are_refused_naming_one_that_has_it(layers):
    loaded = build("qwen3_next", num_hidden_layers=5)
    loaded.model = build_whole("qwen3_next", num_hidden_layers=5)
    loaded.layers = layers
    with pytest.raises(ModelError, match=r"gave no attention weights for Layer [15]; .*: 4"):
        capture(loaded, prompts("none")[0])


@pytest.mark.parametrize(
    ("layer", "projection", "value", "where"),
    [
        (1, "q_proj", torch.nan, "Layer 2, Head 3, counted from 1, in float32"),
        (0, "k_proj", torch.inf, "Layer 1, Head 5, 6, counted"),
        (0, "v_proj", torch.nan, "Layer 2, Head 1, 2, 3, 4, 5, 6, counted"),
        (0, "q_proj", 1e38, "Layer 1, Head 3, counted"),
    ],
)
def test_attention_that_is_not_finite_is_refused_naming_where(layer, projection, value, where):
    loaded = build("qwen2")
    loaded.decoder_layers[layer].self_attn.get_submodule(projection).weight[16:24] *= value
    with pytest.raises(ModelError, match=where):
        capture(loaded, prompts("none")[0])


@pytest.mark.parametrize("region", [0, 1, 2])
@pytest.mark.parametrize("model_type", ["qwen2", "gemma2", "gpt2", "gpt_oss"])
def test_outputs_are_those_of_eager_attention(model_type, region):
    whole = build_whole(model_type)
    _, mask = prompts("left")
    expected, read = {}, {}
    for index, layer in enumerate(whole.h if model_type == "gpt2" else whole.layers):
        given, made = (
            (layer.attn.c_attn, layer.attn.c_proj)
            if model_type == "gpt2"
            else (None, layer.self_attn.o_proj)
        )
        made.register_forward_pre_hook(
            lambda _, inputs, index=index: expected.update({index: inputs[0]})
        )
        given = given or layer.self_attn.v_proj
        given.register_forward_hook(lambda _, __, out, index=index: read.update({index: out}))
    weights = eager(whole, "left")
    captured = ask(build(model_type), "left", output_region=region, chunk=7)
    _, regions = sets_and_regions()
    for layer in LAYERS:
        got = captured[layer].output.transpose(1, 2).flatten(2)
        assert (got - expected[layer])[mask.bool()].abs().max() < 1e-5
        _, heads, _, size = captured[layer].output.shape
        values = read[layer].chunk(3, -1)[-1] if model_type == "gpt2" else read[layer]
        values = values.unflatten(-1, (-1, size)).transpose(1, 2).double()
        values = values.repeat_interleave(heads // values.shape[1], 1)
        part = (weights[layer] * regions[:, region, None, None]) @ values
        assert largest_error(captured[layer].region_output, part) < 1e-5


@pytest.mark.parametrize("chunk", [1, 7, LENGTH, 64])
@pytest.mark.parametrize("model_type", ["qwen2", "mistral"])
def test_the_block_size_changes_no_number(model_type, chunk):
    loaded = build(model_type)
    other, usual = ask(loaded, "left", chunk=chunk), ask(loaded, "left")
    for layer in LAYERS:
        for name in ("column_mean", "region_mass"):
            assert largest_error(getattr(other[layer], name), getattr(usual[layer], name)) < 1e-5


def test_a_mean_is_over_all_later_queries_whether_or_not_a_window_hides_the_key_from_them():
    layer = ask(build("mistral"), "none")[0]
    assert layer.column_count[0, 0, 0] == LENGTH - 1


def test_a_gap_in_positions_is_no_border_between_documents(qwen2):
    ids, _ = prompts("none")
    positions = torch.arange(LENGTH).expand(2, -1) + 20 * (torch.arange(LENGTH) >= 10)
    regions = (torch.arange(LENGTH) < 10).expand(2, 1, -1)
    request = CaptureRequest(key_regions=regions)
    mass = capture(qwen2, ids, position_ids=positions, request=request)[0].region_mass
    assert (mass[:, :, 10:] > 0).all()


def test_the_pass_stops_after_the_last_layer_asked():
    qwen2 = build("qwen2")
    ran = []
    for index, layer in enumerate(qwen2.decoder_layers):
        layer.self_attn.q_proj.register_forward_hook(
            lambda *_, index=index: ran.append(f"attention {index}")
        )
        layer.mlp.register_forward_hook(lambda *_, index=index: ran.append(f"mlp {index}"))
    ids, _ = prompts("none")
    qwen2.layers = (1,)
    capture(qwen2, ids)
    assert ran == ["attention 0", "mlp 0", "attention 1"]


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


@pytest.mark.parametrize(
    ("model_type", "padded"),
    [
        ("qwen2", False),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in [("qwen2", True), ("mistral", False), ("mistral", True)]
        ),
    ],
)
def test_nothing_grows_with_the_square_of_the_prompt(model_type, padded):
    length = 1024
    loaded = build(model_type, max_position_embeddings=length)
    ids = torch.randint(1, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, :5] = not padded
    with LargestTensor() as largest:
        capture(
            loaded,
            ids,
            attention_mask=mask,
            request=CaptureRequest(
                key_regions=torch.ones(1, 1, length, dtype=torch.bool), chunk=16
            ),
        )
    assert largest.numel <= 6 * 16 * length


@pytest.mark.parametrize("model_type", sorted(set(ARCHITECTURES) - {"gpt_oss"}))
def test_activations_are_those_before_the_product(model_type):
    loaded = build(model_type)
    mlp = loaded.decoder_layers[0].mlp
    seen = {}
    inner = mlp.c_proj if model_type == "gpt2" else mlp.down_proj
    inner.register_forward_pre_hook(lambda _, inputs: seen.update(product=inputs[0]))
    if model_type == "phi3":
        mlp.gate_up_proj.register_forward_hook(lambda *a: seen.update(up=a[2].chunk(2, dim=-1)[1]))
    elif model_type != "gpt2":
        mlp.up_proj.register_forward_hook(lambda *a: seen.update(up=a[2]))
    for layers in ([0], [0, 1]):
        loaded.layers = layers
        found = capture(loaded, prompts("none")[0], request=CaptureRequest(activations=True))
        assert found.activations.shape == (2, LENGTH, 80)
        assert list(found.layers) == layers
    assert (
        loaded.model(prompts("none")[0]) is not None
    )  # the hook is gone, and the pass runs to its end
    expected = found.activations * seen.get("up", 1)
    assert largest_error(expected, seen["product"]) < 1e-5


def test_activations_of_other_architectures_are_those_of_each_token():
    loaded = build("opt")
    seen = {}
    product = loaded.decoder_layers[0].fc2
    product.register_forward_pre_hook(lambda _, inputs: seen.update(product=inputs[0]))
    loaded.layers = (0, 1)
    request = CaptureRequest(activations=True)
    found = capture(loaded, prompts("none")[0], request=request).activations
    assert found.shape[:2] == (2, LENGTH)
    assert largest_error(found.flatten(0, 1), seen["product"].reshape(2 * LENGTH, -1)) < 1e-6


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gptj", {"rotary_dim": 8}, "GPTJModel gave no attention weights for Layer 1"),
        ("bloom", {}, "BloomModel takes no positions"),
        ("mamba", {"state_size": 4, "num_heads": None}, "MambaModel takes no positions"),
    ],
)
def test_an_architecture_that_never_calls_ours_is_refused(model_type, changes, message):
    with pytest.raises(ModelError, match=message):
        ask(build(model_type, **changes), "none")


def test_means_over_other_tokens_cannot_be_compared(qwen2):
    ids, _ = prompts("none")
    one = column_means(qwen2, ids[0])
    assert isnan(
        largest_difference(one, {layer: means.roll(1, -1) for layer, means in one.items()})
    )


def test_a_model_that_sees_later_tokens_is_refused():
    with pytest.raises(ModelError, match="lets tokens see later ones"):
        ask(build("gemma3_text", use_bidirectional_attention=True), "none")


def test_the_model_is_left_as_it_was(qwen2):
    ids, _ = prompts("none")
    before = qwen2.model.config._attn_implementation
    ask(qwen2, "none", activations=True)
    assert qwen2.model.config._attn_implementation == before != ATTENTION
    assert not qwen2.decoder_layers[0].mlp.act_fn._forward_hooks
    assert qwen2.model(ids).last_hidden_state.shape == (2, LENGTH, 48)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_cuda_gives_what_the_cpu_gives(model_type, padding):
    loaded = build(model_type)
    exact = ask(loaded, padding)
    loaded.model = loaded.model.to("cuda")
    found = ask(loaded, padding, chunk=None)
    for layer in LAYERS:
        assert largest_error(found[layer].column_mean.cpu(), exact[layer].column_mean) < 1e-5
