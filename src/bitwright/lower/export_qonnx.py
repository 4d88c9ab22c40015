# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> QONNX file that QONNX's own executor runs with equal integers.

Levels travel as float32 (QONNX's carrier), exact below 2^24: a graph whose sums could leave that is
refused. Images are NCHW, as QONNX, FINN and ONNX expect; ``flatten`` transposes back to NHWC, so
that the weights of dense layers stay as they are. Thresholds become ``MultiThreshold`` with
``out_scale`` = step and ``out_bias`` = base; a flipped channel is multiplied by -1 before that. A
requant becomes float64 arithmetic, exact below 2^53. Every tensor carries its QONNX data type.

Before the file is put in its place it is read back, executed by QONNX and compared with
`Graph.run` on every edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.errors import GraphError, MismatchError, ToolError
from bitwright.files import atomic_write
from bitwright.formats import parse_format
from bitwright.ir import Graph, IntArray, Node, TensorType, bits_for_interval, random_feeds
from bitwright.lower.certificate import certify
from bitwright.lower.ranges import ChannelRange, analyse, compared_range

_DOMAIN = "qonnx.custom_op.general"
_OPSET = 13
_IR_VERSION = 10
_FLOAT32_EXACT = 1 << 24
_FLOAT64_EXACT = 1 << 53


@dataclass(frozen=True)
class ExportReport:
    """What was compared before the file was accepted."""

    path: Path
    frames: int
    edges: tuple[str, ...]
    values: int


def qonnx_type(kind: TensorType) -> str:
    """QONNX's name of the smallest data type that holds the levels of an edge."""
    if kind.is_bipolar:
        return "BIPOLAR"
    if kind.format is not None and kind.format.name == "ternary":
        return "TERNARY"
    return _interval_type(kind.lo, kind.hi)


def _interval_type(lo: int, hi: int) -> str:
    bits = bits_for_interval(lo, hi)
    if lo < 0:
        return f"INT{bits}"
    return "BINARY" if bits == 1 else f"UINT{bits}"


def to_nchw(levels: IntArray) -> IntArray:
    """``(N, H, W, C)`` -> ``(N, C, H, W)``; vectors unchanged."""
    return np.moveaxis(levels, -1, 1)


def from_nchw(levels: NDArray[Any]) -> NDArray[Any]:
    """Inverse of `to_nchw`."""
    return np.moveaxis(levels, 1, -1)


class _Writer:
    """Collects ONNX nodes, tensors and annotations for one graph."""

    def __init__(self, graph: Graph, batch: int) -> None:
        self.graph = graph
        self.batch = batch
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.infos: dict[str, Any] = {}
        self.datatypes: dict[str, str] = {}

    def shape(self, kind: TensorType) -> tuple[int, ...]:
        return (self.batch, kind.shape[-1], *kind.shape[:-1])

    def declare(self, name: str, shape: tuple[int, ...], datatype: str, element: str) -> str:
        """A tensor that flows: its shape, its element type, its QONNX data type ("" for none)."""
        from onnx import TensorProto, helper

        self.infos[name] = helper.make_tensor_value_info(name, getattr(TensorProto, element), shape)
        if datatype:
            self.datatypes[name] = datatype
        return name

    def edge(self, name: str) -> str:
        """Declare an edge of the graph."""
        kind = self.graph.types[name]
        producer = self.graph.producer(name)
        label = producer is not None and producer.op == "top_k"
        element = "INT64" if label else "FLOAT"
        return self.declare(name, self.shape(kind), qonnx_type(kind), element)

    def constant(self, name: str, value: NDArray[Any], datatype: str = "") -> str:
        from onnx import numpy_helper

        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        if datatype:
            self.datatypes[name] = datatype
        return name

    def levels(self, name: str, value: IntArray, datatype: str = "") -> str:
        """A constant of integers as float32."""
        if np.abs(value).max(initial=0) > _FLOAT32_EXACT:
            raise GraphError(f"{name} does not fit into float32 exactly", where=self.graph.name)
        kind = datatype or _interval_type(int(value.min()), int(value.max()))
        return self.constant(name, value.astype(np.float32), kind)

    def op(self, op: str, inputs: list[str], output: str, name: str, **attrs: Any) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attrs))

    def model(self) -> bytes:
        from onnx import helper
        from qonnx.core.datatype import DataType
        from qonnx.core.modelwrapper import ModelWrapper

        ends = {*self.graph.inputs, *self.graph.outputs}
        proto = helper.make_graph(
            self.nodes,
            self.graph.name,
            [self.infos[edge] for edge in self.graph.inputs],
            [self.infos[edge] for edge in self.graph.outputs],
            self.initializers,
            value_info=[info for name, info in self.infos.items() if name not in ends],
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_DOMAIN, 1)]
        made = helper.make_model(
            proto, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="bitwright"
        )
        helper.set_model_props(made, self._properties())
        wrapped = ModelWrapper(made)
        for name, datatype in self.datatypes.items():
            wrapped.set_tensor_datatype(name, DataType[datatype])
        return bytes(wrapped.model.SerializeToString())

    def _properties(self) -> dict[str, str]:
        """What ONNX has no place for: the digest, and the real value of level 1 of each end."""
        scales = {
            f"bitwright.scale.{edge}": ",".join(map(repr, self.graph.types[edge].scale))
            for edge in (*self.graph.inputs, *self.graph.outputs)
            if self.graph.types[edge].scale
        }
        return {"bitwright.digest": self.graph.digest, **scales}


