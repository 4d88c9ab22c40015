# SPDX-License-Identifier: Apache-2.0
"""Batch-norm folding: inference without a normalisation layer (Jacob et al. 2018, section 3.2).

Two cases. A batch norm directly behind a convolution or dense layer goes into its weights and
bias. One behind a concatenation, a pool or an activation has no product to go into; it becomes a
scale and a shift per channel, 2N numbers instead of 4N: a depthwise 1 x 1 convolution (of a
vector, two constants). All products and sums are computed in float64 and rounded once.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.quantize.decisions import Plan
from bitwright.quantize.op_match import LAYERS, Kind
from bitwright.quantize.plan import traced_plan
from bitwright.quantize.ptq.samples import refuse_non_finite
from bitwright.quantize.signals import raised

FOLDING = "bitwright_folding"
Norm = nn.BatchNorm1d | nn.BatchNorm2d
Product = nn.Conv2d | nn.Linear


class Group(StrEnum):
    """Where the numbers of a layer of a folded network come from.

    ``conv``: a convolution as it was; ``merged``: one that took up a batch norm; ``norm``: a batch
    norm that became a layer of its own; ``linear``: a dense layer.
    """

    CONV = "conv"
    MERGED = "merged"
    NORM = "norm"
    LINEAR = "linear"


@dataclass(frozen=True)
class FoldedNorm:
    """One batch norm that is gone.

    Attributes:
        path: of the batch norm in the user's model.
        into: path of the layer that holds its numbers now.
        merged: it went into a product (case A); else it became a scale and a shift (case B).
        channels: N.
        saved: parameters less than before, running statistics counted. Fewer than none are saved
            where a layer took up a batch norm and shared its weight before: now it has its own.
    """

    path: str
    into: str
    merged: bool
    channels: int
    saved: int


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of each channel in front of the activation, as batch norm set
    them: beta and abs(gamma) of training (Nagel et al. 2019, section 4.2.1).
    """

    mean: Tensor
    deviation: Tensor


@dataclass(frozen=True)
class Folding:
    """What `fold_batch_norms` did.

    Attributes:
        norms: every batch norm, in order.
        groups: group of each convolution, dense and scale layer by its path in the folded model.
        statistics: of the output of each layer that took up a batch norm.
        parameters_before, parameters_after: weights, biases, gamma, beta, mean and variance.
    """

    norms: tuple[FoldedNorm, ...]
    groups: dict[str, Group]
    statistics: dict[str, ChannelStatistics]
    parameters_before: int
    parameters_after: int

    @property
    def layers_removed(self) -> int:
        """Layers fewer than before: those that were merged."""
        return sum(norm.merged for norm in self.norms)

    @property
    def parameters_removed(self) -> int:
        return self.parameters_before - self.parameters_after


