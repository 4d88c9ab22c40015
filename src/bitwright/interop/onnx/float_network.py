# SPDX-License-Identifier: Apache-2.0
"""A float ONNX file -> `Network`: layers with their numbers, for whoever quantizes afterwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import ModelError
from bitwright.interop import ops
from bitwright.interop.network import Network, NetworkBuilder, located_in, require_finite
from bitwright.interop.network_passes import merge_pads, merge_scales, prune
from bitwright.interop.onnx.float_layers import (
    ACTIVATIONS,
    POOLS,
    REALS,
    WHOLE,
    Handler,
    activation,
    channel_vector,
    padded,
    pads_of_axes,
    pool_of,
)
from bitwright.interop.onnx.reader.model import Array, OnnxModel, OnnxNode, TensorInfo, read_model
from bitwright.interop.ops import FloatArray, Size

#: Operators that make integers: files with these are read as integer graphs (`onnx.reader`).
_QUANTIZERS = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger "
    "MatMulInteger Quant IntQuant FloatQuant BipolarQuant Trunc MultiThreshold XnorPopcountMatMul "
    "QuantAvgPool2d".split()
)
_IMAGE, _VECTOR = 4, 2  # axes of a tensor, the batch among them
#: Numbers that layers may have, however few the file holds: many nodes may name one constant, and
#: each becomes a layer with numbers of its own.
_FREE_NUMBERS = 1 << 26


def is_float(model: OnnxModel) -> bool:
    """Whether a file has no quantizer, no type of QONNX, and only standard operators."""
    return not model.datatypes and all(
        node.op not in _QUANTIZERS and node.domain in ("", "ai.onnx") for node in model.nodes
    )


def is_float_file(path: Path) -> bool:
    """Whether a file is an ONNX file, by its ending, of a float network.

    Raises:
        DataError, ModelError: it is damaged.
    """
    return path.suffix.lower() == ".onnx" and path.is_file() and is_float(read_model(path))


@bounded_reader
def load_float_onnx(
    path: Path, *, input_shape: Size | None = None, output: str | None = None
) -> Network:
    """The network of a float file, as `torch.onnx.export` and others write it.

    Args:
        input_shape: (H, W, C) of an image, where the file leaves it open.
        output: the tensor or layer to end at; by default the file's only output.

    Raises:
        DataError: the file is damaged.
        ModelError: an operator is not supported, or the file is a quantized one.
        ToolError: the package ``onnx`` is missing.
    """
    model = read_model(path)
    with located_in(path):
        if not is_float(model):
            raise ModelError(
                "is a quantized network, not a float model",
                where=path.name,
                hint=f"bitwright import {path.name} --out FOLDER reads its integers",
            )
        reader = _Reader(model, str(path), output)
        reader.read(input_shape)
        network = reader.builder.network(model.name or path.stem, reader.end(output))
        return merge_pads(merge_scales(prune(network, network.output)))


#: Types of inputs that are computed with as they are; None: the file does not say.
_REALS_IN = (None, "float16", "bfloat16", "float32", "float64")


class _Reader:
    """Nodes so far: which layer makes each tensor, which tensors are constants."""

    def __init__(self, model: OnnxModel, source: str, wanted: str | None = None) -> None:
        self.model, self.source = model, source
        self.builder = NetworkBuilder()
        self.layer: dict[str, str] = {}
        self.constants: dict[str, Array] = {}
        self.uses = Counter(name for node in model.nodes for name in node.inputs)
        self.uses.update(info.name for info in model.outputs)
        self.uses.update([] if wanted is None else [wanted])
        self.shared: set[str] = set()  # layers with other readers than those of a second name
        self.named: set[str] = set()  # layers that make a tensor
        self.room = max(_FREE_NUMBERS, model.size)  # numbers that its layers may still have

    def read(self, input_shape: Size | None) -> None:
        """All nodes, in order."""
        if len(self.model.inputs) != 1:
            raise ModelError(f"has {len(self.model.inputs)} inputs; expected one")
        (info,) = self.model.inputs
        reads = [node for node in self.model.nodes if info.name in node.inputs]
        if info.dtype not in _REALS_IN and {node.op for node in reads} - {"Cast", "Shape"}:
            raise ModelError(
                f"is of {info.dtype}, whose arithmetic is not that of real numbers",
                where=f"input {info.name}",
                hint="put a Cast to float behind it, before all else",
            )
        self._note(info.name, self.builder.add("input", ops.Input(_shape(info, input_shape))))
        for node in self.model.nodes:
            handler = self._handlers.get(node.op)
            if handler is None:
                able = ", ".join(sorted(self._handlers))
                raise node.error(
                    "is not supported in a float model",
                    f"{able} are; or build the model in torch: model: package.module:factory",
                )
            if not node.outputs or not node.outputs[0]:
                raise node.error("gives nothing")
            made = handler(self, node)
            if made in self.named and self.uses[node.inputs[0]] != 1:
                self.shared.add(made)
            if made is not None:
                self._note(node.outputs[0], made)

    def _note(self, tensor: str, layer: str) -> None:
        """Which layer makes a tensor."""
        self.layer[tensor] = layer
        self.named.add(layer)

    def end(self, wanted: str | None) -> str:
        """The layer that makes the output."""
        if wanted is not None:
            return self.layer.get(wanted, wanted)
        if len(self.model.outputs) != 1:
            names = ", ".join(info.name for info in self.model.outputs)
            raise ModelError(
                f"has {len(self.model.outputs)} outputs: {names}", hint="say which one: --output"
            )
        name = self.model.outputs[0].name
        if name not in self.layer:
            raise ModelError(f"its output {name!r} is no output of a layer")
        return self.layer[name]

    def array(self, node: OnnxNode, place: int) -> Array | None:
        """The constant at an input; None: there is no such input, or a layer makes it."""
        if not node.has(place):
            return None
        name = node.inputs[place]
        if name not in self.constants and name in self.model.constants:
            self.constants[name] = self.model.constants[name].read()
        return self.constants.get(name)

    def numbers(self, node: OnnxNode, place: int) -> FloatArray:
        """A constant of reals.

        Raises:
            ModelError: it is none.
        """
        found = self.array(node, place)
        if found is None or found.dtype.kind not in "fiu":
            raise node.error(f"input {place} must be a constant of numbers")
        return found if found.dtype == np.float64 else found.astype(np.float32)

    def integers(self, node: OnnxNode, name: str, place: int) -> tuple[int, ...] | None:
        """A list of integers that is an attribute in old files and an input in new ones."""
        if name in node.attrs:
            return node.ints(name, ())
        found = self.array(node, place)
        if found is None:
            if node.has(place):
                raise node.error(f"{name} must be constant", "export with fixed shapes")
            return None
        if found.dtype.kind not in "iu":
            raise node.error(f"{name} must be integers, got {found.dtype}")
        return tuple(int(v) for v in np.ravel(found))

    def shape(self, node: OnnxNode) -> Size:
        """Of the node's first input, without the batch."""
        return self.builder.shapes[self.given(node)]

    def is_layer(self, node: OnnxNode, place: int) -> bool:
        """Whether an input is no constant."""
        return node.has(place) and node.inputs[place] in self.layer

    def _layer_of(self, node: OnnxNode, tensor: str) -> str:
        if tensor not in self.layer:
            raise node.error(f"reads {tensor!r}, which is no output of a layer")
        return self.layer[tensor]

    def given(self, node: OnnxNode, place: int = 0) -> str:
        """The layer that makes an input."""
        if not node.has(place):
            raise node.error(f"has {len(node.inputs)} inputs and none at place {place}")
        return self._layer_of(node, node.inputs[place])

    def add(self, node: OnnxNode, op: ops.Op, *inputs: str, **arrays: FloatArray) -> str:
        """A layer of a node; it reads the node's first input unless others are named."""
        name = self._name(node)
        for key, values in arrays.items():
            require_finite(name, key, values, self.source)
        self.room -= sum(values.size for values in arrays.values())
        if self.room < 0:
            raise node.error(
                "has, with the layers before it, more numbers than the file holds bytes",
                "many nodes share their weights: give each its own, or fewer layers",
            )
        return self.builder.add(name, op, inputs or (self.given(node),), arrays)

    def same(self, node: OnnxNode) -> str | None:
        """The node gives what it gets."""
        found = self.array(node, 0)
        if found is None:
            return self.given(node)
        self.constants[node.outputs[0]] = found
        return None

    def _cast(self, node: OnnxNode) -> str | None:
        found = self.array(node, 0)
        is_whole = found is not None and found.dtype.kind in "iu"
        if node.integer("to", 0) not in (REALS | WHOLE if is_whole else REALS):
            raise node.error("makes whole numbers", "leave it out, or quantize the model instead")
        return self.same(node)

    def _dropout(self, node: OnnxNode) -> str | None:
        training = self.array(node, 2)
        if node.has(2) and (training is None or np.any(training)):
            raise node.error("is in training mode", "export the model in evaluation: model.eval()")
        return self.same(node)

    def _name(self, node: OnnxNode) -> str:
        """The module that the weights are named after, or the node: ``/block/a/Conv``."""
        for name in node.inputs[1:]:
            module, dot, last = name.rpartition(".")
            if dot and last == "weight" and name in self.model.constants:
                return module
        return node.name.strip("/").replace("/", ".") or node.op

    def _convolution(self, node: OnnxNode) -> str:
        weight = self.numbers(node, 1)
        if weight.ndim != _IMAGE:
            raise node.error(f"weights of shape {weight.shape}: only 2-D convolutions are read")
        how = padded(node, self.shape(node), tuple(weight.shape[2:]))
        image = self.given(node)
        if any(how.rest):  # zeros that differ from side to side
            image = self.add(node, ops.Pad(how.rest))
        bias = {"bias": self.numbers(node, 2)} if node.has(2) else {}
        op = ops.Conv(how.stride, how.both, how.dilation, node.integer("group", 1))
        return self.add(node, op, image, weight=weight, **bias)

    def _gemm(self, node: OnnxNode) -> str:
        weight = self.numbers(node, 1) * np.float32(node.real("alpha", 1.0))
        if node.integer("transA", 0) or weight.ndim != _VECTOR:
            raise node.error("expected a vector times a constant matrix")
        weight = weight if node.integer("transB", 0) else weight.T
        bias = {}
        if node.has(2):
            offset = self.numbers(node, 2) * np.float32(node.real("beta", 1.0))
            bias["bias"] = channel_vector(node, offset, (len(weight),))
        return self.add(node, ops.Dense(), weight=np.ascontiguousarray(weight), **bias)

    def _matmul(self, node: OnnxNode) -> str:
        if self.is_layer(node, 1):
            raise node.error("a product of two tensors is no layer")
        weight = self.numbers(node, 1)
        if weight.ndim != _VECTOR:
            raise node.error(f"a matrix of shape {weight.shape}; expected (inputs, outputs)")
        return self.add(node, ops.Dense(), weight=np.ascontiguousarray(weight.T))

    def _arithmetic(self, node: OnnxNode) -> str:
        layers = [place for place in (0, 1) if self.is_layer(node, place)]
        if len(layers) == 2:
            if node.op != "Add":
                raise node.error("of two tensors; only their sum is a layer")
            return self.add(node, ops.Add(), self.given(node), self.given(node, 1))
        if not layers or (node.op == "Div" and layers[0] == 1):
            raise node.error("expected a tensor and a constant")
        place = layers[0]
        image = self.given(node, place)
        values = channel_vector(node, self.numbers(node, 1 - place), self.builder.shapes[image])
        one = np.ones_like(values)
        if node.op == "Mul":
            return self.add(node, ops.Scale(), image, gamma=values)
        if node.op == "Div":
            return self.add(node, ops.Scale(), image, gamma=one / values)
        if node.op == "Sub":
            sign, values = (one, -values) if place == 0 else (-one, values)
            return self.add(node, ops.Scale(), image, gamma=sign, beta=values)
        if self._take_bias(node, place, values):
            return image
        return self.add(node, ops.Scale(), image, gamma=one, beta=values)

    def _take_bias(self, node: OnnxNode, place: int, values: FloatArray) -> bool:
        """A constant that is added to a product without a bias, read by nothing else, is one."""
        name = self.given(node, place)
        layer = self.builder.layers[name]
        bare = isinstance(layer.op, ops.Conv | ops.Dense) and "bias" not in layer.arrays
        if not bare or self.uses[node.inputs[place]] != 1 or name in self.shared:
            return False
        require_finite(name, "bias", values, self.source)
        self.builder.layers[name] = replace(layer, arrays={**layer.arrays, "bias": values})
        return True

    def _norm(self, node: OnnxNode) -> str:
        names = ("gamma", "beta", "mean", "variance")
        arrays = {name: self.numbers(node, k) for k, name in enumerate(names, 1)}
        if node.integer("training_mode", 0):
            raise node.error("is in training mode", "export the model in evaluation: model.eval()")
        return self.add(node, ops.Norm(node.real("epsilon", 1e-5)), **arrays)

    def _activation(self, node: OnnxNode) -> str:
        bounds = None
        if node.op == "Clip":
            bounds = self._bound(node, "min", 1), self._bound(node, "max", 2)
        return self.add(node, activation(node, self.shape(node), bounds))

    def _bound(self, node: OnnxNode, name: str, place: int) -> float:
        """A bound of ``Clip``: an attribute in old files and an input in new ones."""
        if name in node.attrs:
            return node.real(name, 0.0)
        if not node.has(place):
            raise node.error("needs two constant bounds")
        found = self.numbers(node, place)
        if found.size != 1:
            raise node.error(f"a bound of shape {found.shape}; expected one number")
        return float(found.reshape(-1)[0])

    def _pool(self, node: OnnxNode) -> str:
        if any(node.outputs[1:]):
            raise node.error("gives places of maxima", "export the network without them")
        return self.add(node, pool_of(node, self.shape(node)))

    def _global(self, node: OnnxNode) -> str:
        keeps = True
        if node.op == "ReduceMean":
            axes = self.integers(node, "axes", 1) or ()
            if sorted(axis % _IMAGE for axis in axes) != [2, 3] or len(self.shape(node)) != 3:
                raise node.error(f"a mean over the axes {axes}", "only of rows and columns: 2, 3")
            keeps = bool(node.integer("keepdims", 1))
        op = ops.GlobalPool("max" if "Max" in node.op else "mean")
        made = self.add(node, op)
        return made if keeps else self.add(node, ops.Flatten(), made)

    def _flatten(self, node: OnnxNode) -> str:
        given = self.shape(node)
        if node.op == "Flatten":
            fits = node.integer("axis", 1) == 1
        elif node.op == "Reshape":
            wanted = self.integers(node, "shape", 1) or ()
            fits = len(wanted) == _VECTOR and wanted[1] in (-1, prod(given)) and wanted[0] <= 1
        else:
            axes = self.integers(node, "axes", 1)
            fits = given[1:] == (1, 1) and (axes is None or sorted(a % 4 for a in axes) == [2, 3])
        if not fits:
            raise node.error(f"of {given}: only images made vectors are read", "use flatten(1)")
        return self.given(node) if len(given) == 1 else self.add(node, ops.Flatten())

    def _concat(self, node: OnnxNode) -> str:
        if node.integer("axis", 1) not in (1, -3 if len(self.shape(node)) == 3 else -1):
            raise node.error("joins along another axis than the channels")
        parts = [self.given(node, place) for place in range(len(node.inputs))]
        return self.add(node, ops.Concat(), *parts)

    def _zeros(self, node: OnnxNode) -> str:
        pads = self.integers(node, "pads", 1) or ()
        if node.has(3):
            pads = pads_of_axes(node, pads, self.integers(node, "axes", 3) or ())
        value = self.array(node, 2) if node.has(2) else np.array(node.real("value", 0.0))
        outside = len(pads) != 2 * _IMAGE or any(pads[k] for k in (0, 1, 4, 5))
        if node.string("mode", "constant") != "constant" or value is None or np.any(value):
            raise node.error("only zeros around an image are read")
        if outside:
            raise node.error(f"pads {pads}: only rows and columns of an image can be padded")
        return self.add(node, ops.Pad((pads[2], pads[3], pads[6], pads[7])))

    def _constant(self, node: OnnxNode) -> None:
        self.constants[node.outputs[0]] = node.array("value")

    _handlers: ClassVar[dict[str, Handler]] = {
        "Conv": _convolution, "Gemm": _gemm, "MatMul": _matmul, "BatchNormalization": _norm,
        **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _arithmetic),
        **dict.fromkeys(ACTIVATIONS, _activation), **dict.fromkeys(POOLS, _pool),
        **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "ReduceMean"), _global),
        **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), _flatten),
        "Identity": same, "Cast": _cast, "Dropout": _dropout, "Concat": _concat, "Pad": _zeros,
        "Constant": _constant,
    }  # fmt: skip


def _shape(info: TensorInfo, given: Size | None) -> Size:
    """(C, H, W) or (F,) of the input; what the file leaves open is taken from (H, W, C)."""
    said = info.shape[1:]
    if len(info.shape) not in (_IMAGE, _VECTOR):
        raise ModelError(
            f"takes a tensor of shape {info.shape}; expected (N, C, H, W) or (N, features)",
            where=f"input {info.name}",
        )
    known = (None,) * len(said)
    if given is not None and len(given) == len(said):
        known = (given[-1], *given[:-1])
    found = [b if a is None else a for a, b in zip(said, known, strict=True)]
    if None in found:
        raise ModelError(
            f"does not say how large an image is: {info.shape}",
            where=f"input {info.name}",
            hint="say it: --input-shape HxWxC; or export with a fixed size",
        )
    return tuple(side for side in found if side is not None)
