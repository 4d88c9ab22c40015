# SPDX-License-Identifier: Apache-2.0
"""Damaged ONNX files: flipped and missing bytes, and models whose structure was changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

OPERATORS = (
    "Add Sub Mul Div Relu Clip Conv MatMul Gemm MaxPool AveragePool GlobalAveragePool Concat "
    "Reshape Transpose Flatten Squeeze Unsqueeze Gather Shape Slice Cast Constant ConstantOfShape "
    "Expand Tile Range Resize Upsample Pad TopK ArgMax ReduceMean SpaceToDepth DepthToSpace "
    "BatchNormalization PRelu LeakyRelu Quant BipolarQuant Trunc MultiThreshold QuantizeLinear "
    "DequantizeLinear XnorPopcountMatMul QuantAvgPool2d FloatQuant Softmax Loop LSTM Nonsense Pow "
    "Where Min Max Sign Identity Dropout"
).split()
ATTRIBUTES = (
    "axis axes perm pads strides kernel_shape dilations group to blocksize auto_pad ceil_mode "
    "keepdims signed narrow rounding_mode out_scale out_bias data_layout epsilon alpha mode k "
    "value transB count_include_pad"
).split()
NUMBERS = (0, 1, -1, 2, 3, 7, -9, 1 << 20, -(1 << 31), (1 << 62))


@st.composite
def broken_bytes(draw: st.DrawFn, body: bytes) -> bytes:
    """Some bytes changed, then perhaps a piece cut off, cut out or repeated."""
    data = bytearray(body)
    for _ in range(draw(st.integers(0, 6))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    start, end = sorted(draw(st.integers(0, len(data))) for _ in range(2))
    match draw(st.sampled_from(("keep", "truncate", "cut", "repeat"))):
        case "truncate":
            del data[start:]
        case "cut":
            del data[start : min(end, start + 64)]
        case "repeat":
            data[start:start] = data[start : min(end, start + 64)]
    return bytes(data)


class _Mutator:
    """One model being damaged."""

    def __init__(self, draw: st.DrawFn, model: Any) -> None:
        self.draw = draw
        self.graph = model.graph

    def pick(self, items: Any) -> Any:
        return items[self.draw(st.integers(0, len(items) - 1))]

    def names(self) -> list[str]:
        graph = self.graph
        made = [o for n in graph.node for o in n.output]
        return [*made, *(i.name for i in graph.initializer), *(i.name for i in graph.input), ""]

    def number(self) -> int:
        return int(self.draw(st.sampled_from(NUMBERS)))

    def mutate(self) -> None:
        """One change; structures that are empty by now stay as they are."""
        graph = self.graph
        action = self.draw(st.sampled_from(_ACTIONS))
        if (action in _NEEDS_NODE and not graph.node) or (
            action in ("dims", "values", "kind", "forget") and not graph.initializer
        ):
            return
        getattr(self, f"_{action}")()

    def _op(self) -> None:
        self.pick(self.graph.node).op_type = self.draw(st.sampled_from(OPERATORS))

    def _domain(self) -> None:
        domains = ("", "ai.onnx", "qonnx.custom_op.general", "com.example")
        self.pick(self.graph.node).domain = self.draw(st.sampled_from(domains))

    def _rewire(self) -> None:
        node = self.pick(self.graph.node)
        if node.input:
            place = self.draw(st.integers(0, len(node.input) - 1))
            node.input[place] = self.pick(self.names())

    def _more(self) -> None:
        self.pick(self.graph.node).input.append(self.pick(self.names()))

    def _fewer(self) -> None:
        node = self.pick(self.graph.node)
        if node.input:
            del node.input[-1]

    def _rename(self) -> None:
        node = self.pick(self.graph.node)
        if node.output:
            node.output[0] = self.pick(self.names())

    def _remove(self) -> None:
        del self.graph.node[self.draw(st.integers(0, len(self.graph.node) - 1))]

    def _repeat(self) -> None:
        self.graph.node.append(self.pick(self.graph.node))

    def _attribute(self) -> None:
        node = self.pick(self.graph.node)
        name = self.draw(st.sampled_from(ATTRIBUTES))
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        ints = st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=5)
        value = self.draw(st.one_of(st.sampled_from(NUMBERS), ints, st.just("text"), st.floats()))
        node.attribute.append(helper.make_attribute(name, value))

    def _dims(self) -> None:
        tensor = self.pick(self.graph.initializer)
        tensor.dims.append(self.number())
        if self.draw(st.booleans()):
            del tensor.dims[:-1]

    def _values(self) -> None:
        tensor = self.pick(self.graph.initializer)
        kinds = st.sampled_from((np.nan, np.inf, -np.inf, 0.0, -1.0, 1e30, 1e-30, 0.3))
        array = onnx.numpy_helper.to_array(tensor) if _sane(tensor) else np.zeros(1)
        filled = np.full(array.shape, self.draw(kinds), np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(filled, tensor.name))

    def _kind(self) -> None:
        self.pick(self.graph.initializer).data_type = self.draw(st.integers(0, 30))

    def _forget(self) -> None:
        del self.graph.initializer[self.draw(st.integers(0, len(self.graph.initializer) - 1))]

    def _input(self) -> None:
        if not self.graph.input:
            return
        info = self.pick(self.graph.input)
        dims = info.type.tensor_type.shape.dim
        if dims and self.draw(st.booleans()):
            self.pick(dims).dim_value = self.number()
        else:
            dims.add().dim_param = "n"


_NEEDS_NODE = (
    "op", "domain", "rewire", "more", "fewer", "rename", "remove", "repeat", "attribute",
)  # fmt: skip
_ACTIONS = (*_NEEDS_NODE, "dims", "values", "kind", "forget", "input")


def _sane(tensor: Any) -> bool:
    size = 1
    for dim in tensor.dims:
        size *= dim
    return (
        min(tensor.dims, default=1) > 0
        and size < 1 << 16
        and tensor.data_type == TensorProto.FLOAT
        and len(tensor.raw_data) == 4 * size
    )


@st.composite
def broken_models(draw: st.DrawFn, body: bytes) -> bytes:
    """A model with one to five changes of its structure."""
    model = onnx.ModelProto.FromString(body)
    mutator = _Mutator(draw, model)
    for _ in range(draw(st.integers(1, 5))):
        mutator.mutate()
    return bytes(model.SerializeToString())
