# SPDX-License-Identifier: Apache-2.0
"""Chains of views, transposes and size arithmetic -> the one rearrangement they amount to.

A user writes space-to-depth, a channel shuffle or a flatten in many ways. Each chain of reshapes
and transposes is run on a tensor of indices, and what comes out says what it does: nothing, a
flatten, or blocks of pixels (of any size, one included) turned into channels in some order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from bitwright.quantize.joins import channel_major, rearrange

_MOVING_METHODS = frozenset(
    "view reshape transpose permute contiguous flatten unflatten unsqueeze squeeze swapaxes "
    "swapdims movedim detach clone view_as t".split()
)
_MOVING_FUNCTIONS = frozenset(
    getattr(torch, name)
    for name in "reshape transpose permute flatten squeeze unsqueeze swapaxes swapdims movedim "
    "clone detach".split()
)
_SCALAR_METHODS = frozenset(("size", "dim", "ndimension", "numel", "nelement"))
_SCALAR_ATTRIBUTES = frozenset(("shape", "ndim"))
_ARITHMETIC = frozenset(
    getattr(operator, name)
    for name in "add sub mul floordiv truediv mod neg getitem eq ne lt le gt ge".split()
) | {math.prod, math.floor, int}
_CONCATS = (torch.cat, torch.concat, torch.concatenate)
#: Image shapes (N, C, H, W) tried where the true one is not known.
_PROBES = ((2, 3, 24, 48), (2, 8, 48, 24), (2, 12, 8, 8), (2, 4, 6, 12), (2, 9, 18, 9))

Shapes = dict[fx.Node, tuple[int, ...]]


def moves(node: fx.Node) -> bool:
    """Whether a node moves elements of a tensor: a reshape, a transpose."""
    if node.op == "call_method":
        return str(node.target) in _MOVING_METHODS
    if node.op == "call_module":
        return False
    return node.op == "call_function" and node.target in _MOVING_FUNCTIONS


def sizes(node: fx.Node) -> bool:
    """Whether a node gives the size of a tensor."""
    if node.op == "call_method":
        return str(node.target) in _SCALAR_METHODS
    return node.op == "call_function" and node.target is getattr


@dataclass
class _Chains:
    """Which nodes of a graph give sizes, and which move elements."""

    scalars: set[fx.Node] = field(default_factory=set)
    moving: set[fx.Node] = field(default_factory=set)

    @classmethod
    def of(cls, graph: fx.Graph) -> _Chains:
        found = cls()
        for node in graph.nodes:
            if found._is_scalar(node):
                found.scalars.add(node)
            elif found._is_moving(node):
                found.moving.add(node)
        return found

    def _is_scalar(self, node: fx.Node) -> bool:
        if node.op == "call_method":
            return str(node.target) in _SCALAR_METHODS
        if node.op != "call_function":
            return False
        if node.target is getattr:
            return node.args[1] in _SCALAR_ATTRIBUTES
        inputs = node.all_input_nodes
        known = bool(inputs) and all(n in self.scalars for n in inputs)
        return node.target in _ARITHMETIC and known

    def _is_moving(self, node: fx.Node) -> bool:
        if not node.args or not isinstance(node.args[0], fx.Node) or node.args[0] in self.scalars:
            return False
        if node.op == "call_method":
            return str(node.target) in _MOVING_METHODS
        if node.op != "call_function":
            return False
        return node.target in _MOVING_FUNCTIONS or (
            node.target is getattr and node.args[1] == "data"
        )

    def source(self, node: fx.Node) -> tuple[fx.Node, int]:
        """The tensor a chain starts from, and the number of its operations."""
        count = 0
        while node in self.moving:
            node, count = node.args[0], count + 1
        return node, count

    def exits(self, graph: fx.Graph) -> list[fx.Node]:
        """The ends of chains: tensors that something else than a reshape or transpose reads."""
        outside = self.moving | self.scalars
        return [
            n for n in graph.nodes if n in self.moving and any(u not in outside for u in n.users)
        ]


class _Unknown(Exception):
    """A size that is not known without an example input."""


@dataclass
class _Evaluation:
    """Run a chain on a tensor of indices."""

    chains: _Chains
    values: dict[fx.Node, Any]
    shapes: Shapes
    batch: int

    def of(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self.of(v) for v in value)
        if not isinstance(value, fx.Node):
            return value
        if value not in self.values:
            self.values[value] = self._compute(value)
        return self.values[value]

    def _compute(self, node: fx.Node) -> Any:
        if node not in self.chains.scalars and node not in self.chains.moving:
            if node not in self.shapes:
                return _Sizes(self.batch)
            return torch.empty((self.batch, *self.shapes[node][1:]), device="meta")
        arguments = [self.of(a) for a in node.args]
        keywords = {k: self.of(v) for k, v in node.kwargs.items()}
        if node.op == "call_method":
            return getattr(arguments[0], str(node.target))(*arguments[1:], **keywords)
        return node.target(*arguments, **keywords)


class _Sizes:
    """A tensor of which only the batch size is known, and its shape."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def size(self, axis: int | None = None) -> Any:
        return self if axis is None else self[axis]

    @property
    def shape(self) -> _Sizes:
        return self

    data = shape

    def __getitem__(self, axis: Any) -> int:
        if axis == 0:
            return self._batch
        raise _Unknown