def _conv(out: _Writer, node: Node) -> None:
    weight = np.moveaxis(node.params["weight"], 3, 1)
    kind = parse_format(node.string("weight_format")).qonnx_name
    inputs = [node.inputs[0], out.levels(f"{node.name}.weight", weight, kind)]
    if "bias" in node.params:
        inputs.append(out.levels(f"{node.name}.bias", node.params["bias"]))
    out.op(
        "Conv",
        inputs,
        node.output,
        node.name,
        kernel_shape=weight.shape[2:],
        strides=node.ints("stride"),
        pads=node.ints("padding"),
        dilations=node.ints("dilation"),
        group=node.integer("groups"),
    )


def _dense(out: _Writer, node: Node) -> None:
    kind = parse_format(node.string("weight_format")).qonnx_name
    weight = out.levels(f"{node.name}.weight", node.params["weight"].T, kind)
    if "bias" not in node.params:
        out.op("MatMul", [node.inputs[0], weight], node.output, node.name)
        return
    bias, target = node.params["bias"], out.graph.types[node.output]
    lo, hi = target.lo - int(bias.max()), target.hi - int(bias.min())
    product = out.declare(
        f"{node.name}.product", out.shape(target), _interval_type(lo, hi), "FLOAT"
    )
    out.op("MatMul", [node.inputs[0], weight], product, node.name)
    added = out.levels(f"{node.name}.bias", bias)
    out.op("Add", [product, added], node.output, f"{node.name}.add")


def _per_channel(values: NDArray[Any], rank: int) -> NDArray[Any]:
    """``(C or 1,)`` shaped to broadcast against NCHW or NC."""
    return values.reshape(1, -1, *[1] * (rank - 1))


def _threshold(out: _Writer, node: Node, seen: ChannelRange) -> None:
    source = out.graph.types[node.inputs[0]]
    compared, data = compared_range(node, seen), node.inputs[0]
    if "flip" in node.params and node.params["flip"].any():
        sign = _per_channel(1 - 2 * node.params["flip"], len(source.shape))
        far = max(abs(source.lo), abs(source.hi))
        signed = out.declare(
            f"{node.name}.signed", out.shape(source), _interval_type(-far, far), "FLOAT"
        )
        factor = out.levels(f"{node.name}.sign", sign, "INT2")
        out.op("Mul", [data, factor], signed, f"{node.name}.flip")
        data = signed
    thresholds = node.params["thresholds"]
    # Beyond the interval of the input a threshold has no effect, but may not fit into float32.
    lo, hi = (
        (np.array([end]) for end in compared.hull)
        if thresholds.shape[0] == 1
        else (compared.lo, compared.hi)
    )
    clipped = np.clip(thresholds, lo[:, np.newaxis], hi[:, np.newaxis] + 1)
    out.op(
        "MultiThreshold",
        [data, out.levels(f"{node.name}.thresholds", clipped)],
        node.output,
        node.name,
        domain=_DOMAIN,
        out_dtype=qonnx_type(out.graph.types[node.output]),
        out_scale=float(node.integer("step")),
        out_bias=float(node.integer("base")),
        data_layout="NCHW" if len(source.shape) == 3 else "NC",
    )


