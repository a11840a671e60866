"""What is captured, compared with eager attention, by architecture.

The reference is `output_attentions=True` of all layers, averaged in float64.
"""

from math import isnan, nan

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_probe.model.attention_function import ATTENTION_NAME
from attention_probe.model.attention_statistics import CaptureRequest
from attention_probe.model.capture import capture_attention
from attention_probe.model.first_layers import LoadedModel
from attention_probe.self_check import captured_sums, largest_difference
from harness.errors import ModelError
from tests.conftest import mark_slow
from tests.make import module_fixture, with_cases
from tests.tiny_models import ARCHITECTURES, VOCABULARY, build_whole, largest_error

LENGTH = 45
LAYERS = (0, 1, 2)
BLOCK_SIZE = "attention_probe.model.attention_function._count_block_queries"
TOKEN_IDS = torch.randint(1, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(3))
POSITIONS = torch.arange(LENGTH)
SETS = torch.stack([POSITIONS >= 0, POSITIONS % 3 == 0, POSITIONS > LENGTH / 2])
"""Three sets of queries: all, every third, and the last half."""


def build(model_type, **changes):
    """A tiny random model of an architecture, cut after layer 2."""
    model = build_whole(model_type, **changes)
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    del layers[len(LAYERS) :]
    return LoadedModel(
        name=f"tiny {model_type}",
        model=model,
        config=model.config,
        layer_indices=LAYERS,
        decoder_layers=layers,
    )


