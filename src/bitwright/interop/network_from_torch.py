# SPDX-License-Identifier: Apache-2.0
"""A torch module -> `Network`, through torch.fx."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from bitwright.base.errors import ModelError
from bitwright.interop import ops
from bitwright.interop.network import InputConvention, Network, NetworkBuilder
from bitwright.interop.network_to_torch import ACTIVATIONS
from bitwright.interop.ops import FloatArray, Pair, Size
from bitwright.models.modes import evaluating

Arrays = dict[str, FloatArray]
_INPUT = "data"


def network_of(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    *,
    name: str = "network",
    convention: InputConvention | None = None,
) -> Network:
    """The layers of a model in evaluation, with copies of their numbers.

    Args:
        input_shape: (H, W, C) of an image; (1, 1, C) also stands for a network that takes (N, C).

    Raises:
        ModelError: forward cannot be traced, or a layer has no counterpart in other frameworks.
    """
    try:
        with evaluating(model):
            graph = fx.Tracer().trace(model)
    except Exception as error:  # the user's forward may fail in any way on symbols
        raise ModelError(
            f"the model cannot be traced: {error}",
            where=type(model).__name__,
            hint="forward must be one fixed graph of layers",
        ) from error
    return _Walk(model, input_shape, convention or InputConvention(), name).run(graph)


class _Walk:
    """One pass over the graph: each node becomes a layer or another name for one."""

    def __init__(
        self,
        model: nn.Module,
        input_shape: tuple[int, int, int],
        convention: InputConvention,
        name: str,
    ) -> None:
        height, width, channels = input_shape
        self.name, self.convention = name, convention
        self.modules = dict(model.named_modules())
        self.made = NetworkBuilder()
        self.value: dict[fx.Node, str] = {}
        self.called: set[str] = set()
        self.input_shape: Size = (channels, height, width)

    def run(self, graph: fx.Graph) -> Network:
        for node in graph.nodes:
            match node.op:
                case "placeholder":
                    self._input(node)
                case "call_module":
                    self._module(node, str(node.target))
                case "call_function" | "call_method":
                    self._function(node)
                case "output":
                    return self._finish(node)
                case _:
                    raise _unknown(node, f"reads the tensor {node.target} by itself")
        raise ModelError("the graph has no output", where=self.name)

    def _input(self, node: fx.Node) -> None:
        if self.made.layers:
            raise ModelError("has more than one input", where=self.name)
        self.value[node] = self.made.add(_INPUT, ops.Input(self.input_shape))

    def _finish(self, node: fx.Node) -> Network:
        result = node.args[0]
        if not isinstance(result, fx.Node):
            raise ModelError("gives more than one tensor", where=self.name)
        return self.made.network(self.name, self.value[result], self.convention)

    def _module(self, node: fx.Node, path: str) -> None:
        module = self.modules[path]
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or len(node.args) != 1 or node.kwargs:
            raise _unknown(node, f"{type(module).__name__} is called with {node.args}")
        given = self.value[source]
        if isinstance(module, nn.Identity):
            self.value[node] = given
            return
        convert = next((f for kind, f in _MODULES.items() if type(module) is kind), None)
        if convert is None:
            raise _unknown(
                node, f"{type(module).__name__} has no counterpart in other frameworks", path
            )
        op, arrays = convert(module, self.made.shapes[given], path)
        if arrays and path in self.called:
            raise _unknown(node, "is used twice, and its weights cannot be shared", path)
        self.called.add(path)
        self.value[node] = given if op is None else self.made.add(path, op, (given,), arrays)

    def _function(self, node: fx.Node) -> None:
        convert = next((f for names, f in _FUNCTIONS if node.target in names), None)
        if convert is None:
            shown = getattr(node.target, "__name__", node.target)
            raise _unknown(node, f"{shown} has no counterpart in other frameworks")
        op, operands = convert(node)
        for operand in operands:
            if not isinstance(operand, fx.Node):
                raise _unknown(node, f"an operand is {operand!r}, not the output of a layer")
        inputs = tuple(self.value[n] for n in operands)
        self.value[node] = inputs[0] if op is None else self.made.add(node.name, op, inputs)


def _unknown(node: fx.Node, message: str, where: str = "") -> ModelError:
    return ModelError(
        message,
        where=f"layer {where or node.name}",
        hint="exchanged networks are made of Conv2d, Linear, BatchNorm, ReLU, pools, cat, add, "
        "Flatten, Dropout and Softmax; fold or replace this layer first",
    )


def _array(tensor: Tensor) -> FloatArray:
    values = tensor.detach().cpu()
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()  # exact: half and bfloat16 are subsets
    return np.array(values.numpy())


Converted = tuple[ops.Op | None, Arrays]


def _pair(value: Any) -> Pair:
    sides = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(sides) != 2:
        raise ModelError(f"expected two sizes, found {value}")
    return int(sides[0]), int(sides[1])


def _weights(module: nn.Module) -> Arrays:
    arrays = {"weight": _array(module.weight)}
    if module.bias is not None:
        arrays["bias"] = _array(module.bias)
    return arrays


def _conv(module: nn.Conv2d, shape: Size, path: str) -> Converted:
    if module.padding_mode != "zeros" and module.padding not in ((0, 0), "valid"):
        raise ModelError(f"padding mode {module.padding_mode!r}", where=f"layer {path}")
    padding = module.padding
    if padding == "valid":
        padding = (0, 0)
    elif padding == "same":
        spans = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        if any(span % 2 for span in spans):
            raise ModelError(
                "pads one side more than the other (padding='same' and an even kernel)",
                where=f"layer {path}",
            )
        padding = (spans[0] // 2, spans[1] // 2)
    op = ops.Conv(_pair(module.stride), _pair(padding), _pair(module.dilation), module.groups)
    return op, _weights(module)


def _norm(module: nn.BatchNorm2d | nn.BatchNorm1d, shape: Size, path: str) -> Converted:
    if module.running_mean is None or module.running_var is None:
        raise ModelError("has no running statistics", where=f"layer {path}")
    arrays = {"mean": _array(module.running_mean), "variance": _array(module.running_var)}
    if module.affine:
        arrays |= {"gamma": _array(module.weight), "beta": _array(module.bias)}
    return ops.Norm(module.eps), arrays


def _pool(module: nn.MaxPool2d | nn.AvgPool2d, shape: Size, path: str) -> Converted:
    kernel = _pair(module.kernel_size)
    sizes = (kernel, _pair(module.stride or kernel), _pair(module.padding), module.ceil_mode)
    if isinstance(module, nn.MaxPool2d):
        if _pair(module.dilation) != (1, 1) or module.return_indices:
            raise ModelError("dilated pools and pools with indices", where=f"layer {path}")
        return ops.Pool("max", *sizes), {}
    if module.divisor_override is not None:
        raise ModelError("a divisor of its own", where=f"layer {path}")
    return ops.Pool("mean", *sizes, module.count_include_pad), {}


def _adaptive(mode: str) -> Callable[[Any, Size, str], Converted]:
    def convert(module: Any, shape: Size, path: str) -> Converted:
        size = module.output_size
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        wanted = [
            own if side is None else int(side) for side, own in zip(sides, shape[1:], strict=True)
        ]
        if wanted == [1, 1]:
            return ops.GlobalPool(mode), {}
        if list(shape[1:]) == wanted:
            return None, {}
        raise ModelError(f"adaptive pool to {wanted}; only to 1 x 1", where=f"layer {path}")

    return convert


def _plain(op: Callable[[Any], ops.Op]) -> Callable[[Any, Size, str], Converted]:
    return lambda module, shape, path: (op(module), {})


def _softmax(module: nn.Softmax, shape: Size, path: str) -> Converted:
    if module.dim not in (1, -len(shape)):
        raise ModelError(
            f"softmax over axis {module.dim}; only over channels", where=f"layer {path}"
        )
    return ops.Activation("softmax"), {}


def _flatten(module: nn.Flatten, shape: Size, path: str) -> Converted:
    if (module.start_dim, module.end_dim) not in ((1, -1), (1, len(shape))):
        raise ModelError("flattens other axes than all but the batch", where=f"layer {path}")
    return (ops.Flatten() if len(shape) > 1 else None), {}


_MODULES: dict[type[nn.Module], Callable[[Any, Size, str], Converted]] = {
    **{
        kind: _plain(lambda _, name=name: ops.Activation(name))  # type: ignore[misc]
        for name, kind in ACTIVATIONS.items()
    },
    nn.Conv2d: _conv,
    nn.Linear: lambda module, shape, path: (ops.Dense(), _weights(module)),
    nn.BatchNorm2d: _norm,
    nn.BatchNorm1d: _norm,
    nn.LeakyReLU: _plain(lambda module: ops.Activation("relu", float(module.negative_slope))),
    nn.Softmax: _softmax,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.AdaptiveAvgPool2d: _adaptive("mean"),
    nn.AdaptiveMaxPool2d: _adaptive("max"),
    nn.Flatten: _flatten,
    nn.ZeroPad2d: _plain(
        lambda module: ops.Pad(tuple(int(module.padding[k]) for k in (2, 0, 3, 1)))
    ),
    nn.Dropout: _plain(lambda module: ops.Dropout(module.p)),
    nn.Dropout2d: _plain(lambda module: ops.Dropout(module.p)),
}

#: What a function or method is: an operation (None: nothing) on these operands.
Called = tuple[ops.Op | None, tuple[Any, ...]]


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    if name in node.kwargs:
        return node.kwargs[name]
    return node.args[place] if len(node.args) > place else default


def _add_call(node: fx.Node) -> Called:
    if node.kwargs.get("alpha", 1) != 1:
        raise _unknown(node, "adds a multiple")
    return ops.Add(), (node.args[0], _argument(node, 1, "other", None))


def _cat_call(node: fx.Node) -> Called:
    if _argument(node, 1, "dim", 0) not in (1, -3):
        raise _unknown(node, "joins other axes than channels")
    return ops.Concat(), tuple(_argument(node, 0, "tensors", ()))


def _flatten_call(node: fx.Node) -> Called:
    ends = (_argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1))
    if ends not in ((1, -1), (1, 3)):
        raise _unknown(node, "flattens other axes than all but the batch")
    return ops.Flatten(), node.args[:1]


_FUNCTIONS: tuple[tuple[tuple[Any, ...], Callable[[fx.Node], Called]], ...] = (
    ((operator.add, operator.iadd, torch.add, "add", "add_"), _add_call),
    ((torch.cat, torch.concat, torch.concatenate), _cat_call),
    ((torch.flatten, "flatten"), _flatten_call),
    (
        (functional.relu, torch.relu, "relu", "relu_"),
        lambda node: (ops.Activation("relu"), node.args[:1]),
    ),
    (("contiguous",), lambda node: (None, node.args[:1])),
)
