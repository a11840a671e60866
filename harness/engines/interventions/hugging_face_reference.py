"""The same interventions in Hugging Face, prompt by prompt: the reference for the engine's answers.

`intervention_check.ask_reference` runs it in a separate process.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from harness.engines.interventions.arithmetic import (
    Change,
    add_gap,
    attend_with_changes,
    change_activations,
    change_outputs,
    copy_to,
    select_changes,
    tabulate_changes,
)
from harness.experiment.intervention_settings import find_gap

REFERENCE_ATTENTION_NAME = "mless_interventions"
"""The name of the attention function in the registry of Hugging Face."""


class ReferenceModel:
    """A model of Hugging Face's whose attention and activations a prompt's intervention changes.

    Some changes need states of tokens that are computed before the prompt, without changes. For the
    kind `mlp_output` these tokens are the `source`: a beginning of the prompt, of whose last token
    the MLP outputs are used. For the kind `filler` they are the `phantom`: a filler that is not in
    the prompt, but whose keys and values are added in Layer 1.

    Args:
        model_name: The model's folder or hub name.
        dtype: The type of its weights.
        layers: The layers, from 0, whose activations some intervention changes.
        revision: The revision on the hub.
    """

    def __init__(
        self, model_name: str, dtype: str, layers: Sequence[int], revision: str | None = None
    ) -> None:
        self._changes: Sequence[Change] = ()
        """The changes of the prompt that is being answered; empty while a source is computed."""
        self._indices = self._positions = torch.zeros(0)
        """[token] The indices of a pass's tokens in the prompt, and their positions after gaps."""
        self._phantom_states: Sequence[Tensor] = ()
        """The first layer's keys and values [1, token, head, unit] of the tokens computed last.

        These are the phantom's if the prompt has one: the kind `filler` is always alone.
        """
        self._last_output_by_layer: dict[int, Tensor] = {}
        """By layer, the MLP's output for the last token of the last pass."""
        self._outputs_by_source: dict[tuple[int, ...], dict[int, Tensor]] = {}
        """The last outputs of each source, by its tokens."""
        # Hugging Face makes no mask for this attention, because no mask function has its name. Both
        # functions that `_attention` calls are causal without a mask.
        AttentionInterface.register(REFERENCE_ATTENTION_NAME, self._attention)
        self.model = AutoModelForCausalLM.from_pretrained(
            model_name,
            dtype=dtype,
            attn_implementation=REFERENCE_ATTENTION_NAME,
            revision=revision,
        ).eval()
        if torch.cuda.is_available():
            self.model.cuda()
        decoder_layers = self.model.model.layers
        for layer in layers:
            activation = decoder_layers[layer].mlp.act_fn
            activation.register_forward_hook(partial(self._change_activations, layer))
        for layer, decoder_layer in enumerate(decoder_layers):
            if hasattr(decoder_layer, "mlp"):  # in some models not every layer has an MLP
                decoder_layer.mlp.register_forward_hook(partial(self._change_outputs, layer))

    @torch.no_grad()
    def generate(
        self,
        token_ids: Sequence[int],
        intervention: Sequence[Change] | None,
        token_count: int,
    ) -> dict[str, Any]:
        """Answer a prompt greedily.

        Args:
            token_ids: The prompt.
            intervention: Its changes; None for nothing.
            token_count: The number of tokens of the answer.

        Returns:
            Of each token of the answer: `tokens`, its id; `logprobs`, its log-probability; and
            `leads`, by how much this exceeds that of the next best token.
        """
        # sources and phantoms are computed without changes
        self._changes = ()
        for change in intervention or ():
            if separate_ids := change.get("source") or change.get("phantom"):
                self._compute_states(separate_ids, change.get("start", 0))
        self._changes = intervention or ()
        reply: dict[str, list[Any]] = {"tokens": [], "logprobs": [], "leads": []}
        # the tokens of the next pass: the prompt, and later the last token of the answer
        ids = torch.tensor([token_ids], device=self.model.device)
        # the states and the number of the tokens before them
        past_states = None
        past_count = 0
        for _ in range(token_count):
            self._indices = past_count + torch.arange(ids.shape[1], device=ids.device)
            self._positions = add_gap(self._indices, *find_gap(self._changes))
            output = self.model(
                ids,
                position_ids=self._positions[None],
                past_key_values=past_states,
                use_cache=True,
                logits_to_keep=1,
            )
            past_states = output.past_key_values
            past_count += ids.shape[1]
            # in float32, whatever the model's type: leads of near-ties are small
            top_two = output.logits[0, -1].float().log_softmax(-1).topk(2)
            reply["tokens"].append(int(top_two.indices[0]))
            reply["logprobs"].append(float(top_two.values[0]))
            reply["leads"].append(float(top_two.values[0] - top_two.values[1]))
            ids = top_two.indices[:1][None]
        return reply

    def _compute_states(self, token_ids: Sequence[int], start: int) -> None:
        """Store the states of a source or a phantom, whose first token has the position `start`.

        These are the MLP outputs, which only a change with a source uses, and the first layer's
        keys and values, which only a change with a phantom uses.
        """
        ids = torch.tensor([token_ids], device=self.model.device)
        positions = start + torch.arange(ids.shape[1], device=ids.device)
        output = self.model(ids, position_ids=positions[None], use_cache=True, logits_to_keep=1)
        first_layer = output.past_key_values.layers[0]
        self._phantom_states = [
            states.transpose(1, 2) for states in (first_layer.keys, first_layer.values)
        ]
        self._outputs_by_source[tuple(token_ids)] = {**self._last_output_by_layer}

    def _change_activations(
        self, layer: int, module: nn.Module, inputs: Any, activations: Tensor
    ) -> Tensor:
        """Activations [1, token, unit] of a layer, changed if the intervention changes them."""
        for change in select_changes(self._changes, layer, "activations"):
            activations = change_activations(activations[0], self._positions, change)[None]
        return activations

    def _change_outputs(self, layer: int, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        """Outputs [1, token, unit] of an MLP, changed if the intervention changes them."""
        for change in select_changes(self._changes, layer, "outputs"):
            source = self._outputs_by_source[tuple(change["source"])][layer]
            is_changed = torch.isin(self._indices, copy_to(outputs.device, change["tokens"]))
            outputs = change_outputs(outputs[0], is_changed, change, source)[None]
        if isinstance(outputs, Tensor):  # an MLP of experts may also return their choice
            self._last_output_by_layer[layer] = outputs[0, -1].clone()
        return outputs

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        scaling: float,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """The registered attention function, changed if the intervention changes the layer's.

        Query, key and value are [1, head, token, unit]; the queries are those of a pass, the keys
        also those of earlier passes. The result is [1, token, head, unit], and no weights.
        """
        layer: Any = module.layer_idx
        changes = select_changes(self._changes, layer, "attention")
        if not changes:
            attended, _ = sdpa_attention_forward(module, query, key, value, None, scaling=scaling)
            return attended, None
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))
        # A layer has at most one change of attention. Phantom keys come last because
        # `changed_weights` expects them there; it hides them from queries before the filler's
        # end. Their order has no effect, as keys contain their positions.
        if changes[0].get("phantom"):
            key = torch.cat([key, self._phantom_states[0]], 1)
            value = torch.cat([value, self._phantom_states[1]], 1)
        attended = attend_with_changes(
            query, key, value, scaling, self._indices[None], tabulate_changes(changes, query.device)
        )
        return attended.to(query.dtype), None


load_reference_model = cache(ReferenceModel)
"""Loads a `ReferenceModel`, but only once for the same arguments: each arm is a separate call."""
