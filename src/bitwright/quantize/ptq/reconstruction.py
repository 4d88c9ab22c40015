# SPDX-License-Identifier: Apache-2.0
"""One pass through a quantized model and its float reference model together, layer by layer.

Every layer is met once, in order, with what it really gets: inputs that the layers before it,
already quantized and mended, have made, beside the inputs of the float network. What a method
changes in a layer is seen by all that follow. Only tensors that are still needed are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.base.memory import LARGE, held_memory, is_chosen, machine_memory, room_of, shown
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.layers import QuantLayer
from bitwright.quantize.ptq.samples import BATCH, at_a_time, passed
from bitwright.quantize.quantizer import floating
from bitwright.quantize.shapes import model_shapes

#: Of the machine's memory that is taken for all samples, if nothing else is said.
MEMORY_SHARE = 0.75
Batches = list[Tensor]
Environment = dict[fx.Node, list[Any]]


@dataclass
class LayerView:
    """One layer as the methods see it.

    Attributes:
        path: of the layer.
        layer: in the quantized model; methods change it.
        float_layer: the same layer of the reference model, in float.
        inputs: what it gets in the quantized model, a tensor a batch.
        references: what the float layer gets.
        rectified: a ReLU (or a quantizer that clamps at zero) follows directly.
        at_a_time: samples that pass it at a time.
    """

    path: str
    layer: QuantLayer
    float_layer: QuantLayer
    inputs: Batches
    references: Batches
    rectified: bool
    at_a_time: int = BATCH

    @cached_property
    def targets(self) -> Batches:
        """What the float layer gives."""
        with torch.no_grad():
            return [passed(self.float_layer, x, self.at_a_time) for x in self.references]

    @torch.no_grad()
    def outputs(self) -> Batches:
        """What the quantized layer gives, as it is now."""
        return [passed(self.layer, x, self.at_a_time) for x in self.inputs]

    def error(self) -> float:
        """Squared error of the outputs against the targets, as a share of the targets' power."""
        power = sum(float(t.double().square().sum()) for t in self.targets)
        pairs = zip(self.outputs(), self.targets, strict=True)
        error = sum(float((y - t).double().square().sum()) for y, t in pairs)
        return error / power if power > 0 else 0.0


@dataclass
class QuantizerView:
    """One activation quantizer: what it gets in both models; the reference's are not quantized."""

    path: str
    quantizer: ActivationQuantizer
    inputs: Batches
    references: Batches


OnLayer = Callable[[LayerView], None]
OnQuantizer = Callable[[QuantizerView], None]


def reference_model(converted: fx.GraphModule) -> fx.GraphModule:
    """A copy to run in floating point beside a model whose layers change."""
    return copy.deepcopy(converted)


@torch.no_grad()
def walk_layers(
    converted: fx.GraphModule,
    reference: fx.GraphModule,
    batches: Sequence[Tensor],
    on_layer: OnLayer,
    on_quantizer: OnQuantizer | None = None,
    share: float = MEMORY_SHARE,
) -> None:
    """Run both models over all batches, node by node, and show every layer before it runs.

    Args:
        converted: in phase ``train`` with all scales set; what the callbacks change in it counts
            from there on.
        reference: `reference_model` of it, from before any change.
        on_layer: called for every convolution and dense layer with a quantized weight.
        on_quantizer: called for every activation quantizer.
        share: of the machine's memory that may be taken.

    Raises:
        ModelError: what is held of all samples at a time, and what the process has already, takes
            more than that share of the machine's memory (or than nine tenths where the user answers
            for the size, see `base.memory.LARGE`).
    """
    converted.eval()
    _check_room(converted, batches, share)
    with floating(reference):
        most = at_a_time(reference, batches)
        pair = (_Run(converted, batches, most), _Run(reference, batches, most))
        for node, double in zip(converted.graph.nodes, reference.graph.nodes, strict=True):
            module = _module(converted, node)
            if isinstance(module, QuantLayer):
                view = LayerView(
                    str(node.target),
                    module,
                    reference.get_submodule(str(double.target)),
                    pair[0].operand(node),
                    pair[1].operand(double),
                    _is_rectified(converted, node),
                    most,
                )
                on_layer(view)
            elif isinstance(module, ActivationQuantizer) and on_quantizer is not None:
                operands = pair[0].operand(node), pair[1].operand(double)
                on_quantizer(QuantizerView(str(node.target), module, *operands))
            pair[0].step(node)
            pair[1].step(double)


