# SPDX-License-Identifier: Apache-2.0
"""What convolutions cost, and what fusing layers saves (thesis, sections 2.1.3 and 2.1.4).

Fused, each output of the last layer of a chain is computed from the window of the first layer's
input that it depends on; nothing between goes off chip. Windows of neighbouring outputs overlap:
what both need is computed twice, or kept in buffers of lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from bitwright.base.errors import ModelError
from bitwright.ir import Graph, Node


@dataclass(frozen=True)
class SeparableCost:
    """Multiply-accumulates of one layer, standard against depthwise-separable.

    Attributes:
        standard, depthwise, pointwise: counts.
    """

    standard: int
    depthwise: int
    pointwise: int

    @property
    def separable(self) -> int:
        return self.depthwise + self.pointwise

    @property
    def ratio(self) -> float:
        """What remains: ``1 / N + 1 / K^2``."""
        return self.separable / self.standard

    @property
    def saved(self) -> int:
        return self.standard - self.separable


def separable_cost(kernel: int, inputs: int, outputs: int, size: tuple[int, int]) -> SeparableCost:
    """Of a K x K convolution from M to N channels over a map (H, W) of its output's size."""
    if min(kernel, inputs, outputs, *size) < 1:
        raise ModelError("a convolution has a size above 0 everywhere", where="cost")
    pixels = prod(size)
    return SeparableCost(
        kernel**2 * inputs * outputs * pixels,
        kernel**2 * inputs * pixels,
        inputs * outputs * pixels,
    )


@dataclass(frozen=True)
class Window:
    """A layer of a chain: a K x K window that slides by ``stride``.

    Attributes:
        macs: an output pixel.
        inputs, outputs: channels.
        size: (H, W) of its output.
    """

    name: str
    kernel: int
    stride: int
    macs: int = 0
    inputs: int = 1
    outputs: int = 1
    size: tuple[int, int] = (1, 1)


def windows(chain: Sequence[Window], output: int = 1) -> tuple[int, ...]:
    """Side of the window at the chain's input and behind each layer, for ``output`` pixels at its
    end: ``n_in = stride (n_out - 1) + kernel``, backwards.
    """
    sides = [output]
    for layer in reversed(chain):
        sides.append(layer.stride * (sides[-1] - 1) + layer.kernel)
    return tuple(reversed(sides))


@dataclass(frozen=True)
class FusionPlan:
    """A chain fused, against layer by layer; elements and operations of one image.

    Attributes:
        sides: of the windows, from the chain's input to its output.
        traffic, fused_traffic: elements to and from off-chip memory: every layer's map written and
            read again; the chain's input and output alone.
        macs: of each output once, as with buffers.
        recomputed_macs: of all outputs, each from its own window.
        buffer: elements kept so that nothing is computed twice: of each map between layers, and of
            the input, ``kernel - 1`` lines and as many pixels.
        window: elements of all windows of one output: what recomputing has to keep.
    """

    sides: tuple[int, ...]
    traffic: int
    fused_traffic: int
    macs: int
    recomputed_macs: int
    buffer: int
    window: int


def plan_fusion(chain: Sequence[Window], input_size: tuple[int, int]) -> FusionPlan:
    """What fusing all layers of a chain means.

    Args:
        input_size: (H, W) of the map that the first layer reads.

    Raises:
        ModelError: there is no layer.
    """
    if not chain:
        raise ModelError("an empty chain", where="fusion")
    sides = windows(chain)
    first, last = chain[0], chain[-1]
    sizes = [input_size, *(layer.size for layer in chain)]
    entering = prod(input_size) * first.inputs
    leaving = prod(last.size) * last.outputs
    between = sum(prod(layer.size) * layer.outputs for layer in chain[:-1])
    ends = prod(last.size)
    kept = sum(
        layer.inputs * ((layer.kernel - 1) * size[1] + layer.kernel - 1)
        for layer, size in zip(chain, sizes[:-1], strict=True)
    )
    return FusionPlan(
        sides=sides,
        traffic=entering + 2 * between + leaving,
        fused_traffic=entering + leaving,
        macs=sum(layer.macs * prod(layer.size) for layer in chain),
        recomputed_macs=ends * sum(
            layer.macs * side**2 for layer, side in zip(chain, sides[1:], strict=True)
        ),
        buffer=kept,
        window=sum(
            layer.inputs * side**2 for layer, side in zip(chain, sides[:-1], strict=True)
        ),
    )  # fmt: skip


def chains_of(graph: Graph) -> tuple[tuple[Window, ...], ...]:
    """The chains of convolutions and pools of a graph, longest stretches without a fork or a join;
    nodes without a window (thresholds, requantization) pass through.
    """
    users: dict[str, int] = {}
    for node in graph:
        for edge in node.inputs:
            users[edge] = users.get(edge, 0) + 1
    ends: dict[str, int] = {}  # edge -> number of the chain that ends there
    chains: list[list[Window]] = []
    for node in graph:
        source = node.inputs[0] if node.inputs else ""
        alone = len(node.inputs) == 1 and users.get(source, 0) == 1
        number = ends.pop(source, None) if alone else None
        window = _window(graph, node)
        if window is not None:
            if number is None:
                chains.append([])
                number = len(chains) - 1
            chains[number].append(window)
        if number is not None and len(node.outputs) == 1:
            ends[node.output] = number
    return tuple(tuple(chain) for chain in chains)


def _window(graph: Graph, node: Node) -> Window | None:
    weight = node.params.get("weight")
    if node.op not in ("max_pool", "sum_pool") and (weight is None or weight.ndim != 4):
        return None
    before, after = graph.types[node.inputs[0]].shape, graph.types[node.output].shape
    if weight is not None:
        spread = zip(weight.shape[1:3], node.ints("dilation"), strict=True)
        kernel = max(1 + (int(side) - 1) * step for side, step in spread)
        macs = int(weight.size)
    else:
        kernel, macs = max(node.ints("kernel")), 0
    stride = max(node.ints("stride"))
    return Window(node.name, kernel, stride, macs, before[-1], after[-1], (after[0], after[1]))
