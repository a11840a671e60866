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
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_probe.model.capture import capture, per_token
from harness.errors import ModelError

if TYPE_CHECKING:
    from attention_probe.model.load_first_layers import LoadedModel

BATCH = 1024


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Output of each projection of the first layer's attention, a row for each token that occurs.

    Attributes:
        outputs: By the projection's path within the layer.
        rows: The row of each vocabulary id; -1 for ids that do not occur.
    """

    outputs: Mapping[str, Float[Tensor, "row width"]]
    rows: Int[Tensor, " vocabulary"]

    @classmethod
    def of(cls, loaded: LoadedModel, token_ids: Int[Tensor, " ..."]) -> TokenTable:
        """Project every token that occurs.

        Args:
            loaded: The model.
            token_ids: Vocabulary ids, in any order and as often as they occur.

        Raises:
            ModelError: the projections depend on the position too, as with learned position embeddings, or the model
                does not call the registered attention function.
        """
        occurring = torch.tensor(sorted(set(token_ids.flatten().tolist())))
        first = occurring[:1].expand(1, 2)
        for path, output in _projections(loaded, first).items():
            if not torch.equal(output[0, 0], output[0, 1]):
                raise ModelError(
                    f"{loaded.name}: {path} of the first layer gives a token other values at another position, so "
                    "they cannot be looked up by token. Run without a token table."
                )
        parts = [_projections(loaded, batch[:, None]) for batch in torch.split(occurring, BATCH)]
        rows = torch.full((loaded.config.vocab_size,), -1)
        rows[occurring] = torch.arange(len(occurring))
        outputs = {path: torch.cat([part[path][:, 0] for part in parts]) for path in parts[0]}
        return cls(outputs, rows.to(loaded.model.device))

    @contextmanager
    def replacing_projections(self, loaded: LoadedModel, token_ids: Int[Tensor, "batch seq"]) -> Iterator[None]:
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

        modules = {path: loaded.decoder_layers[0].get_submodule(path) for path in self.outputs}
        try:
            for path, module in modules.items():
                # An attribute of the instance, which stands before the method of the class.
                vars(module)["forward"] = partial(look_up, self.outputs[path])
            yield
        finally:
            for module in modules.values():
                vars(module).pop("forward", None)


def _projections(loaded: LoadedModel, token_ids: Int[Tensor, "batch seq"]) -> dict[str, Tensor]:
    """What the first layer's projections give, the pass stopping where the attention's reduction ends."""
    found: dict[str, Tensor] = {}

    def record(path: str, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        found[path] = output

    attached = [
        module.register_forward_hook(partial(record, path))
        for path, module in loaded.decoder_layers[0].named_modules()
        if isinstance(weight := getattr(module, "weight", None), Tensor) and weight.ndim == 2
    ]
    try:
        eager = capture(loaded, token_ids, layers=[0]).eager
    finally:
        for handle in attached:
            handle.remove()
    if eager:  # the whole layer ran: what follows the attention is among the outputs, and depends on the context
        raise ModelError(
            f"{loaded.name} does not call the registered attention function, so its projections cannot be told from "
            "what follows the attention. Run without a token table."
        )
    return {path: per_token(output, token_ids) for path, output in found.items()}
