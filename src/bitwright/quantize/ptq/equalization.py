# SPDX-License-Identifier: Apache-2.0
"""Cross-layer equalisation and absorption of high biases (Nagel et al. 2019, sections 4.1 and
4.1.3).

A positive factor can be moved from an output channel of one layer to the input channel of the next
through ReLU and pools. Chosen so that both layers' channel ranges become equal, per-tensor scales
lose far less. What then lies far above zero in front of a ReLU can be moved on into the next bias.
Both leave the function as it was: the first exactly, the second for all but the tail of a normal
distribution that batch norm describes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.quantize.plan import traced_plan
from bitwright.quantize.ptq.chains import (
    Pair,
    Product,
    by_input,
    find_pairs,
    groups_of,
    spread_inputs,
)
from bitwright.quantize.ptq.folding import FOLDING, ChannelStatistics, Folding, folding_of

_FACTOR_LIMIT = 2.0**14


@dataclass(frozen=True)
class Equalized:
    """What happened to one pair.

    Attributes:
        pair: the layers.
        spread_before, spread_after: geometric mean over both layers of the largest channel range
            over the median one; 1 is even.
    """

    pair: Pair
    spread_before: float
    spread_after: float


@torch.no_grad()
def equalize(
    model: nn.Module,
    *,
    iterations: int = 50,
    tolerance: float = 1e-4,
    example: Tensor | None = None,
) -> tuple[fx.GraphModule, list[Equalized]]:
    """Even out the ranges of the channels of neighbouring layers.

    Batch norm must be folded before. The model given is left as it was.

    Args:
        iterations: sweeps over all pairs at most; they end when no factor differs from 1 by more
            than ``tolerance``.

    Raises:
        RecipeError: no sweep is allowed.
        ModelError: the model cannot be traced.
    """
    if iterations < 1:
        raise RecipeError("needs at least one sweep", where="equalize")
    result = as_graph(model, example)
    pairs = [pair for pair in find_pairs(result, example) if _channels(result, pair)]
    before = [_spread(result, pair) for pair in pairs]
    total: dict[str, Tensor] = {}
    for _ in range(iterations):
        largest = 0.0
        for pair in pairs:
            factor = _balance(result, pair)
            total[pair.first] = total.get(pair.first, torch.ones_like(factor)) * factor
            largest = max(largest, float((factor - 1).abs().max()))
        if largest <= tolerance:
            break
    _scale_statistics(result, total)
    after = [_spread(result, pair) for pair in pairs]
    rows = zip(pairs, before, after, strict=True)
    return result, [Equalized(*row) for row in rows]


@torch.no_grad()
def absorb_high_biases(
    model: nn.Module, *, deviations: float = 3.0, example: Tensor | None = None
) -> tuple[fx.GraphModule, dict[str, int]]:
    """Move what is practically never cut off by a ReLU from its bias to the next layer's.

    Only between layers that a single ReLU separates, where the first took up a batch norm (its
    beta and gamma tell the distribution) and no zero padding lies behind, which would have to move
    as well.

    Args:
        deviations: how many standard deviations below the mean count as never.

    Returns:
        The model, and how many channels of each first layer were moved.

    Raises:
        ModelError: batch norm has not been folded.
    """
    folding = folding_of(model)
    if folding is None:
        raise ModelError(
            "absorption needs the statistics of folded batch norms",
            where="absorb",
            hint="fold first: methods=['fold', 'equalize', 'absorb', ...]",
        )
    result = as_graph(model, example)
    statistics = dict(folding.statistics)
    moved: dict[str, int] = {}
    for pair in find_pairs(result, example):
        known = statistics.get(pair.first)
        if known is None or not pair.rectified or pair.padded or not _channels(result, pair):
            continue
        surplus = (known.mean - deviations * known.deviation).clamp(min=0)
        if not bool(surplus.any()):
            continue
        first, second = _layers(result, pair)
        spread = spread_inputs(second.weight.shape, groups_of(second), surplus)
        gain = (second.weight.double() * spread).reshape(len(second.weight), -1).sum(dim=1)
        _add_bias(first, -surplus)
        _add_bias(second, gain)
        statistics[pair.first] = ChannelStatistics(known.mean - surplus, known.deviation)
        moved[pair.first] = int((surplus > 0).sum())
    result.meta[FOLDING] = replace(folding, statistics=statistics)
    return result, moved


def as_graph(model: nn.Module, example: Tensor | None = None) -> fx.GraphModule:
    """A copy of a float model as a graph; what was folded in it is still known."""
    copied = copy.deepcopy(model).eval()
    if isinstance(copied, fx.GraphModule):
        folding = folding_of(model)
        if folding is not None:
            copied.meta[FOLDING] = folding
        return copied
    plan = traced_plan(copied, example)
    return fx.GraphModule(copied, plan.graph, class_name=type(model).__name__)


@torch.no_grad()
def give_biases(model: fx.GraphModule) -> None:
    """A bias of zeros for every convolution and dense layer that has none."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is None:
            layer.bias = nn.Parameter(torch.zeros(len(layer.weight), dtype=layer.weight.dtype))