def _check_room(converted: fx.GraphModule, batches: Sequence[Tensor], share: float) -> None:
    shapes = model_shapes(converted, tuple(batches[0].shape[1:]))
    # The samples themselves are there already, and are among what the process has.
    sizes = {n: int(prod(shape)) for n, shape in shapes.items() if n.op != "placeholder"}
    last, now, peak = _last_uses(converted.graph), 0, 0
    for node in converted.graph.nodes:
        now += sizes.get(node, 0)
        peak = max(peak, now)
        now -= sum(sizes.get(done, 0) for done in last.get(node, ()))
    samples = sum(map(len, batches))
    # Of float32: in both networks, and the outputs of a layer that are compared.
    each = 4 * 2 * (peak + max(sizes.values(), default=0))
    room = max(machine_memory() // 16, room_of(share) - held_memory())
    if samples * each > room:
        raise ModelError(
            f"{samples} samples take {shown(samples * each)} in the float network and the "
            f"quantized one beside it, {shown(room)} are allowed",
            hint=f"calibrate on fewer samples: {max(1, room // each)} fit; or on smaller ones"
            + ("" if is_chosen() else f"; or all memory may be taken: {LARGE}=1"),
        )


class _Run:
    """One model on its way through its graph."""

    def __init__(self, model: fx.GraphModule, batches: Sequence[Tensor], most: int) -> None:
        self._model, self._most = model, most
        self._batches = list(batches)
        self._values: Environment = {}
        self._last = _last_uses(model.graph)

    def operand(self, node: fx.Node) -> Batches:
        """The first operand of a node, a tensor a batch."""
        return self._values[node.all_input_nodes[0]]

    def step(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            own = any(self._may_write(user) for user in node.users)
            self._values[node] = [b.clone() if own else b for b in self._batches]
        elif node.op == "get_attr":
            value = _attribute(self._model, str(node.target))
            self._values[node] = [value] * len(self._batches)
        elif node.op != "output":
            self._values[node] = [self._call(node, i) for i in range(len(self._batches))]
        for done in self._last.get(node, ()):
            self._values.pop(done, None)

    def _may_write(self, node: fx.Node) -> bool:
        """Whether a node may write into what it reads; so does whoever reads a view of it."""
        if node.op != "call_module":
            return node.op != "output"
        module = self._model.get_submodule(str(node.target))
        return not isinstance(module, QuantLayer | ActivationQuantizer)

    def _call(self, node: fx.Node, index: int) -> Any:
        def held(operand: fx.Node) -> Any:
            return self._values[operand][index]

        arguments = fx.node.map_arg(node.args, held)
        options = fx.node.map_arg(node.kwargs, held)
        if node.op == "call_module":
            module = self._model.get_submodule(str(node.target))
            if isinstance(module, QuantLayer):
                return passed(module, *arguments, self._most)
            return module(*arguments, **options)
        if node.op == "call_method":
            return getattr(arguments[0], str(node.target))(*arguments[1:], **options)
        return node.target(*arguments, **options)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the tensors that nobody reads after it."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        last = max(node.users, key=place.__getitem__, default=node)
        found.setdefault(last, []).append(node)
    return found


def _attribute(model: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(model.get_submodule(owner), name)


def _module(model: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_rectified(model: fx.GraphModule, node: fx.Node) -> bool:
    """Whether everything that reads a layer cuts off what lies below zero."""
    readers = [_module(model, user) for user in node.users]
    return bool(readers) and all(
        isinstance(reader, nn.ReLU)
        or (isinstance(reader, ActivationQuantizer) and reader.clip[0] == 0)
        for reader in readers
    )
