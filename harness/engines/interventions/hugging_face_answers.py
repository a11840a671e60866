"""The same interventions in Hugging Face, prompt by prompt: the reference for the engine's answers.

It runs in a separate process, which ends before an engine takes the memory:

    python -m harness.engines.interventions.hugging_face_answers FILE

FILE has the questions, and then the questions with the answers.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.masking_utils import eager_mask

from harness.engines.interventions.arithmetic import (
    add_gap,
    attend,
    change_activations,
    plain_weights,
    tabulate_fillers,
)
from harness.engines.interventions.check_arms import ARM_TOKENS
from harness.experiment.intervention_settings import CHANGES_ATTENTION

NAME = "mless_interventions"


class Reference:
    """A model of Hugging Face's whose attention and activations the arm of a prompt changes.

    Args:
        folder: The model's folder or hub name.
        dtype: The type of its weights.
        layers: The layers, from 0, whose activations some arm changes.
        revision: The revision on the hub.
    """

    def __init__(
        self, folder: str, dtype: str, layers: Sequence[int], revision: str | None = None
    ) -> None:
        self._arm: Mapping[str, Any] = {}
        self._positions = torch.zeros(0)
        self._phantom: tuple[Tensor, Tensor] | None = None
        self._capture: list[tuple[Tensor, Tensor]] | None = None
        self._first_token_mass: float | None = None
        AttentionInterface.register(NAME, self._attention)
        AttentionMaskInterface.register(NAME, eager_mask)  # unused: all attention here is causal
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=NAME, revision=revision
        ).eval()
        if torch.cuda.is_available():
            self.model.cuda()
        for layer in layers:
            activation = self.model.model.layers[layer].mlp.act_fn
            activation.register_forward_hook(partial(self._change, layer))

    @torch.no_grad()
    def answer(self, token_ids: Sequence[int], arm: Mapping[str, Any] | None) -> dict[str, Any]:
        """The greedy answer, its log-probabilities, and their leads over the next best token.

        Of a sink also `first_token_mass`: the mean weight on the first token in the first changed
        layer, as it is without the change.
        """
        self._arm, self._first_token_mass = arm or {}, None
        self._phantom = self._capture_phantom() if self._arm.get("phantom") else None
        answer: dict[str, list[Any]] = {"tokens": [], "logprobs": [], "leads": []}
        ids, cache, start = torch.tensor([list(token_ids)], device=self.model.device), None, 0
        for _ in range(ARM_TOKENS):
            self._positions = start + torch.arange(ids.shape[1], device=ids.device)
            if "phantom" in self._arm:
                self._positions = add_gap(self._positions, self._arm["start"], self._arm["size"])
            output = self.model(
                ids,
                position_ids=self._positions[None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, start = output.past_key_values, start + ids.shape[1]
            # in float32, whatever the model's type: leads of near-ties are small
            best = output.logits[0, -1].float().log_softmax(-1).topk(2)
            answer["tokens"].append(int(best.indices[0]))
            answer["logprobs"].append(float(best.values[0]))
            answer["leads"].append(float(best.values[0] - best.values[1]))
            # the next pass has this token alone; all earlier ones are in the cache
            ids = best.indices[:1][None]
        return {**answer, "first_token_mass": self._first_token_mass}

    def _capture_phantom(self) -> tuple[Tensor, Tensor]:
        """The first layer's keys and values [1, token, head, unit] of a phantom filler."""
        self._capture = []
        ids = torch.tensor([self._arm["phantom"]], device=self.model.device)
        positions = self._arm["start"] + torch.arange(ids.shape[1], device=ids.device)
        self.model(ids, position_ids=positions[None], use_cache=False, logits_to_keep=1)
        phantom, self._capture = self._capture[0], None
        return phantom

    def _change(self, layer: int, module: nn.Module, inputs: Any, activations: Tensor) -> Tensor:
        """Activations [1, token, unit] of a layer, changed by the arm if it changes them."""
        if self._arm.get("kind") not in CHANGES_ATTENTION and layer in self._arm.get("layers", ()):
            activations = change_activations(activations[0], self._positions, self._arm)[None]
        return activations

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
        layer = int(str(module.layer_idx))
        if self._capture is not None:
            self._capture.append((key.transpose(1, 2), value.transpose(1, 2)))
        elif self._arm.get("kind") in CHANGES_ATTENTION and layer in self._arm["layers"]:
            tokens = torch.arange(query.shape[2], device=query.device)
            indices = key.shape[2] - query.shape[2] + tokens[None]
            query, key, value = (states.transpose(1, 2) for states in (query, key, value))
            if self._phantom:
                key = torch.cat([key, self._phantom[0]], 1)
                value = torch.cat([value, self._phantom[1]], 1)
            fillers = tabulate_fillers([self._arm], query.device)
            if self._arm["kind"] == "sink" and layer == self._arm["layers"][0] and len(tokens) > 1:
                is_visible = tokens <= indices[..., None]
                weights = plain_weights(query, key, scaling, is_visible[:, None, None])
                self._first_token_mass = weights[..., 1:, 0].mean().item()
            return attend(query, key, value, scaling, indices, fillers).to(query.dtype), None
        # a single query is the last one and sees all keys
        is_causal = query.shape[2] > 1
        output = scaled_dot_product_attention(
            query, key, value, scale=scaling, is_causal=is_causal, enable_gqa=True
        )
        return output.transpose(1, 2), None


def answer_all(questions: Mapping[str, Any]) -> dict[str, Any]:
    """The questions of `check_arms.ask_reference`, with the answers of all arms."""
    reference = Reference(
        questions["model"], questions["dtype"], questions["layers"], questions["revision"]
    )
    answers: dict[str, list[Any]] = {}
    for name, prompts in questions["arms"].items():
        answers[name] = [reference.answer(prompt["token_ids"], prompt["arm"]) for prompt in prompts]
        print(f"{len(answers)} of {len(questions['arms'])} arms", flush=True)
    return {"questions": questions, "answers": answers}


if __name__ == "__main__":
    path = Path(sys.argv[1])
    reference = answer_all(json.loads(path.read_text("utf-8")))
    path.write_text(json.dumps(reference), encoding="utf-8")
