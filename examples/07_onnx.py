# SPDX-License-Identifier: Apache-2.0
"""A QONNX file becomes an integer graph, RTL, and a folder that a microcontroller can run.

The file is written here with onnx's own helpers, as Brevitas and QKeras export such files: float
operators with ``Quant`` nodes between them, a depthwise convolution, a shortcut, batch norm.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from bitwright.interop.onnx.reader import load
from bitwright.pipeline.export_network import export_graph
from bitwright.pipeline.import_network import import_graph

QONNX = "qonnx.custom_op.general"
rng = np.random.default_rng(0)
nodes, constants = [], []


def const(values: object) -> str:
    name = f"c{len(constants)}"
    constants.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
    return name


def op(kind: str, *inputs: str, domain: str = "", **attrs: object) -> str:
    name = f"{kind.lower()}{len(nodes)}"
    nodes.append(helper.make_node(kind, inputs, [name], name=name, domain=domain, **attrs))
    return name


def quant(x: str, bits: int, scale: object, signed: int = 1) -> str:
    operands = (const(scale), const(0.0), const(float(bits)))
    attrs = {"signed": signed, "narrow": 0, "rounding_mode": "ROUND"}
    return op("Quant", x, *operands, domain=QONNX, **attrs)


def conv(x: str, rows: int, columns: int, size: int, groups: int = 1) -> str:
    weight = quant(const(rng.normal(size=(rows, columns, size, size)) * 0.4), 4, 0.1)
    x = op("Conv", x, weight, pads=[size // 2] * 4, group=groups)
    gains = rng.uniform(0.5, 1.5, rows) * rng.choice([-1, 1], rows)  # negative ones too
    operands = (gains, rng.normal(size=rows), np.zeros(rows), np.ones(rows))
    return op("Relu", op("BatchNormalization", x, *map(const, operands)))


image = quant("pixels", 8, 1 / 128)
x = quant(conv(image, 6, 3, 3), 4, 0.2, signed=0)
y = quant(conv(x, 6, 1, 3, groups=6), 4, 0.2, signed=0)
y = quant(conv(y, 6, 6, 1), 4, 0.3, signed=0)
x = quant(op("Add", x, y), 4, 0.4, signed=0)  # two scales meet
x = quant(op("Flatten", op("GlobalAveragePool", x)), 6, 0.1, signed=0)
scores = op("MatMul", x, quant(const(rng.normal(size=(6, 10))), 4, 0.2))
graph = helper.make_graph(
    nodes,
    "demo",
    [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["N", 3, 12, 16])],
    [helper.make_tensor_value_info(scores, TensorProto.FLOAT, ["N", 10])],
    constants,
)
opsets = [helper.make_opsetid("", 13), helper.make_opsetid(QONNX, 1)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
Path("demo.onnx").write_bytes(model.SerializeToString())

report = import_graph(Path("demo.onnx"), Path("demo"), hardware={"target": "ecp5-45k"}, force=True)
for layer in report["layers"]:
    print(f"{layer['op']:12} from {layer['from']:20} -> {layer['output']}")
print("notes:", report["notes"])
print("predicted cycles an image:", report["hardware"]["interval"])

network = load("demo.onnx")
images = rng.uniform(-1, 1, (4, 3, 12, 16)).astype(np.float32)
levels = network.graph.run({"x": network.levels(images)})
print("classes:", levels["label"][:, 0], "scores:", network.outputs[0].reals(levels["scores"])[0])

result = export_graph(Path("demo"), "artifact", Path("demo-mcu"))
print("artefact:", result["bytes"], "RAM", result["arena_bytes"], "bytes")
subprocess.run([sys.executable, "demo-mcu/replay.py"], check=True)