def _layers(model: nn.Module, pair: Pair) -> tuple[Product, Product]:
    found = model.get_submodule(pair.first), model.get_submodule(pair.second)
    return cast(Product, found[0]), cast(Product, found[1])


def _channels(model: nn.Module, pair: Pair) -> bool:
    """Whether the second layer's inputs are the first one's channels."""
    first, second = _layers(model, pair)
    return by_input(second, second.weight, len(first.weight)) is not None


def _ranges(model: nn.Module, pair: Pair) -> tuple[Tensor, Tensor]:
    first, second = _layers(model, pair)
    count = len(first.weight)
    table = by_input(second, second.weight.detach().double(), count)
    if table is None:
        raise ModelError("its inputs are not the channels of the layer before", where=pair.second)
    return first.weight.detach().double().reshape(count, -1).abs().amax(dim=1), table.abs().amax(1)


def _balance(model: nn.Module, pair: Pair) -> Tensor:
    """One step: both ranges of a channel become their geometric mean; gives the factors."""
    first, second = _layers(model, pair)
    outer, inner = _ranges(model, pair)
    alive = (outer > 0) & (inner > 0)
    factor = torch.where(alive, torch.sqrt(outer / inner.clamp(min=1e-38)), torch.ones(()).double())
    factor = factor.clamp(1 / _FACTOR_LIMIT, _FACTOR_LIMIT)
    shape = (-1, *(1,) * (first.weight.dim() - 1))
    kind = first.weight.dtype
    first.weight = nn.Parameter((first.weight.double() / factor.reshape(shape)).to(kind))
    if first.bias is not None:
        first.bias = nn.Parameter((first.bias.double() / factor).to(kind))
    spread = spread_inputs(second.weight.shape, groups_of(second), factor)
    second.weight = nn.Parameter((second.weight.double() * spread).to(second.weight.dtype))
    return factor


def _spread(model: nn.Module, pair: Pair) -> float:
    ratio = 1.0
    for ranges in _ranges(model, pair):
        alive = ranges[ranges > 0]
        if alive.numel():
            ratio *= float(alive.max() / alive.median())
    return ratio**0.5


def _scale_statistics(model: fx.GraphModule, total: dict[str, Tensor]) -> None:
    folding = folding_of(model)
    if folding is None:
        return
    scaled = {
        path: ChannelStatistics(known.mean / total[path], known.deviation / total[path])
        if path in total
        else known
        for path, known in folding.statistics.items()
    }
    changed: Folding = replace(folding, statistics=scaled)
    model.meta[FOLDING] = changed


def _add_bias(layer: Product, more: Tensor) -> None:
    bias = torch.zeros_like(more) if layer.bias is None else layer.bias.double()
    layer.bias = nn.Parameter((bias + more).to(layer.weight.dtype))
