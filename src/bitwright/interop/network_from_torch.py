# SPDX-License-Identifier: Apache-2.0
"""A torch module -> `Network`, through torch.fx."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from bitwright.base.errors import ModelError
from bitwright.interop.network import (
    Activation,
    Add,
    Concat,
    Conv,
    Dense,
    Dropout,
    Flatten,
    FloatArray,
    GlobalPool,
    Input,
    InputConvention,
    Network,
    NetworkBuilder,
    Norm,
    Op,
    Pad,
    Pair,
    Pool,
    Size,
)

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
    was_training = model.training
    model.eval()
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:  # the user's forward may fail in any way on symbols
        raise ModelError(
            f"the model cannot be traced: {error}",
            where=type(model).__name__,
            hint="forward must be one fixed graph of layers",
        ) from error
    finally:
        model.train(was_training)
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
        self.value[node] = self.made.add(_INPUT, Input(self.input_shape))

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
        target = node.target if isinstance(node.target, str) else getattr(node, "target", None)
        for names, convert in _FUNCTIONS:
            if target in names:
                done = convert(node)
                inputs = tuple(self.value[n] for n in done.inputs)
                self.value[node] = (
                    inputs[0] if done.op is None else self.made.add(node.name, done.op, inputs)
                )
                return
        shown = target if isinstance(target, str) else getattr(target, "__name__", target)
        raise _unknown(node, f"{shown} has no counterpart in other frameworks")


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


Converted = tuple[Op | None, Arrays]


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
    op = Conv(_pair(module.stride), _pair(padding), _pair(module.dilation), module.groups)
    return op, _weights(module)


def _linear(module: nn.Linear, shape: Size, path: str) -> Converted:
    return Dense(), _weights(module)


def _norm(module: nn.BatchNorm2d | nn.BatchNorm1d, shape: Size, path: str) -> Converted:
    if module.running_mean is None or module.running_var is None:
        raise ModelError("has no running statistics", where=f"layer {path}")
    arrays = {"mean": _array(module.running_mean), "variance": _array(module.running_var)}
    if module.affine:
        arrays |= {"gamma": _array(module.weight), "beta": _array(module.bias)}
    return Norm(module.eps), arrays


def _max_pool(module: nn.MaxPool2d, shape: Size, path: str) -> Converted:
    if _pair(module.dilation) != (1, 1) or module.return_indices:
        raise ModelError("dilated pools and pools with indices", where=f"layer {path}")
    kernel = _pair(module.kernel_size)
    stride = _pair(module.stride or module.kernel_size)
    return Pool("max", kernel, stride, _pair(module.padding), module.ceil_mode), {}


def _mean_pool(module: nn.AvgPool2d, shape: Size, path: str) -> Converted:
    if module.divisor_override is not None:
        raise ModelError("a divisor of its own", where=f"layer {path}")
    kernel = _pair(module.kernel_size)
    stride = _pair(module.stride or module.kernel_size)
    padding = _pair(module.padding)
    return Pool("mean", kernel, stride, padding, module.ceil_mode, module.count_include_pad), {}


def _adaptive(mode: str) -> Callable[[Any, Size, str], Converted]:
    def convert(module: Any, shape: Size, path: str) -> Converted:
        size = module.output_size
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        wanted = [
            own if side is None else int(side) for side, own in zip(sides, shape[1:], strict=True)
        ]
        if wanted == [1, 1]:
            return GlobalPool(mode), {}
        if list(shape[1:]) == wanted:
            return None, {}
        raise ModelError(f"adaptive pool to {wanted}; only to 1 x 1", where=f"layer {path}")

    return convert


def _activation(function: str) -> Callable[[Any, Size, str], Converted]:
    return lambda module, shape, path: (Activation(function), {})


def _leaky(module: nn.LeakyReLU, shape: Size, path: str) -> Converted:
    return Activation("relu", float(module.negative_slope)), {}


def _softmax(module: nn.Softmax, shape: Size, path: str) -> Converted:
    if module.dim not in (1, -len(shape)):
        raise ModelError(
            f"softmax over axis {module.dim}; only over channels", where=f"layer {path}"
        )
    return Activation("softmax"), {}


def _flatten(module: nn.Flatten, shape: Size, path: str) -> Converted:
    if (module.start_dim, module.end_dim) not in ((1, -1), (1, len(shape))):
        raise ModelError("flattens other axes than all but the batch", where=f"layer {path}")
    return (Flatten() if len(shape) > 1 else None), {}


def _zero_pad(module: nn.ZeroPad2d, shape: Size, path: str) -> Converted:
    left, right, top, bottom = module.padding
    return Pad((int(top), int(left), int(bottom), int(right))), {}


def _dropout(module: nn.Dropout, shape: Size, path: str) -> Converted:
    return Dropout(module.p), {}


_MODULES: dict[type[nn.Module], Callable[[Any, Size, str], Converted]] = {
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.BatchNorm2d: _norm,
    nn.BatchNorm1d: _norm,
    nn.ReLU: _activation("relu"),
    nn.ReLU6: _activation("relu6"),
    nn.LeakyReLU: _leaky,
    nn.Sigmoid: _activation("sigmoid"),
    nn.Tanh: _activation("tanh"),
    nn.Softmax: _softmax,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _mean_pool,
    nn.AdaptiveAvgPool2d: _adaptive("mean"),
    nn.AdaptiveMaxPool2d: _adaptive("max"),
    nn.Flatten: _flatten,
    nn.ZeroPad2d: _zero_pad,
    nn.Dropout: _dropout,
    nn.Dropout2d: _dropout,
}


@dataclass(frozen=True)
class _Call:
    """What a function or method is: an operation on these nodes; without one, the node itself."""

    op: Op | None
    inputs: tuple[fx.Node, ...]


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    if name in node.kwargs:
        return node.kwargs[name]
    return node.args[place] if len(node.args) > place else default


def _tensor(node: fx.Node, value: Any) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise _unknown(node, f"an operand is {value!r}, not the output of a layer")
    return value


def _add_call(node: fx.Node) -> _Call:
    if node.kwargs.get("alpha", 1) != 1:
        raise _unknown(node, "adds a multiple")
    return _Call(
        Add(), (_tensor(node, node.args[0]), _tensor(node, _argument(node, 1, "other", None)))
    )


def _cat_call(node: fx.Node) -> _Call:
    if _argument(node, 1, "dim", 0) not in (1, -3):
        raise _unknown(node, "joins other axes than channels")
    parts = _argument(node, 0, "tensors", ())
    return _Call(Concat(), tuple(_tensor(node, part) for part in parts))


def _flatten_call(node: fx.Node) -> _Call:
    ends = (_argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1))
    if ends not in ((1, -1), (1, 3)):
        raise _unknown(node, "flattens other axes than all but the batch")
    return _Call(Flatten(), (_tensor(node, node.args[0]),))


def _relu_call(node: fx.Node) -> _Call:
    return _Call(Activation("relu"), (_tensor(node, node.args[0]),))


def _same_call(node: fx.Node) -> _Call:
    return _Call(None, (_tensor(node, node.args[0]),))


_FUNCTIONS: tuple[tuple[tuple[Any, ...], Callable[[fx.Node], _Call]], ...] = (
    ((operator.add, operator.iadd, torch.add, "add", "add_"), _add_call),
    ((torch.cat, torch.concat, torch.concatenate), _cat_call),
    ((torch.flatten, "flatten"), _flatten_call),
    ((functional.relu, torch.relu, "relu", "relu_"), _relu_call),
    (("contiguous",), _same_call),
)