def _moved(chains: _Chains, exit_: fx.Node, start: fx.Node, shape: Any, shapes: Shapes) -> Any:
    """The indices of ``start``'s elements as they arrive at the end of a chain, or None."""
    index = torch.arange(math.prod(shape)).view(shape)
    try:
        out = _Evaluation(chains, {start: index}, shapes, shape[0]).of(exit_)
    # Whatever torch raises: the chain does not fit this shape.
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, _Unknown):
        return None
    return out if isinstance(out, Tensor) and out.dtype == torch.int64 else None


@dataclass(frozen=True)
class CanonicalForm:
    """What a chain amounts to: ``identity``, ``flatten``, or ``rearrange`` with block and order."""

    kind: str
    block: int = 1
    order: tuple[int, ...] = ()


def recognise(index: Tensor, shape: tuple[int, ...]) -> CanonicalForm | None:
    """Of the chain that took ``arange(prod(shape)).view(shape)`` to ``index``, if it is known."""
    count, *rest = shape
    each = math.prod(rest)
    if index.dim() < 2 or index.shape[0] != count or index.numel() != count * each:
        return None
    first = index[0]
    starts = torch.arange(count).view(-1, *[1] * first.dim()) * each
    if not torch.equal(index, first + starts):
        return None
    straight = torch.equal(first.reshape(-1), torch.arange(each))
    if straight and tuple(first.shape) == tuple(rest):
        return CanonicalForm("identity")
    if straight and first.dim() == 1:
        return CanonicalForm("flatten")
    return _blocks(first, rest) if first.dim() == 3 and len(rest) == 3 else None


def _blocks(first: Tensor, rest: list[int]) -> CanonicalForm | None:
    channels, height, width = rest
    if not all(first.shape) or height % first.shape[1] or width % first.shape[2]:
        return None
    block = height // int(first.shape[1])
    if width // int(first.shape[2]) != block or first.shape[0] != channels * block * block:
        return None
    corner = first[:, 0, 0]
    c, dy, dx = corner // (height * width), corner // width % height, corner % width
    order = tuple(((dy * block + dx) * channels + c).tolist())
    if sorted(order) != list(range(len(order))):
        return None
    whole = torch.arange(channels * height * width).view(1, channels, height, width)
    fits = torch.equal(rearrange(whole, block, order)[0], first)
    return CanonicalForm("rearrange", block, order) if fits else None


#: Why a chain was refused, and what to do.
Problem = tuple[str, str]


@dataclass(frozen=True)
class Simplified:
    """What is left after `simplify`.

    Attributes:
        problems: the ends of chains that do something unknown, with the reason.
        quiet: nodes that compute sizes, or lie within those chains: nothing to say of them.
    """

    problems: Mapping[fx.Node, Problem]
    quiet: frozenset[fx.Node]


def simplify(graph: fx.Graph, shapes: Shapes) -> Simplified:
    """Replace every chain by ``torch.flatten``, `rearrange` or nothing, and sizes by numbers.

    Args:
        graph: changed in place.
        shapes: of every node's tensor for an example input; may be empty. New nodes are added.
    """
    chains = _Chains.of(graph)
    problems: dict[fx.Node, Problem] = {}
    for exit_ in chains.exits(graph):
        if not _settled(graph, chains, exit_, shapes):
            _, length = chains.source(exit_)
            if length > 1 or not _judged_later(exit_):
                problems[exit_] = _problem(bool(shapes))
    if shapes:
        _write_sizes(graph, chains, shapes)
    _drop_single_concats(graph)
    _erase_dead(graph, chains)
    inside = {n for n in chains.moving if n not in problems and chains.moving.issuperset(n.users)}
    return Simplified(problems, frozenset((chains.scalars | inside) & set(graph.nodes)))


def _settled(graph: fx.Graph, chains: _Chains, exit_: fx.Node, shapes: Shapes) -> bool:
    """Replace a chain, in parts if it is known in parts only: a shuffle, then a flatten."""
    start, _ = chains.source(exit_)
    found = _canonical_form(chains, exit_, start, shapes)
    if found is not None:
        _replace(graph, chains, exit_, start, found, shapes)
        return True
    node = exit_.args[0]
    while node is not start:
        found = _canonical_form(chains, node, start, shapes)
        if found is not None:
            _replace(graph, chains, node, start, found, shapes, whole=True)
            return _settled(graph, chains, exit_, shapes)
        node = node.args[0]
    return False


