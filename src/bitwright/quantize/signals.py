# SPDX-License-Identifier: Apache-2.0
"""Networks of signals (N, C, L) as networks of images of height 1, (N, C, 1, L).

A convolution along time is one over an image of one row, with a kernel of one row. Everything
behind the conversion (plan, integers, hardware) knows images alone; what a user's model takes and
gives remains a signal.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.quantize import op_match
from bitwright.quantize.canonicalize import moves, sizes
from bitwright.quantize.joins import LowerSignal, RaiseSignal
from bitwright.quantize.shapes import example_shapes
from bitwright.quantize.trace import SignalModel, trace

_AXES = 3  # of a batch of signals
_ENTRY, _EXIT = "signal_input", "signal_output"


def _one(value: Any) -> Any:
    """The number of a field that torch keeps as a tuple of one."""
    return value[0] if isinstance(value, tuple | list) else value


def _conv(layer: nn.Conv1d) -> nn.Conv2d:
    padding = layer.padding if isinstance(layer.padding, str) else (0, _one(layer.padding))
    made = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        (1, _one(layer.kernel_size)),
        (1, _one(layer.stride)),
        padding,
        (1, _one(layer.dilation)),
        layer.groups,
        layer.bias is not None,
        layer.padding_mode,
        device="meta",
    )
    made.weight = nn.Parameter(layer.weight.detach().unsqueeze(2), layer.weight.requires_grad)
    made.bias = layer.bias
    return made


def _norm(layer: nn.BatchNorm1d) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(
        layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats
    )
    made._parameters, made._buffers = layer._parameters, layer._buffers
    return made


def _max_pool(layer: nn.MaxPool1d) -> nn.MaxPool2d:
    return nn.MaxPool2d(
        (1, _one(layer.kernel_size)),
        (1, _one(layer.stride)),
        (0, _one(layer.padding)),
        (1, _one(layer.dilation)) if _one(layer.dilation) != 1 else 1,
        layer.return_indices,
        layer.ceil_mode,
    )


def _avg_pool(layer: nn.AvgPool1d) -> nn.AvgPool2d:
    return nn.AvgPool2d(
        (1, _one(layer.kernel_size)),
        (1, _one(layer.stride)),
        (0, _one(layer.padding)),
        layer.ceil_mode,
        layer.count_include_pad,
    )


def _adaptive(layer: nn.AdaptiveAvgPool1d) -> nn.AdaptiveAvgPool2d:
    return nn.AdaptiveAvgPool2d((1, _one(layer.output_size)))


def _pad(layer: nn.ConstantPad1d | nn.ZeroPad1d) -> nn.ConstantPad2d:
    return nn.ConstantPad2d((*layer.padding, 0, 0), getattr(layer, "value", 0.0))


def _upsample(layer: nn.Upsample) -> nn.Upsample:
    factor = layer.scale_factor
    return nn.Upsample(
        None if layer.size is None else (1, _one(layer.size)),
        None if factor is None else (1, _one(factor)),
        layer.mode,
    )


#: Layers of signals -> the layer of images of one row that computes the same.
_TWINS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.Conv1d: _conv,
    nn.BatchNorm1d: _norm,
    nn.MaxPool1d: _max_pool,
    nn.AvgPool1d: _avg_pool,
    nn.AdaptiveAvgPool1d: _adaptive,
    nn.ConstantPad1d: _pad,
    nn.ZeroPad1d: _pad,
    nn.Dropout1d: lambda layer: nn.Dropout2d(layer.p),
    nn.Upsample: _upsample,
}
#: Layers that nothing but signals go through.
_OF_SIGNALS = (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d)
#: Functions of signals -> of images, with the names of the arguments behind the tensor and what a
#: number among them becomes.
_POOL = ("kernel_size", "stride", "padding")
_RESIZE = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
_FUNCTIONS: dict[Any, tuple[Any, tuple[str, ...]]] = {
    F.max_pool1d: (F.max_pool2d, (*_POOL, "dilation", "ceil_mode", "return_indices")),
    torch.max_pool1d: (F.max_pool2d, (*_POOL, "dilation", "ceil_mode")),
    F.avg_pool1d: (F.avg_pool2d, (*_POOL, "ceil_mode", "count_include_pad")),
    F.adaptive_avg_pool1d: (F.adaptive_avg_pool2d, ("output_size",)),
    torch.adaptive_avg_pool1d: (F.adaptive_avg_pool2d, ("output_size",)),
    F.interpolate: (F.interpolate, _RESIZE),
    F.upsample: (F.interpolate, _RESIZE[:4]),
}
_ACROSS = {  # of the one row
    "kernel_size": 1, "stride": 1, "padding": 0, "output_size": 1, "size": 1, "scale_factor": 1,
}  # fmt: skip
_MEANS = (torch.mean, "mean")
_CATS = (torch.cat, torch.concat, torch.concatenate)


def of_signals(model: nn.Module) -> bool:
    """Whether a model has layers that nothing but signals go through."""
    return any(isinstance(layer, _OF_SIGNALS) for layer in model.modules())


def raised(model: nn.Module, example: Tensor | None) -> nn.Module:
    """The model itself, or if it takes signals one of the same function whose layers are those of
    images of one row; it has the same paths.

    Args:
        example: a batch; without it the model is taken to be one of images.

    Raises:
        ModelError: a network of signals without an example.
    """
    if any(isinstance(layer, RaiseSignal) for layer in model.modules()):
        return model
    if example is None:
        if of_signals(model):
            raise ModelError(
                "a network of signals: which of its tensors are signals depends on the input",
                where=type(model).__name__,
                hint="pass example_input or sample_shape, (C, L) (a recipe knows it from its data)",
            )
        return model
    if example.dim() != _AXES:
        return model
    copied = copy.deepcopy(model)
    graph = trace(copied)
    shapes = example_shapes(copied, graph, example)
    return _Raising(copied, graph, shapes).made(type(model).__name__)


class _Raising:
    """One walk through a graph of signals; every tensor (N, C, L) gets its row."""

    def __init__(
        self, root: nn.Module, graph: fx.Graph, shapes: dict[fx.Node, tuple[int, ...]]
    ) -> None:
        self.root, self.graph, self.shapes = root, graph, shapes
        self.new = fx.Graph()
        self.images: dict[fx.Node, fx.Node] = {}  # of signals: with the row
        self.plain: dict[fx.Node, fx.Node] = {}  # of all else, and of signals without it
        self.twins: set[nn.Module] = set()

    def made(self, name: str) -> SignalModel:
        for node in self.graph.nodes:
            self._node(node)
        made = SignalModel(self.root, self.new, class_name=name)
        made.train(self.root.training)
        return made

    def _node(self, node: fx.Node) -> None:
        before = len(self.new.nodes)
        if node.op == "placeholder":
            self.plain[node] = self.new.node_copy(node)
            self.images[node] = self._layer(_ENTRY, RaiseSignal(), self.plain[node])
        elif node.op == "output":
            self.new.output(fx.node.map_arg(node.args[0], self._given_out))
        elif node.op == "get_attr":
            self.plain[node] = self.new.node_copy(node)
        elif not self._has_signals(node):
            self._keep(node, self.new.node_copy(node, self.lowered))
        elif self._works_on_images(node):
            self._keep(node, self._image(node))
        else:
            self._keep(node, self.new.node_copy(node, self.lowered), lowered=True)
        for made in list(self.new.nodes)[before:]:
            if "stack_trace" in node.meta:
                made.meta["stack_trace"] = node.meta["stack_trace"]

    def _is_signal(self, node: fx.Node) -> bool:
        return len(self.shapes.get(node, ())) == _AXES and node.op != "get_attr"

    def _has_signals(self, node: fx.Node) -> bool:
        return self._is_signal(node) or any(map(self._is_signal, node.all_input_nodes))

    def _works_on_images(self, node: fx.Node) -> bool:
        """Whether a layer or function has the same meaning with the row, or a twin that has."""
        if moves(node) or sizes(node):
            return False
        if node.op == "call_module":
            layer = self.root.get_submodule(str(node.target))
            whole = not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) == (1, -1)
            return type(layer) in _TWINS or (type(layer) in op_match.MODULES and whole)
        if node.target in _MEANS:
            return _mean_axes(node) == {2}  # any other is left to be refused
        if node.target is F.pad:  # more than the last axis would take the row for the channels
            return len(op_match.argument(node, 1, "pad", ())) == 2
        return node.target in _FUNCTIONS or op_match.is_known(node.target)

    def _keep(self, node: fx.Node, made: fx.Node, *, lowered: bool = False) -> None:
        if not self._is_signal(node):
            self.plain[node] = made
        elif lowered:
            self.plain[node] = made
            self.images[node] = self.new.call_method("unsqueeze", (made, 2))
        else:
            self.images[node] = made

    def lowered(self, node: fx.Node) -> fx.Node:
        """A tensor as the user's forward has it."""
        if node not in self.plain:
            self.plain[node] = self.new.call_method("squeeze", (self.images[node], 2))
        return self.plain[node]

    def _lifted(self, node: fx.Node) -> fx.Node:
        if node.op == "get_attr":
            return self._constant(node)
        return self.images[node] if self._is_signal(node) else self.plain[node]

    def _constant(self, node: fx.Node) -> fx.Node:
        """A constant that is joined with signals, with the row before its last axis."""
        value = operator.attrgetter(str(node.target))(self.root)
        if not isinstance(value, Tensor) or value.dim() < 2:
            return self.plain[node]
        if node not in self.images:
            name = _fresh(self.root, f"{str(node.target).replace('.', '_')}_signal")
            self.root.register_buffer(name, value.detach().unsqueeze(value.dim() - 1))
            self.images[node] = self.new.get_attr(name)
        return self.images[node]

    def _image(self, node: fx.Node) -> fx.Node:
        if node.op == "call_module":
            self._twin(str(node.target))
            return self.new.node_copy(node, self._lifted)
        if node.target in _FUNCTIONS:
            return self._function(node)
        if node.target in _MEANS:
            return self._mean(node)
        made = self.new.node_copy(node, self._lifted)
        if node.target in _CATS:
            axis = op_match.argument(node, 1, "dim", 0)
            if isinstance(axis, int):  # the last one is now one behind
                made.args, made.kwargs = made.args[:1], {"dim": (0, 1, 3)[axis % _AXES]}
        return made

    def _twin(self, path: str) -> None:
        layer = self.root.get_submodule(path)
        if type(layer) in _TWINS and layer not in self.twins:  # a layer may be called twice
            parent, _, name = path.rpartition(".")
            twin = _TWINS[type(layer)](layer)
            twin.train(layer.training)
            self.twins.add(twin)
            self.root.get_submodule(parent)._modules[name] = twin

    def _function(self, node: fx.Node) -> fx.Node:
        target, names = _FUNCTIONS[node.target]
        given = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
        fields = {
            name: (_ACROSS[name], _one(value)) if name in _ACROSS and value is not None else value
            for name, value in given.items()
            if name != "input"
        }
        return self.new.call_function(target, (self._lifted(node.all_input_nodes[0]),), fields)

    def _mean(self, node: fx.Node) -> fx.Node:
        keep = bool(op_match.argument(node, 2, "keepdim", False))
        return self.new.call_function(
            torch.mean, (self._lifted(node.args[0]), (2, 3)), {"keepdim": keep}
        )

    def _given_out(self, node: fx.Node) -> fx.Node:
        if self._is_signal(node):
            return self._layer(_EXIT, LowerSignal(), self.images[node])
        return self.plain[node]

    def _layer(self, name: str, layer: nn.Module, operand: fx.Node) -> fx.Node:
        path = _fresh(self.root, name)
        self.root.add_module(path, layer)
        return self.new.call_module(path, (operand,))


def _mean_axes(node: fx.Node) -> set[Any]:
    """The axes of a signal that a mean is over."""
    given = op_match.argument(node, 1, "dim", None)
    each = given if isinstance(given, list | tuple) else (given,)
    return {axis % _AXES if isinstance(axis, int) else axis for axis in each}


def _fresh(root: nn.Module, wish: str) -> str:
    number, name = 1, wish
    while hasattr(root, name):
        number, name = number + 1, f"{wish}_{number}"
    return name