def fold_batch_norms(
    model: nn.Module, example: Tensor | None = None, *, dense: bool = False
) -> fx.GraphModule:
    """The same function without batch norm, as a plain float module in evaluation mode.

    Layer paths of the user's model are kept; a batch norm of case B keeps its own path, with a
    layer of another type. `folding_of` tells what was done. The model given is left as it was.

    Args:
        model: a plain float module; its running statistics count, whatever mode it is in.
        example: a batch; with it, what comes out is compared with the model. Needed where
            ``forward`` writes sizes as numbers.
        dense: case B as a full 1 x 1 convolution with zeros off the diagonal (N^2 + N numbers)
            instead of a depthwise one.

    Raises:
        ModelError: it cannot be traced, holds NaN or infinity, a batch norm has no running
            statistics, or the example shows that folding would change the function.
    """
    refuse_non_finite(model)
    copied = raised(copy.deepcopy(model).eval(), example)
    before = count_parameters(copied)
    plan = traced_plan(copied, example)
    _refuse_unfoldable(plan)
    earlier = folding_of(model)
    norms: list[FoldedNorm] = []
    statistics = {} if earlier is None else dict(earlier.statistics)
    groups = _plain_groups(plan) | ({} if earlier is None else earlier.groups)
    for node in [n for n, match in plan.matches.items() if match.kind is Kind.BATCH_NORM]:
        path = str(node.target)
        norm = cast(Norm, copied.get_submodule(path))
        product = _product_before(plan, node)
        factor, shift = affine_of(norm)
        stored = count_parameters(copied)  # before and after: tensors may be shared
        if product is not None:
            into, constants = str(product.target), 0
            statistics[into] = _statistics(norm)
            groups[into] = Group.MERGED
            _merge(cast(Product, copied.get_submodule(into)), factor, shift)
            node.replace_all_uses_with(cast(fx.Node, node.args[0]))
            plan.graph.erase_node(node)
            _put(copied, path, nn.Identity())
        else:
            into = path
            groups[path] = Group.NORM
            constants = _stand_alone(copied, plan.graph, node, norm, factor, shift, dense)
        saved = stored - count_parameters(copied) - constants
        norms.append(FoldedNorm(path, into, product is not None, len(factor), saved))
    result = fx.GraphModule(copied, plan.graph, class_name=f"Folded{type(model).__name__}")
    result.graph.lint()
    result.delete_all_unused_submodules()
    result.recompile()
    after = before - sum(norm.saved for norm in norms)
    if earlier is not None:  # folded before, perhaps completely: what was done then still holds
        after = earlier.parameters_after - sum(norm.saved for norm in norms)
        norms, before = [*earlier.norms, *norms], earlier.parameters_before
    result.meta[FOLDING] = Folding(tuple(norms), groups, statistics, before, after)
    result.eval()
    if example is not None:
        _check_function(model, result, example)
    return result


#: Largest relative difference that rounding to the weights' own type may leave.
_ROUNDING = 1e-2


@torch.no_grad()
def _check_function(model: nn.Module, folded: fx.GraphModule, example: Tensor) -> None:
    """`ModelError` where the folded model computes something else.

    What an axis means is not in the graph: a ``BatchNorm1d`` behind a dense layer works on its
    outputs in (N, C), but not in (N, C, L).
    """
    original = copy.deepcopy(model).eval()
    try:
        expected, got = original(example.clone()), folded(example.clone())
    except RuntimeError as error:
        raise ModelError(
            f"folding batch norm does not fit the model's shapes: {error}",
            where="fold",
            hint="BatchNorm1d is folded on (N, C) only; leave `fold` out",
        ) from error
    scale = float(expected.abs().max())
    if float((expected - got).abs().max()) > _ROUNDING * max(scale, 1e-30):
        raise ModelError(
            "folding batch norm changes what the model computes",
            where="fold",
            hint="BatchNorm1d is folded on (N, C) only; leave `fold` out",
        )


def folding_of(model: nn.Module) -> Folding | None:
    """What was folded in a model that came from `fold_batch_norms`; None for other models."""
    return model.meta.get(FOLDING) if isinstance(model, fx.GraphModule) else None


def fold_groups(model: nn.Module) -> dict[str, Group]:
    """The group of each product of a model by its path; of an unfolded model, too."""
    folding = folding_of(model)
    if folding is not None:
        return dict(folding.groups)
    kinds = {nn.Conv2d: Group.CONV, nn.Linear: Group.LINEAR}
    return {n: kinds[type(m)] for n, m in model.named_modules() if type(m) in kinds}