def _write_sizes(graph: fx.Graph, chains: _Chains, shapes: Shapes) -> None:
    """Put the numbers in where a layer or pool takes a size computed in ``forward``."""
    outside = chains.moving | chains.scalars
    for node in chains.scalars:
        readers = [user for user in node.users if user not in outside]
        if not readers:
            continue
        value = _Evaluation(chains, {}, shapes, 2).of(node)
        for reader in readers:
            swap = {node: tuple(value) if isinstance(value, torch.Size) else value}
            reader.args = fx.node.map_arg(reader.args, lambda n, swap=swap: swap.get(n, n))
            reader.kwargs = fx.node.map_arg(reader.kwargs, lambda n, swap=swap: swap.get(n, n))
    for node in graph.nodes:
        if node.op == "call_function" and node.target in (F.interpolate, F.upsample):
            _write_factor(node, shapes)


def _write_factor(node: fx.Node, shapes: Shapes) -> None:
    """Scaling to a size, as scaling by a whole factor."""
    size = node.args[1] if len(node.args) > 1 else node.kwargs.get("size")
    if size is None or not isinstance(node.args[0], fx.Node) or node.args[0] not in shapes:
        return
    given = shapes[node.args[0]][2:]
    wanted = (size, size) if isinstance(size, int) else tuple(size)
    if all(isinstance(w, int) and w % g == 0 for w, g in zip(wanted, given, strict=True)):
        mode = node.args[3] if len(node.args) > 3 else node.kwargs.get("mode", "nearest")
        factor = tuple(w // g for w, g in zip(wanted, given, strict=True))
        node.args, node.kwargs = node.args[:1], {"scale_factor": factor, "mode": mode}


def _drop_single_concats(graph: fx.Graph) -> None:
    """A concatenation of one part is that part."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _CONCATS:
            continue
        parts = node.args[0] if node.args else node.kwargs.get("tensors")
        if isinstance(parts, list | tuple) and len(parts) == 1 and isinstance(parts[0], fx.Node):
            node.replace_all_uses_with(parts[0])
            graph.erase_node(node)


def _judged_later(node: fx.Node) -> bool:
    """A single view to two axes: whether it flattens is decided by its arguments alone."""
    name = getattr(node.target, "__name__", str(node.target))
    return name in ("view", "reshape", "flatten")


def _canonical_form(
    chains: _Chains, exit_: fx.Node, start: fx.Node, shapes: Shapes
) -> CanonicalForm | None:
    if start in shapes:
        tries: tuple[tuple[int, ...], ...] = ((2, *shapes[start][1:]),)
    else:
        tries = _PROBES
    for shape in tries:
        index = _moved(chains, exit_, start, shape, shapes)
        found = None if index is None else recognise(index, shape)
        # Without a true shape, an order of channels holds for the probe's number of them only.
        if found is not None and (start in shapes or found.kind != "rearrange"):
            return found
        if found is not None:
            return _symbolic(found, shape[1])
    return None


def _symbolic(found: CanonicalForm, channels: int) -> CanonicalForm | None:
    """A rearrangement whose order follows a rule for any number of channels."""
    if found.order == tuple(range(len(found.order))):
        return CanonicalForm("rearrange", found.block)
    if found.order == channel_major(found.block, channels):
        return CanonicalForm("pixel_unshuffle", found.block)
    return None


def _replace(
    graph: fx.Graph,
    chains: _Chains,
    exit_: fx.Node,
    start: fx.Node,
    found: CanonicalForm,
    shapes: Shapes,
    whole: bool = False,
) -> None:
    """Put the form in the place of a chain; with ``whole`` for the rest of the chain, too."""
    outside = chains.moving | chains.scalars
    new = start
    if found.kind != "identity":
        with graph.inserting_after(exit_):
            if found.kind == "flatten":
                new = graph.call_function(torch.flatten, (start, 1))
            elif found.kind == "pixel_unshuffle":
                new = graph.call_function(torch.pixel_unshuffle, (start, found.block))
            else:
                new = graph.call_function(rearrange, (start, found.block, found.order))
        new.meta = {k: v for k, v in exit_.meta.items() if k == "stack_trace"}
        if exit_ in shapes:
            shapes[new] = shapes[exit_]
    for user in list(exit_.users):
        if user is not new and (whole or user not in outside):
            user.replace_input_with(exit_, new)


def _erase_dead(graph: fx.Graph, chains: _Chains) -> None:
    for node in reversed(list(graph.nodes)):
        if not node.users and (node in chains.moving or node in chains.scalars):
            graph.erase_node(node)


def _problem(shapes_known: bool) -> Problem:
    if not shapes_known:
        return (
            "what it rearranges depends on the size of the input",
            "pass example_input to apply (a recipe knows it from its data)",
        )
    return (
        "it moves elements in a way that has no hardware",
        "what has: flatten, space to depth with any order of channels, a channel shuffle",
    )
