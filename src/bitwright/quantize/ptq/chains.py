# SPDX-License-Identifier: Apache-2.0
"""Pairs of layers of a float network between which channels can be scaled or shifted freely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, fx, nn

from bitwright.quantize.decisions import Plan
from bitwright.quantize.op_checks import pads
from bitwright.quantize.op_match import LAYERS, PASSING, Kind, OpMatch
from bitwright.quantize.plan import traced_plan

Product = nn.Conv2d | nn.Linear


@dataclass(frozen=True)
class Pair:
    """Two products with nothing between them but what commutes with a positive factor a channel.

    Attributes:
        first, second: paths of the layers.
        rectified: one ReLU lies between; False: no activation at all.
        pooled: a pool lies between.
        padded: zeros are put around the second layer's input.
    """

    first: str
    second: str
    rectified: bool
    pooled: bool
    padded: bool


def find_pairs(model: nn.Module, example: Tensor | None = None) -> list[Pair]:
    """All pairs of a float model, in order; a layer can be the second of one and the first of
    another. Tensors that have several readers, and activations that bend elsewhere than at zero,
    end a chain.
    """
    plan = traced_plan(model, example)
    calls = [str(node.target) for node in plan.graph.nodes if node.op == "call_module"]
    found = []
    for node, match in plan.matches.items():
        if match.kind in LAYERS and calls.count(str(node.target)) == 1:
            pair = _follow(plan, node, match)
            if pair is not None and calls.count(pair.second) == 1:
                found.append(pair)
    return found


def _follow(plan: Plan, start: fx.Node, first: OpMatch) -> Pair | None:
    node, rectified, pooled, padded = start, 0, False, False
    vector = first.kind is Kind.LINEAR
    while len(node.users) == 1:
        (node,) = node.users
        match = plan.matches[node]
        if match.kind in LAYERS:
            if vector != (match.kind is Kind.LINEAR):
                return None  # a dense layer along the last axis of an image mixes no channels
            layer = cast(Product, plan.modules[match.path])
            padded = padded or pads(layer)
            return Pair(first.path, match.path, rectified > 0, pooled, padded)
        if match.kind is Kind.ACTIVATION:
            if not _is_relu(match):
                return None
            rectified += 1
        elif match.kind in (Kind.MAX_POOL, Kind.AVG_POOL):
            pooled = True
            vector = vector or "mean" in str(node.target)  # mean over both axes leaves a vector
            padded = padded or (match.kind is Kind.AVG_POOL and pads(plan.modules.get(match.path)))
        elif match.kind is Kind.PAD:
            padded = True
        elif match.kind is Kind.FLATTEN:
            vector = True
        elif match.kind not in PASSING or match.kind is Kind.REARRANGE:
            return None
    return None


def _is_relu(match: OpMatch) -> bool:
    return match.clip is not None and match.clip.low == 0 and match.clip.high == float("inf")


def by_input(layer: Product, weight: Tensor, channels: int) -> Tensor | None:
    """A weight as (channels, weights that read the channel); None if it does not divide so.

    Behind a flatten one channel is several neighbouring inputs of a dense layer.
    """
    if isinstance(layer, nn.Linear):
        if layer.in_features % channels:
            return None
        return weight.reshape(len(weight), channels, -1).transpose(0, 1).reshape(channels, -1)
    if layer.in_channels != channels:
        return None
    split = weight.reshape(layer.groups, -1, channels // layer.groups, weight[0, 0].numel())
    return split.transpose(1, 2).reshape(channels, -1)


def groups_of(layer: nn.Module) -> int:
    """Groups of a convolution; 1 of anything else."""
    groups = getattr(layer, "groups", 1)
    return groups if isinstance(groups, int) else 1


def spread_inputs(shape: torch.Size, groups: int, factor: Tensor) -> Tensor:
    """One number an input channel, shaped to multiply a weight (O, ...) of this shape."""
    if len(shape) == 2:
        return factor.repeat_interleave(shape[1] // len(factor))[None]
    table = factor.reshape(groups, 1, -1).expand(-1, shape[0] // groups, -1)
    return table.reshape(shape[0], -1)[:, :, None, None]
