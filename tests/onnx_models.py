# SPDX-License-Identifier: Apache-2.0
"""Small ONNX files for the import tests, written with onnx's own helpers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

QONNX = "qonnx.custom_op.general"
DOMAINS = (QONNX, "onnx.brevitas", "finn.custom_op.general", "qonnx.custom_op.channels_last")


class File:
    """A chain of nodes; ``net`` holds the name of the newest tensor."""

    def __init__(
        self, *shape: int | str, opset: int = 13, element: int = TensorProto.FLOAT
    ) -> None:
        self.inputs = [helper.make_tensor_value_info("inp", element, shape)]
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.opset = opset
        self.net = "inp"
        self.shapes: list[Any] = []

    def const(self, value: Any, dtype: Any = np.float32, name: str = "") -> str:
        """An initializer; returns its name."""
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def op(self, op: str, *more: str, outputs: int = 1, domain: str = "", **attrs: Any) -> str:
        """Append a node that reads ``net`` and then the named tensors."""
        return self.raw(op, self.net, *more, outputs=outputs, domain=domain, **attrs)

    def raw(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> str:
        """Append a node that reads the named tensors."""
        index = len(self.nodes)
        names = [f"t{index}" if k == 0 else f"t{index}_{k}" for k in range(outputs)]
        self.nodes.append(
            helper.make_node(op, inputs, names, name=f"{op}_{index}", domain=domain, **attrs)
        )
        self.net = names[0]
        return self.net

    def shaped(self, *shape: int) -> None:
        """State the shape of ``net``, for operators whose shape inference needs it."""
        self.shapes.append(helper.make_tensor_value_info(self.net, TensorProto.FLOAT, shape))

    def quant(
        self, bits: int = 4, scale: Any = 0.5, *, signed: int = 1, narrow: int = 0, **more: Any
    ) -> str:
        """A Quant node."""
        mode = more.get("mode", "ROUND")
        operands = [self.const(scale), self.const(more.get("zero", 0.0)), self.const(float(bits))]
        op, domain = more.get("op", "Quant"), more.get("domain", QONNX)
        return self.op(
            op, *operands, domain=domain, signed=signed, narrow=narrow, rounding_mode=mode
        )

    def model(self, *outputs: str) -> bytes:
        """The serialised file."""
        names = outputs or (self.net,)
        makers = {name: node for node in self.nodes for name in node.output}
        graph = helper.make_graph(
            self.nodes,
            "test",
            self.inputs,
            [helper.make_tensor_value_info(n, _element(n, makers), None) for n in names],
            self.constants,
            value_info=self.shapes,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(d, 1) for d in DOMAINS]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        for info in made.graph.output:
            info.type.tensor_type.shape.SetInParent()
        return bytes(made.SerializeToString())


def _element(name: str, makers: dict[str, Any]) -> int:
    node = makers.get(name)
    index = node is not None and (
        node.op_type == "ArgMax" or (node.op_type == "TopK" and name == node.output[1])
    )
    return int(TensorProto.INT64 if index else TensorProto.FLOAT)


def run_file(body: bytes, images: np.ndarray) -> list[np.ndarray]:
    """Every output of a file by QONNX's executor, one image at a time (its shapes are fixed)."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    model = onnx.ModelProto.FromString(body)
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old domains, shapes it did not know
        wrapped = ModelWrapper(model).transform(InferShapes())
        results = [execute_onnx(wrapped, {"inp": image[None]}) for image in images]
    return [np.concatenate([r[o.name] for r in results]) for o in model.graph.output]
