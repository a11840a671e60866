"""Looked-up projections against computed ones."""

from __future__ import annotations

import pytest
import torch

from attention_probe.model.capture import capture
from attention_probe.model.token_table import TokenTable
from attention_probe.self_check import eager_error, identity_error
from harness.errors import ModelError
from tests.capture_errors import ARCHITECTURES, LAYERS, PADDINGS, VOCABULARY, ask, build, largest_error, prompts

EVERY_TOKEN = torch.arange(VOCABULARY)


def tabulate(loaded, token_ids=EVERY_TOKEN):
    """Give the model a table, and return it."""
    loaded.table = TokenTable.of(loaded.model, loaded.decoder_layers[0], token_ids)
    return loaded.table


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("model_type", sorted(set(ARCHITECTURES) - {"gpt2"}))
def test_looking_projections_up_changes_no_number(model_type, padding):
    loaded = build(model_type)
    expected = ask(loaded, padding)
    assert tabulate(loaded) is not None
    found = ask(loaded, padding)
    for layer in LAYERS:
        for name in ("column_mean", "region_mass"):
            assert largest_error(getattr(found[layer], name), getattr(expected[layer], name)) < 1e-5


def test_only_the_projections_before_the_attention_are_looked_up():
    assert set(tabulate(build("qwen2")).outputs) == {f"self_attn.{name}_proj" for name in "qkv"}
    assert set(tabulate(build("phi3")).outputs) == {"self_attn.qkv_proj"}


def test_a_projection_that_gives_another_shape_is_looked_up_by_token():
    loaded = build("deepseek_v3")  # its latent keys have an axis for the one head that they are
    names = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    expected = [ask(loaded, padding) for padding in PADDINGS]
    assert set(tabulate(loaded).outputs) == {f"self_attn.{name}" for name in names}
    for padding, usual in zip(PADDINGS, expected, strict=True):
        found = ask(loaded, padding)
        for layer in LAYERS:
            assert largest_error(found[layer].column_mean, usual[layer].column_mean) < 1e-5


def test_the_projections_are_not_computed_and_are_put_back():
    loaded = build("qwen2")
    ids = prompts("none")[0]
    usual = capture(loaded, ids, layers=[0])[0].column_mean
    tabulate(loaded)
    loaded.decoder_layers[0].self_attn.q_proj.weight.zero_()
    looked_up = capture(loaded, ids, layers=[0])[0].column_mean
    loaded.table = None
    computed = capture(loaded, ids, layers=[0])[0].column_mean
    assert largest_error(looked_up, usual) < 1e-6 < 0.01 < largest_error(computed, usual)


def test_only_the_tokens_given_are_in_the_table_in_any_order_and_others_are_refused():
    loaded = build("qwen2")
    ids = prompts("none")[0]
    usual = capture(loaded, ids, layers=[0])[0].column_mean
    table = tabulate(loaded, ids.flip(-1))
    assert len(table.outputs["self_attn.q_proj"]) == len(ids.unique()) < VOCABULARY
    assert largest_error(capture(loaded, ids, layers=[0])[0].column_mean, usual) < 1e-6
    other = next(token for token in range(VOCABULARY) if token not in ids)
    with pytest.raises(
        ModelError, match=f"token table has no token {other}. Expected only tokens that it was made for"
    ):
        capture(loaded, torch.tensor([[1, other]]), layers=[0])


def test_learned_positions_cannot_be_looked_up_by_token():
    assert tabulate(build("gpt2")) is None


@pytest.mark.parametrize("model_type", ["gptj", "qwen3_next"])
def test_where_the_whole_layer_runs_nothing_is_looked_up(model_type):
    loaded = build(model_type, **({"rotary_dim": 8} if model_type == "gptj" else {}))
    assert tabulate(loaded) is None
    assert not any(module._forward_hooks for module in loaded.model.modules())


def test_the_self_check_is_of_what_is_looked_up():
    loaded = build("qwen2")
    table = tabulate(loaded)
    ids, mask = prompts("none")
    assert eager_error(loaded, ids, attention_mask=mask) < 1e-5
    table.outputs["self_attn.q_proj"].mul_(5)
    assert eager_error(loaded, ids, attention_mask=mask) > 0.01
    assert identity_error(loaded, ids[0], (2, 5)) < 1e-5, "the identity holds for any queries"
