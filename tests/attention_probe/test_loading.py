import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from attention_probe.model.first_layers import load_model
from attention_probe.probe_settings import ProbeSettings
from harness.errors import ModelError
from tests.conftest import load_eager, run_python
from tests.make import module_fixture, source_of, with_cases
from tests.tiny_models import ARCHITECTURES, MODELS, SHAPE, VOCABULARY, largest_error

TOKENS = 7 * torch.arange(45)[None] % VOCABULARY
"""Longer than all windows, with the id of padding."""
CONFIGS = ARCHITECTURES | MODELS["loaded"]
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


@module_fixture
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
    model = load_eager(folder)
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
        loaded = load_model(str(folder), layer_indices=requested)
        outputs = layer_outputs(loaded.model, loaded.decoder_layers)
        assert largest_error(outputs, expected[: max(requested) + 1]) < 1e-6
        assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
        assert loaded.layer_indices == tuple(sorted(requested))
        assert loaded.config.num_hidden_layers == 4


MEMORY = """
import sys
from attention_probe.model.first_layers import load_model
from benchmarks.attention import peak_memory

load_model(sys.argv[1], layer_indices=[0])  # what is imported on the way is not counted
peaks = [peak_memory()]
for deepest in (0, 4):
    load_model(sys.argv[2], layer_indices=[deepest])
    peaks.append(peak_memory())
print(peaks[1] - peaks[0], peaks[2] - peaks[0])
"""


@pytest.mark.slow
@with_cases
def test_later_layers_are_not_read(checkpoint, tmp_path, options):
    shape = {"hidden_size": 64, "intermediate_size": 32768, "num_hidden_layers": 5}
    model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**SHAPE | shape))
    model.to(torch.bfloat16).save_pretrained(tmp_path, **options)
    peaks = run_python(MEMORY, checkpoint("qwen2"), tmp_path)
    first_layer, all_layers = map(int, peaks.split())
    layer = 3 * 64 * 32768 * 4
    # a layer needs as much again for the file's pages
    assert first_layer < 2.2 * layer < 3 * layer < all_layers


@with_cases
def test_known_prefixes_and_stored_mask_buffers_are_ignored(
    checkpoint, tmp_path, name, prefix, stored_prefix
):
    folder = Path(shutil.copytree(checkpoint(name), tmp_path / "model"))
    expected = load_model(str(folder), layer_indices=[1])

    def store_as_on_the_hub(tensors):
        for key in [key for key in tensors if key.startswith(prefix)]:
            tensors[stored_prefix + key.removeprefix(prefix)] = tensors.pop(key)
        if name == "gpt2":
            for layer in range(4):
                tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 128, 128)
                tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    rewrite(folder, store_as_on_the_hub)
    loaded = load_model(str(folder), layer_indices=[1])
    assert torch.equal(loaded.model(TOKENS)[0], expected.model(TOKENS)[0])


@with_cases
def test_unsuitable_tensors_are_refused_in_loaded_layers_only(
    qwen2, removed, added, layer, message
):
    def damage(tensors):
        for name in [name for name in tensors if re.search(removed, name)]:
            del tensors[name]
        tensors.update({name: torch.ones(shape) for name, shape in added.items()})

    rewrite(qwen2, damage)
    with pytest.raises(ModelError, match=message):
        load_model(str(qwen2), layer_indices=[layer])
    if layer:
        assert load_model(str(qwen2), layer_indices=[layer - 1])


def test_a_run_is_probed_with_the_revision_of_its_model(qwen2, tmp_path, monkeypatch):
    # the hub's cache: a folder for each commit, and a file for each name of one
    cached_model = tmp_path / "models--people--model"
    sums = {}
    for commit, name in {"a" * 40: "main", "b" * 40: "older"}.items():
        rewrite(qwen2, lambda tensors: tensors["model.embed_tokens.weight"].mul_(2))
        shutil.copytree(qwen2, cached_model / "snapshots" / commit)
        (cached_model / "refs").mkdir(exist_ok=True)
        (cached_model / "refs" / name).write_text(commit)
        weight = load_file(qwen2 / "model.safetensors")["model.embed_tokens.weight"]
        sums[name] = weight[5].sum().item()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for revision, expected in sums.items():
        arguments = {"revision": revision}
        source = replace(source_of(), model="people/model", model_arguments=arguments)
        loaded = ProbeSettings().complete_from(source).load_model("float32")
        embeddings = loaded.model.get_input_embeddings().weight
        assert embeddings[5].sum().item() == pytest.approx(expected, rel=1e-5)


@with_cases
def test_a_folder_that_cannot_be_loaded_is_refused_with_the_reason(qwen2, file, content, message):
    path = qwen2 / file
    path.unlink()
    if isinstance(content, dict):
        hf.AutoConfig.for_model(**content).save_pretrained(qwen2)
    elif content:
        path.write_text(content)
    with pytest.raises(ModelError, match=message):
        load_model(str(qwen2), layer_indices=[0])


@with_cases
def test_a_model_that_does_not_exist_is_refused(name, message):
    with pytest.raises(ModelError, match=message):
        load_model(name, layer_indices=[0])
