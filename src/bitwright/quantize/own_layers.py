# SPDX-License-Identifier: Apache-2.0
"""Layers of the user's own: one call tells tracing, conversion and `integerize` about them."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import fx, nn

from bitwright.base.errors import ModelError
from bitwright.quantize import elementwise, op_match, trace
from bitwright.quantize.elementwise import Elementwise
from bitwright.quantize.integers import activations
from bitwright.quantize.integers.affine import AffineValue, Context, unquantized
from bitwright.quantize.integers.integerize import LAYERS, Integerize
from bitwright.quantize.op_match import Kind


def register_layer(
    kind: type[nn.Module],
    *,
    integers: Integerize | None = None,
    function: Elementwise | None = None,
) -> None:
    """Make a layer known that torch.fx is to keep whole. One of the two says what it is.

    Args:
        kind: its class; subclasses are registered by themselves. Registered again, it is replaced.
        integers: for a layer that computes on tensors: ``(context, node, module, value, ...)`` ->
            `AffineValue`. Its operands are quantized in front of it, each to one scale, in torch's
            order of channels; ``context.add`` appends ops of the integer dialect to the graph. In
            training the layer's ``forward`` runs; evaluation is what these integers say, so the two
            must agree: ``real = gain * level + offset``.
        function: for a function of one number, an activation: whether it never falls, and a lower
            bound. Its ``forward`` in float64 is the definition; it must take any shape whose axis 1
            is the channel. It becomes thresholds or a table.

    Raises:
        ModelError: both or neither are given, or the layer is one that Bitwright knows already.
    """
    if (integers is None) == (function is None):
        raise ModelError(
            "give either integers or function",
            where=f"register_layer({kind.__name__})",
            hint="integers: a rule for a layer on tensors; function: Elementwise(...) of an "
            "activation",
        )
    if kind in op_match.MODULES and kind not in trace.WHOLE:
        raise ModelError(
            "Bitwright knows this layer",
            where=f"register_layer({kind.__name__})",
            hint="derive a class of your own from it, and register that",
        )
    trace.WHOLE.add(kind)
    elementwise.MODULES.pop(kind, None)
    if function is not None:
        elementwise.MODULES[kind] = function
        op_match.MODULES[kind] = (Kind.ACTIVATION, None)
        LAYERS[kind] = activations.function
    elif integers is not None:
        op_match.MODULES[kind] = (Kind.OWN, None)
        LAYERS[kind] = _on_levels(integers)


def _on_levels(rule: Integerize) -> Integerize:
    """The rule, given levels of one scale in torch's order of channels."""

    @wraps(rule)
    def checked(
        context: Context, node: fx.Node, module: nn.Module, *values: AffineValue, **_: Any
    ) -> AffineValue:
        path = str(node.target)
        if not all(value.is_common for value in values):
            raise unquantized(path, "its input is not quantized to one scale")
        plain = [context.restored(value, f"{path}_in{place}") for place, value in enumerate(values)]
        return rule(context, node, module, *plain)

    return checked