def _requant(out: _Writer, node: Node) -> None:
    """float64: cast, multiply, add, scale by 2^-shift (exact), round, clip, cast back."""
    shape = out.shape(out.graph.types[node.inputs[0]])
    rank, shift, rounding = len(shape) - 1, node.integer("shift"), node.string("rounding")
    steps: list[tuple[str, list[float] | NDArray[Any]]] = [
        ("Mul", _per_channel(node.params["multiplier"], rank)),
        ("Add", _per_channel(node.params["offset"], rank)),
        ("Mul", np.array(2.0**-shift)),
    ]
    if rounding == "half_up":
        steps.append(("Add", np.array(0.5)))
    wide = out.declare(f"{node.name}.wide", shape, "", "DOUBLE")
    out.op("Cast", [node.inputs[0]], wide, f"{node.name}.cast", to=11)
    for index, (op, operand) in enumerate(steps):
        constant = out.constant(f"{node.name}.k{index}", np.asarray(operand, np.float64))
        target = out.declare(f"{node.name}.v{index}", shape, "", "DOUBLE")
        out.op(op, [wide, constant], target, f"{node.name}.{op.lower()}{index}")
        wide = target
    rounded = out.declare(f"{node.name}.rounded", shape, "", "DOUBLE")
    out.op("Round" if rounding == "half_even" else "Floor", [wide], rounded, f"{node.name}.round")
    ends = [
        out.constant(f"{node.name}.{end}", np.array(node.integer(end), np.float64))
        for end in ("lo", "hi")
    ]
    clipped = out.declare(f"{node.name}.clipped", shape, "", "DOUBLE")
    out.op("Clip", [rounded, *ends], clipped, f"{node.name}.clip")
    out.op("Cast", [clipped], node.output, node.name, to=1)


def _flatten(out: _Writer, node: Node) -> None:
    source = out.graph.types[node.inputs[0]]
    data = node.inputs[0]
    if len(source.shape) == 3 and source.size != source.channels:
        turned = (out.batch, *source.shape)
        moved = out.declare(f"{node.name}.nhwc", turned, qonnx_type(source), "FLOAT")
        out.op("Transpose", [data], moved, f"{node.name}.transpose", perm=(0, 2, 3, 1))
        data = moved
    out.op("Flatten", [data], node.output, node.name, axis=1)


def _max_pool(out: _Writer, node: Node) -> None:
    out.op(
        "MaxPool",
        [node.inputs[0]],
        node.output,
        node.name,
        kernel_shape=node.ints("kernel"),
        strides=node.ints("stride"),
        pads=node.ints("padding"),
    )


def _write_node(out: _Writer, node: Node, seen: ChannelRange) -> None:
    match node.op:
        case "conv":
            _conv(out, node)
        case "dense":
            _dense(out, node)
        case "threshold":
            _threshold(out, node, seen)
        case "requant":
            _requant(out, node)
        case "max_pool":
            _max_pool(out, node)
        case "flatten":
            _flatten(out, node)
        case "top_k":
            out.op("ArgMax", [node.inputs[0]], node.output, node.name, axis=1, keepdims=1)
        case _:
            raise GraphError(f"{node.op} has no QONNX form", where=node.name)


def _check_exact(graph: Graph) -> None:
    """Refuse a graph whose numbers QONNX's floats cannot hold exactly."""
    for claim in certify(graph).claims:
        reach = max(-claim.lo, claim.hi, -claim.partial_lo, claim.partial_hi)
        limit, carrier = (
            (_FLOAT64_EXACT, "float64") if claim.op == "requant" else (_FLOAT32_EXACT, "float32")
        )
        if reach > limit:
            raise GraphError(
                f"its sums reach {reach}, more than {carrier} holds exactly ({limit})",
                where=claim.node,
                hint="QONNX carries integers as floats; use fewer bits or a smaller layer",
            )
    for edge, kind in graph.types.items():
        if max(-kind.lo, kind.hi) > _FLOAT32_EXACT:
            raise GraphError("its levels do not fit into float32 exactly", where=edge)


