# SPDX-License-Identifier: Apache-2.0
"""`lower` by its former name: the graph of what ``apply(model, policy, "freeze")`` gives."""

from __future__ import annotations

from dataclasses import replace

from bitwright.base.errors import ModelError
from bitwright.ir import Graph
from bitwright.quantize import IntegerModel


def lower(frozen: IntegerModel, input_shape: tuple[int, ...], *, name: str = "network") -> Graph:
    """The graph of an integer network, under a name.

    Args:
        input_shape: shape of one sample as the torch model takes it: (C, H, W) or (C,).

    Raises:
        ModelError: the network was made for another shape.
    """
    channels, *size = input_shape
    made = frozen.graph.types[frozen.graph.inputs[0]].shape
    if made != (*size, channels):
        raise ModelError(
            f"the network was made for inputs of shape {(made[-1], *made[:-1])}, not {input_shape}",
            where="lower",
            hint="give apply this sample_shape",
        )
    return replace(frozen.graph, name=name)