def count_parameters(model: nn.Module) -> int:
    """Trained numbers, with the running statistics of batch norms."""
    count = sum(parameter.numel() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            count += sum(b.numel() for n, b in module.named_buffers() if n.startswith("running"))
    return count


def affine_of(norm: Norm) -> tuple[Tensor, Tensor]:
    """(factor, shift), float64: ``norm(x) = x * factor + shift`` at inference."""
    if norm.running_mean is None or norm.running_var is None:
        raise ModelError("has no running statistics", where="batch norm")
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    factor = 1.0 / torch.sqrt(variance + norm.eps)
    shift = torch.zeros_like(mean)
    if norm.affine:
        factor = factor * norm.weight.detach().double()
        shift = norm.bias.detach().double()
    return factor, shift - mean * factor


def _refuse_unfoldable(plan: Plan) -> None:
    for match in plan.matches.values():
        if match.kind is None and match.type.lower().startswith("batchnorm"):
            raise ModelError(match.problem, where=match.place, hint=match.advice)
    calls = [str(node.target) for node in plan.graph.nodes if node.op == "call_module"]
    for node, match in plan.matches.items():
        if match.kind is Kind.BATCH_NORM and calls.count(str(node.target)) > 1:
            raise ModelError(
                "the batch norm is used more than once", where=match.place, hint="make one a use"
            )


def _plain_groups(plan: Plan) -> dict[str, Group]:
    kinds = {Kind.CONV: Group.CONV, Kind.LINEAR: Group.LINEAR}
    return {match.path: kinds[match.kind] for match in plan.matches.values() if match.kind in kinds}


def _product_before(plan: Plan, norm: fx.Node) -> fx.Node | None:
    """The product that nothing but this batch norm reads; None if there is no such product."""
    node = cast(fx.Node, norm.args[0])
    while plan.matches[node].kind in (Kind.IDENTITY, Kind.DROPOUT) and len(node.users) == 1:
        node = plan.matches[node].operands[0]
    if plan.matches[node].kind not in LAYERS or len(node.users) != 1:
        return None
    image = isinstance(plan.modules[str(norm.target)], nn.BatchNorm2d)
    if image != (plan.matches[node].kind is Kind.CONV):
        return None  # a dense layer along the last axis of an image: its outputs are no channels
    uses = [n for n in plan.graph.nodes if n.op == "call_module" and n.target == node.target]
    return node if len(uses) == 1 else None


@torch.no_grad()
def _merge(layer: Product, factor: Tensor, shift: Tensor) -> None:
    """``W' = factor * W``, ``b' = factor * b + shift``; a bias is made where there is none."""
    weight = layer.weight
    spread = factor.reshape(-1, *(1,) * (weight.dim() - 1))
    bias = torch.zeros_like(factor) if layer.bias is None else layer.bias.double()
    layer.weight = nn.Parameter((weight.double() * spread).to(weight.dtype))
    layer.bias = nn.Parameter((bias * factor + shift).to(weight.dtype))


def _statistics(norm: Norm) -> ChannelStatistics:
    channels = norm.num_features
    if not norm.affine:
        return ChannelStatistics(torch.zeros(channels).double(), torch.ones(channels).double())
    return ChannelStatistics(norm.bias.detach().double(), norm.weight.detach().double().abs())


def _stand_alone(
    root: nn.Module,
    graph: fx.Graph,
    node: fx.Node,
    norm: Norm,
    factor: Tensor,
    shift: Tensor,
    dense: bool,
) -> int:
    """Put a scale and a shift in the place of a batch norm.

    Returns:
        How many numbers they store that are no parameters of a layer.
    """
    path = str(node.target)
    kind = norm.running_mean.dtype if norm.running_mean is not None else torch.float32
    if isinstance(norm, nn.BatchNorm2d):
        _put(root, path, _scale_layer(factor, shift, kind, dense))
        return 0
    constants = nn.Module()
    constants.register_buffer("factor", factor.to(kind))
    constants.register_buffer("shift", shift.to(kind))
    _put(root, path, constants)
    with graph.inserting_before(node):
        scaled = graph.call_function(torch.mul, (node.args[0], graph.get_attr(f"{path}.factor")))
        moved = graph.call_function(torch.add, (scaled, graph.get_attr(f"{path}.shift")))
    node.replace_all_uses_with(moved)
    graph.erase_node(node)
    return 2 * len(factor)


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    root.get_submodule(parent)._modules[name] = module


@torch.no_grad()
def _scale_layer(factor: Tensor, shift: Tensor, kind: torch.dtype, dense: bool) -> nn.Conv2d:
    channels = len(factor)
    layer = nn.Conv2d(channels, channels, 1, groups=1 if dense else channels)
    weight = torch.diag(factor) if dense else factor[:, None]
    layer.weight = nn.Parameter(weight[:, :, None, None].to(kind))
    layer.bias = nn.Parameter(shift.to(kind))
    return layer.eval()