def qonnx_model(graph: Graph, *, batch: int = 1) -> bytes:
    """The graph as a serialised QONNX model with a fixed batch size.

    Raises:
        GraphError: a number could leave the exact range of QONNX's floats.
        ToolError: ``onnx`` or ``qonnx`` is not installed.
    """
    _need_qonnx()
    _check_exact(graph)
    ranges = analyse(graph)
    out = _Writer(graph, batch)
    for edge in graph.inputs:
        out.edge(edge)
    for node in graph:
        out.edge(node.output)
        _write_node(out, node, ranges[node.inputs[0]])
    return out.model()


def _need_qonnx() -> None:
    try:
        import onnx  # noqa: F401
        import qonnx.core.onnx_exec  # noqa: F401
    except ImportError as error:
        raise ToolError(
            f"QONNX export needs a package that is missing: {error.name}",
            hint="pip install 'onnx<1.22' qonnx onnxruntime",
        ) from error


def run_qonnx(
    model: bytes, graph: Graph, feeds: Mapping[str, IntArray], *, edges: bool = False
) -> dict[str, IntArray]:
    """Execute a model by QONNX's own executor, in the shapes of `Graph.run`.

    Args:
        model: from `qonnx_model` or read from a file.
        graph: gives the names and shapes of the edges.
        feeds: levels ``(N, *shape)``; N must be a multiple of the model's batch size.
        edges: return every edge of the graph, not only the outputs.

    Raises:
        ToolError: the packages are missing.
        MismatchError: a value that should be an integer is not one.
    """
    _need_qonnx()
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    wrapped = ModelWrapper(model)
    batch = wrapped.get_tensor_shape(graph.inputs[0])[0]
    names = [*graph.types] if edges else [*graph.outputs]
    parts: dict[str, list[IntArray]] = {name: [] for name in names}
    frames = len(feeds[graph.inputs[0]])
    for start in range(0, frames, batch):
        inputs = {
            edge: to_nchw(feeds[edge][start : start + batch]).astype(np.float32)
            for edge in graph.inputs
        }
        values = execute_onnx(wrapped, inputs, return_full_exec_context=True)
        for name in names:
            levels = from_nchw(values[name])
            whole = levels.astype(np.int64)
            if not np.array_equal(whole, levels):
                raise MismatchError("QONNX gives values that are no integers", where=name)
            parts[name].append(whole)
    return {name: np.concatenate(found) for name, found in parts.items()}


def _compare(model: bytes, graph: Graph, feeds: Mapping[str, IntArray]) -> int:
    """Run both, demand equality on every edge; returns the number of values compared."""
    expected = graph.run(feeds, edges=True)
    found = run_qonnx(model, graph, feeds, edges=True)
    for edge, levels in expected.items():
        differing = np.argwhere(levels != found[edge])
        if len(differing):
            at = tuple(int(i) for i in differing[0])
            raise MismatchError(
                f"{len(differing)} values differ, first at {at}: the graph gives {levels[at]}, "
                f"QONNX {found[edge][at]}",
                where=f"QONNX export, edge {edge}",
            )
    return sum(levels.size for levels in expected.values())


def export_qonnx(
    graph: Graph,
    path: Path,
    *,
    feeds: Mapping[str, IntArray] | None = None,
    frames: int = 4,
    seed: int = 0,
    batch: int = 1,
) -> ExportReport:
    """Write a QONNX file after proving that QONNX's executor agrees with the graph.

    Args:
        path: where to write; appears whole or not at all.
        feeds: levels to compare on, for instance of real images; random frames are always added.
        frames: number of random frames.
        batch: fixed batch size of the file.

    Raises:
        MismatchError: QONNX computes something else; nothing is written.
        GraphError, ToolError: see `qonnx_model`.
    """
    model = qonnx_model(graph, batch=batch)
    count = -(-frames // batch) * batch
    values = _compare(model, graph, random_feeds(graph, count, np.random.default_rng(seed)))
    if feeds is not None:
        given = len(feeds[graph.inputs[0]]) // batch * batch
        values += _compare(model, graph, {edge: feeds[edge][:given] for edge in graph.inputs})
        count += given
    atomic_write(path, model)
    return ExportReport(path, count, tuple(graph.types), values)
