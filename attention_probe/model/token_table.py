"""The first layer's projections of every token, computed once and looked up.

With rotary positions, what enters the first layer's query, key and value projections depends on the token alone. Many
prompts share few tokens, so looking their projections up saves most of what Layer 1 costs.
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from attention_probe.model.attention_function import ATTENTION, OutOfReach, switched_attention
from harness.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH = 1024
_LAYER = ""
"""The path of a layer within itself."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Output of each projection of the first layer's attention, one row for each token that occurs.

    Attributes:
        outputs: By the projection's path within the layer.
        rows: The row of each vocabulary id; -1 for ids that do not occur.
    """

    outputs: Mapping[str, Float[Tensor, "row width"]]
    rows: Int[Tensor, " vocabulary"]

    @classmethod
    def of(cls, model: PreTrainedModel, layer: nn.Module, token_ids: Int[Tensor, " ..."]) -> Self | None:
        """Project every token that occurs.

        Args:
            model: The model.
            layer: Its first layer.
            token_ids: Vocabulary ids, in any order and as often as they occur.

        Returns:
            The table; None if the projections depend on the position too, as with learned position embeddings, or
            cannot be told from what follows the attention, because the model does not call our attention function.
        """
        occurring = torch.unique(token_ids).to(model.device)
        try:
            found = _projections(model, layer, occurring[:1].expand(1, 2))
        except ModelError:
            return None
        if _LAYER in found or any(not torch.equal(output[0, 0], output[0, 1]) for output in found.values()):
            return None
        parts = [_projections(model, layer, batch[:, None]) for batch in torch.split(occurring, BATCH)]
        rows = torch.full((model.config.vocab_size,), -1, device=model.device)
        rows[occurring] = torch.arange(len(occurring), device=model.device)
        return cls({path: torch.cat([part[path][:, 0] for part in parts]) for path in found}, rows)

    @contextmanager
    def replacing_projections(self, layer: nn.Module, token_ids: Int[Tensor, "batch seq"]) -> Iterator[None]:
        """Within, the first layer's projections are looked up for the prompts in `token_ids`.

        Raises:
            ModelError: a token is not in the table.
        """
        rows = self.rows[token_ids]
        if (rows < 0).any():
            raise ModelError(
                f"The token table has no token {int(token_ids[rows < 0][0])}. Expected only tokens that it was made "
                "for: give TokenTable.of the ids of every prompt."
            )

        def look_up(table: Tensor, hidden: Tensor) -> Tensor:
            return nn.functional.embedding(rows, table).view(*hidden.shape[:-1], -1)

        modules = {path: layer.get_submodule(path) for path in self.outputs}
        try:
            for path, module in modules.items():
                # An attribute of the instance, which stands before the method of the class.
                vars(module)["forward"] = partial(look_up, self.outputs[path])
            yield
        finally:
            for module in modules.values():
                vars(module).pop("forward", None)


def _projections(model: PreTrainedModel, layer: nn.Module, token_ids: Int[Tensor, "batch seq"]) -> dict[str, Tensor]:
    """What the layer's projections give before the attention; with an entry for _LAYER if the pass goes beyond it."""
    found: dict[str, Tensor] = {}

    def record(path: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        found[path] = output

    attached = [
        module.register_forward_hook(partial(record, path))
        for path, module in layer.named_modules()
        if path == _LAYER or (isinstance(weight := getattr(module, "weight", None), Tensor) and weight.ndim == 2)
    ]
    try:
        with torch.inference_mode(), switched_attention(model, ATTENTION):
            model(input_ids=token_ids, attention_mask=torch.ones_like(token_ids), use_cache=False)
    except OutOfReach:  # our function was called, and nothing was asked of it
        pass
    finally:
        for handle in attached:
            handle.remove()
    return found if _LAYER in found else {path: per_token(output, token_ids) for path, output in found.items()}


def per_token(output: Tensor, tokens: Shaped[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
    """A module's output by prompt and token: some architectures lay all tokens in one row, or add an axis of one.

    Raises:
        ModelError: it is not one vector for each token.
    """
    if output.shape[:-1].numel() != tokens.numel():
        raise ModelError(
            f"A module of the first layer gives {list(output.shape)} for {list(tokens.shape)} tokens, expected one "
            "vector for each. Leave out --activations for this model."
        )
    return output.reshape(*tokens.shape, -1)
