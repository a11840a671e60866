"""Looked-up projections against computed ones."""

from __future__ import annotations

import pytest
import torch

from attention_probe.model.capture import capture
from attention_probe.model.self_check import eager_error, identity_error
from attention_probe.model.token_table import TokenTable
from harness.errors import ModelError
from tests.capture_errors import ARCHITECTURES, LAYERS, PADDINGS, VOCABULARY, ask, build, largest_error, prompts

EVERY_TOKEN = torch.arange(VOCABULARY)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("model_type", sorted(set(ARCHITECTURES) - {"gpt2"}))
def test_looking_projections_up_changes_no_number(model_type, padding):
    loaded = build(model_type)
    table = TokenTable.of(loaded, EVERY_TOKEN)
    found, expected = ask(loaded, padding, table=table), ask(loaded, padding)
    for layer in LAYERS:
        for name in ("column_mean", "region_mass"):
            assert largest_error(getattr(found[layer], name), getattr(expected[layer], name)) < 1e-5


def test_only_the_projections_before_the_attention_are_looked_up():
    assert set(TokenTable.of(build("qwen2"), EVERY_TOKEN).outputs) == {f"self_attn.{name}_proj" for name in "qkv"}
    assert set(TokenTable.of(build("phi3"), EVERY_TOKEN).outputs) == {"self_attn.qkv_proj"}


def test_a_projection_that_gives_another_shape_is_looked_up_by_token():
    loaded = build("deepseek_v3")  # its latent keys have an axis for the one head that they are
    table = TokenTable.of(loaded, EVERY_TOKEN)
    names = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    assert set(table.outputs) == {f"self_attn.{name}" for name in names}
    for padding in PADDINGS:
        found, expected = ask(loaded, padding, table=table), ask(loaded, padding)
        for layer in LAYERS:
            assert largest_error(found[layer].column_mean, expected[layer].column_mean) < 1e-5


def test_the_projections_are_not_computed_and_are_put_back():
    loaded = build("qwen2")
    table = TokenTable.of(loaded, EVERY_TOKEN)
    projection = loaded.decoder_layers[0].self_attn.q_proj
    usual = capture(loaded, prompts("none")[0], layers=[0])[0].column_mean
    projection.weight.zero_()
    looked_up = capture(loaded, prompts("none")[0], layers=[0], table=table)[0].column_mean
    computed = capture(loaded, prompts("none")[0], layers=[0])[0].column_mean
    assert largest_error(looked_up, usual) < 1e-6 < 0.01 < largest_error(computed, usual)


def test_only_the_tokens_given_are_in_the_table_in_any_order_and_others_are_refused():
    loaded = build("qwen2")
    ids = prompts("none")[0]
    table = TokenTable.of(loaded, ids.flip(-1))
    assert len(table.outputs["self_attn.q_proj"]) == len(ids.unique()) < VOCABULARY
    usual, looked_up = (capture(loaded, ids, layers=[0], table=one)[0].column_mean for one in (None, table))
    assert largest_error(looked_up, usual) < 1e-6
    other = next(token for token in range(VOCABULARY) if token not in ids)
    with pytest.raises(
        ModelError, match=f"token table has no token {other}. Expected only tokens that it was made for"
    ):
        capture(loaded, torch.tensor([[1, other]]), layers=[0], table=table)


def test_learned_positions_cannot_be_looked_up_by_token():
    with pytest.raises(ModelError, match=r"tiny gpt2: .*c_attn.* of the first layer gives a token other values"):
        TokenTable.of(build("gpt2"), EVERY_TOKEN)


def test_where_the_whole_layer_runs_nothing_is_looked_up():
    with pytest.raises(ModelError, match="does not call the registered attention function, so its projections"):
        TokenTable.of(build("gptj", rotary_dim=8), EVERY_TOKEN)


def test_the_self_check_is_of_what_is_looked_up():
    loaded = build("qwen2")
    table = TokenTable.of(loaded, EVERY_TOKEN)
    ids, mask = prompts("none")
    assert eager_error(loaded, ids, attention_mask=mask, table=table) < 1e-5
    table.outputs["self_attn.q_proj"].mul_(5)
    assert eager_error(loaded, ids, attention_mask=mask, table=table) > 0.01
    assert identity_error(loaded, ids[0], (2, 5), table=table) < 1e-5, "the identity holds for any queries"
