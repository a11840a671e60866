"""The modules that take the place of vLLM's in a layer, and the operation that changes their rows.

The change is an operation of PyTorch, because vLLM can split its CUDA graphs there: Python runs in
the operation, but not inside a graph.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from harness.engines.engine_processes import CHANGE_OPERATION

installed_interventions: list[Any] = []
"""The `WorkerInterventions` of this process; empty before a model is loaded.

The operation reads them here, because PyTorch gives it tensors and numbers only.
"""


@torch.library.custom_op(CHANGE_OPERATION, mutates_args=("out",))
def _change_rows(gate_up: Tensor | None, out: Tensor, layer: int) -> None:
    """Change rows of an activation's product `out`, or of an MLP's output if `gate_up` is None."""
    # a view, without the batch dimension that outputs of Transformers' classes have
    out = out.flatten(0, -2)
    for interventions in installed_interventions:
        if gate_up is None:
            interventions.change_outputs(out, layer)
        else:
            interventions.change_rows(gate_up.flatten(0, -2), out, layer)


@_change_rows.register_fake
def _(gate_up: Tensor | None, out: Tensor, layer: int) -> None:
    """Nothing: the operation returns nothing whose shape a compiler must know."""


class ChangedModule(nn.Module):
    """An MLP's activation and product with `up`, or a whole MLP, whose output may be changed.

    Attributes:
        module: vLLM's module, which computes the unchanged output.
        layer: The layer, from 0.
        is_activation: Whether it is the activation and product.
    """

    def __init__(self, module: nn.Module, layer: int, is_activation: bool) -> None:
        super().__init__()
        self.module = module
        self.layer = layer
        self.is_activation = is_activation

    def forward(self, states: Tensor) -> Tensor:
        """The output for these states [row, unit], whose rows with a change are written anew."""
        out: Tensor = self.module(states)
        # changed activations are computed again from the inputs `gate` and `up`, which `states` has
        torch.ops.mless.change_rows(states if self.is_activation else None, out, self.layer)
        return out


class PlainAttention(nn.Module):
    """The attention of one prompt, in place of vLLM's, which needs a cache.

    Attributes:
        original: vLLM's attention, which `WorkerInterventions` puts back.
        states: Keys and values [token, head, unit] of the last prompt.
    """

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original = original

    def forward(self, *states: Tensor) -> Tensor:
        """The attended values [token, unit] of query, key and value, in any shape."""
        # query, key and value [token, head, unit]
        head_states = [tensor.view(len(tensor), -1, self.original.head_size) for tensor in states]
        query, key, value = (tensor.transpose(0, 1)[None] for tensor in head_states)
        attended = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.original.impl.scale, enable_gqa=True
        )
        self.states = head_states[1:]
        return attended[0].transpose(0, 1).flatten(1)
