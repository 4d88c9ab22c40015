# SPDX-License-Identifier: Apache-2.0
"""The shape of every tensor of a traced model, from one run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.base.memory import ran_out
from bitwright.models.modes import evaluating


class _Recorder(fx.Interpreter):
    """Runs a graph and notes shapes."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fetch_attr(target).forward(*args, **kwargs)  # nobody's hooks are called

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n] = tuple(value.shape)
        return value


def example_shapes(
    model: nn.Module, graph: fx.Graph, example: Tensor
) -> dict[fx.Node, tuple[int, ...]]:
    """The shape of every tensor of ``graph``, whose modules are those of ``model``.

    The model runs once in evaluation mode, without gradients; it is left as it was.

    Raises:
        ModelError: the example does not pass.
        MemoryError, RuntimeError: there is no memory left for it.
    """
    recorder = _Recorder(model, graph)
    try:
        with evaluating(model):
            recorder.run(example.clone())  # a layer may write into it
    except (RuntimeError, ValueError, AssertionError) as error:
        if ran_out(error):
            raise
        raise ModelError(
            f"the example input of shape {tuple(example.shape)} does not pass: {error}",
            hint="check the input shape and, behind a flatten, the in_features of the next layer",
        ) from error
    return recorder.shapes


def model_shapes(model: fx.GraphModule, sample: tuple[int, ...]) -> dict[fx.Node, tuple[int, ...]]:
    """The shape of one sample of every tensor of a converted model, batch axis left out.

    Raises:
        ModelError: such a sample does not pass.
    """
    like = next(model.parameters(), torch.zeros(1))
    example = torch.zeros((1, *sample), device=like.device, dtype=like.dtype)
    found = example_shapes(model, model.graph, example)
    return {node: shape[1:] for node, shape in found.items()}