def ask(loaded, **options):
    """Capture the prompt, in blocks that do not divide it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BLOCK_SIZE, lambda *_: 7)
        return capture_attention(
            loaded, TOKEN_IDS, request=CaptureRequest(query_sets=SETS, **options)
        )


def eager(model):
    """The attention weights [head, query, key] of an uncut model in float64, by layer."""
    attentions = model(input_ids=TOKEN_IDS[None], output_attentions=True).attentions
    return [weights[0].double() for weights in attentions]


def reference(weights):
    """The sums by their definition, from an attention matrix."""
    distances = POSITIONS[:, None] - POSITIONS
    is_counted = SETS[:, :, None] & (distances >= 0)
    is_counted[:-1] &= distances > 0
    return (weights * is_counted[:, None]).sum(-2)


in_all_architectures = pytest.mark.parametrize(
    "model_type", mark_slow(ARCHITECTURES, quick=["qwen2", "gemma2", "gpt_oss"])
)


@module_fixture
def qwen2():
    return build("qwen2")


@in_all_architectures
def test_sums_and_rows_are_those_of_eager_attention(model_type):
    captured = ask(build(model_type), row_count=10)
    attentions = eager(build_whole(model_type))
    for layer in LAYERS:
        assert largest_error(captured.layers[layer].sums, reference(attentions[layer])) < 1e-5
        # the inputs of later layers have been rounded differently
        tolerance = 1e-5 if layer else 1e-6
        assert largest_error(captured.layers[layer].rows, attentions[layer][:, -10:]) < tolerance


@in_all_architectures
def test_norms_are_those_of_the_hidden_states(model_type):
    captured = ask(build(model_type), keeps_norms=True)
    states = build_whole(model_type)(TOKEN_IDS[None], output_hidden_states=True).hidden_states
    for layer in LAYERS:
        expected = states[layer + 1][0].double().norm(dim=-1)
        assert largest_error(captured.norms[layer] / expected, torch.ones(LENGTH)) < 1e-5


@with_cases
def test_layers_without_softmax_attention_are_refused_and_another_is_named(layers):
    loaded = build("qwen3_next", num_hidden_layers=5)
    loaded.model = build_whole("qwen3_next", num_hidden_layers=5)
    loaded.layer_indices = layers
    with pytest.raises(ModelError, match=r"gave no attention weights for Layer [15]; .*: 4"):
        capture_attention(loaded, TOKEN_IDS)


@with_cases
def test_attention_that_is_not_finite_is_refused_with_layer_and_head(
    layer, projection, factor, message
):
    loaded = build("qwen2")
    loaded.decoder_layers[layer].self_attn.get_submodule(projection).weight[16:24] *= factor
    with pytest.raises(ModelError, match=message):
        capture_attention(loaded, TOKEN_IDS)


def test_the_pass_stops_after_the_last_requested_layer():
    loaded = build("qwen2")
    modules = []
    for index, layer in enumerate(loaded.decoder_layers):
        for name, module in (("attention", layer.self_attn.q_proj), ("mlp", layer.mlp)):
            label = f"{name} {index}"
            module.register_forward_hook(lambda *_, label=label: modules.append(label))
    loaded.layer_indices = (1,)
    capture_attention(loaded, TOKEN_IDS)
    assert modules == ["attention 0", "mlp 0", "attention 1"]


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


@with_cases
def test_no_tensor_grows_with_the_square_of_the_prompt(model_type, monkeypatch):
    length = 1024
    loaded = build(model_type, max_position_embeddings=length)
    ids = torch.randint(1, VOCABULARY, (length,), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(BLOCK_SIZE, lambda *_: 16)
    with LargestTensor() as largest:
        capture_attention(loaded, ids)
    assert largest.numel <= 6 * 16 * length


@pytest.mark.parametrize("architecture", ["opt", *sorted(set(ARCHITECTURES) - {"gpt_oss"})])
def test_activations_are_those_before_the_product(architecture):
    loaded = build(architecture)
    layer = loaded.decoder_layers[0]
    mlp = getattr(layer, "mlp", layer)
    recorded = {"up": 1}
    product = getattr(mlp, {"gpt2": "c_proj", "opt": "fc2"}.get(architecture, "down_proj"))
    product.register_forward_pre_hook(lambda _, args: recorded.update(product=args[0]))
    # in `phi3` one projection has the gates first, and `gpt2` and `opt` have no gates
    up_projection = getattr(mlp, "gate_up_proj", getattr(mlp, "up_proj", None))
    if up_projection:
        up_projection.register_forward_hook(lambda *call: recorded.update(up=call[-1][..., -80:]))
    for layers in ([0], [0, 1]):
        loaded.layer_indices = layers
        request = CaptureRequest(keeps_activations=True)
        captured = capture_attention(loaded, TOKEN_IDS, request=request)
        assert captured.activations.shape == (LENGTH, 80)
        assert list(captured.layers) == layers
    # `opt` has no axis of prompts
    products = captured.activations * recorded["up"]
    expected = recorded["product"].reshape(LENGTH, 80)
    assert largest_error(products.reshape(LENGTH, 80), expected) < 1e-6


@with_cases
def test_an_architecture_that_cannot_be_captured_is_refused(model_type, changes, message):
    with pytest.raises(ModelError, match=message):
        ask(build(model_type, **changes))


def test_sums_with_nan_cannot_be_compared(qwen2):
    sums = captured_sums(qwen2, TOKEN_IDS)
    assert isnan(largest_difference(sums, {layer: values * nan for layer, values in sums.items()}))


def test_the_model_is_unchanged_after_a_capture(qwen2):
    before = qwen2.model.config._attn_implementation
    ask(qwen2, keeps_activations=True, keeps_norms=True)
    assert qwen2.model.config._attn_implementation == before != ATTENTION_NAME
    assert not qwen2.decoder_layers[0].mlp.act_fn._forward_hooks
    assert not any(layer._forward_hooks for layer in qwen2.decoder_layers)
    assert qwen2.model(TOKEN_IDS[None]).last_hidden_state.shape == (1, LENGTH, 48)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@in_all_architectures
def test_cuda_gives_the_sums_of_the_cpu(model_type):
    loaded = build(model_type)
    expected = ask(loaded)
    loaded.model = loaded.model.to("cuda")
    captured = ask(loaded)
    for layer in LAYERS:
        assert largest_error(captured.layers[layer].sums.cpu(), expected.layers[layer].sums) < 1e-5
