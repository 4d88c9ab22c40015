# SPDX-License-Identifier: Apache-2.0
"""Collects ONNX nodes, tensors and annotations for one integer graph. Images are NCHW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bitwright.base.errors import GraphError, MismatchError, ToolError
from bitwright.ir import Graph, IntArray, TensorType, bits_for_interval

QONNX_DOMAIN = "qonnx.custom_op.general"
OPSET = 13
IR_VERSION = 10
FLOAT32_EXACT = 1 << 24
FLOAT64_EXACT = 1 << 53


def need_onnx(*modules: str) -> None:
    """Raise if a package is missing.

    Raises:
        ToolError: says how to install it.
    """
    from importlib import import_module

    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise ToolError(
                f"the export needs a package that is missing: {error.name}",
                hint="pip install 'onnx<1.22' qonnx onnxruntime",
            ) from error


def qonnx_type(kind: TensorType) -> str:
    """QONNX's name of the smallest data type that holds the levels of an edge."""
    if kind.is_bipolar:
        return "BIPOLAR"
    if kind.format is not None and kind.format.name == "ternary":
        return "TERNARY"
    return interval_type(kind.lo, kind.hi)


def interval_type(lo: int, hi: int) -> str:
    """QONNX's name of the smallest integer type that holds an interval."""
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


def per_channel(values: NDArray[Any], rank: int) -> NDArray[Any]:
    """``(C or 1,)`` shaped to broadcast against NCHW or NC; rank counts no batch axis."""
    return values.reshape(1, -1, *[1] * (rank - 1))


class Writer:
    """The file being written.

    Args:
        batch: its batch size; a string makes it dynamic.
    """

    def __init__(self, graph: Graph, batch: int | str) -> None:
        self.graph = graph
        self.batch = batch
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.infos: dict[str, Any] = {}
        self.datatypes: dict[str, str] = {}

    def shape(self, kind: TensorType) -> tuple[int | str, ...]:
        """The ONNX shape of an edge."""
        return (self.batch, kind.shape[-1], *kind.shape[:-1])

    def declare(
        self, name: str, shape: tuple[int | str, ...], datatype: str, element: str = "FLOAT"
    ) -> str:
        """A tensor that flows: its shape, its QONNX data type ("" for none), its element type."""
        from onnx import TensorProto, helper

        self.infos[name] = helper.make_tensor_value_info(name, getattr(TensorProto, element), shape)
        if datatype:
            self.datatypes[name] = datatype
        return name

    def edge(self, name: str) -> str:
        """Declare an edge of the graph."""
        kind = self.graph.types[name]
        element = "INT64" if self.is_label(name) else "FLOAT"
        return self.declare(name, self.shape(kind), qonnx_type(kind), element)

    def is_label(self, name: str) -> bool:
        """Whether an edge holds indices that nothing in the graph reads: ONNX gives them as int64,
        which none of its other operators takes together with floats.
        """
        producer = self.graph.producer(name)
        return producer is not None and producer.op == "top_k" and not self.graph.consumers(name)

    def constant(self, name: str, value: NDArray[Any], datatype: str = "") -> str:
        """An initializer."""
        from onnx import numpy_helper

        # ascontiguousarray would turn a scalar into a vector of one.
        self.initializers.append(numpy_helper.from_array(np.array(value, order="C"), name))
        if datatype:
            self.datatypes[name] = datatype
        return name

    def levels(self, name: str, value: IntArray, datatype: str = "") -> str:
        """A constant of integers as float32."""
        if np.abs(value).max(initial=0) > FLOAT32_EXACT:
            raise GraphError(f"{name} does not fit into float32 exactly", where=self.graph.name)
        kind = datatype or interval_type(int(value.min()), int(value.max()))
        return self.constant(name, value.astype(np.float32), kind)

    def op(
        self, op: str, inputs: Sequence[str], output: str | Sequence[str], name: str, **attrs: Any
    ) -> None:
        """Append a node."""
        from onnx import helper

        outputs = [output] if isinstance(output, str) else list(output)
        self.nodes.append(helper.make_node(op, list(inputs), outputs, name=name, **attrs))

    def apply(
        self,
        op: str,
        inputs: Sequence[str],
        name: str,
        shape: tuple[int | str, ...],
        datatype: str = "",
        *,
        element: str = "FLOAT",
        **attrs: Any,
    ) -> str:
        """Append a node with an output of its own, of its name; see `declare`."""
        self.op(op, inputs, self.declare(name, shape, datatype, element), name, **attrs)
        return name

    def real(self, name: str, value: float) -> str:
        """A constant of one float32."""
        return self.constant(name, np.array(value, np.float32))

    def ends(self, name: str, lo: int, hi: int, dtype: DTypeLike) -> list[str]:
        """Two constants: the last two inputs of a ``Clip``."""
        found = (("lo", lo), ("hi", hi))
        return [self.constant(f"{name}.{end}", np.array(value, dtype)) for end, value in found]

    def model(self, inputs: Sequence[str], outputs: Sequence[str], domains: Sequence[str]) -> Any:
        """The finished ModelProto, without annotations.

        Args:
            domains: of the operators used, besides the standard one.

        Raises:
            GraphError: an output stands there twice, or is an input: ONNX has no such files.
        """
        from onnx import helper

        ends = {*inputs, *outputs}
        if len(ends) < len(inputs) + len(outputs):
            twice = next(name for name in outputs if [*inputs, *outputs].count(name) > 1)
            raise GraphError(
                "is an output twice, or an input and an output; in ONNX files each has its name",
                where=twice,
                hint="name it once as an output, or put a node between the input and the output",
            )
        proto = helper.make_graph(
            self.nodes,
            self.graph.name,
            [self.infos[name] for name in inputs],
            [self.infos[name] for name in outputs],
            self.initializers,
            value_info=[info for name, info in self.infos.items() if name not in ends],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        opsets += [helper.make_opsetid(domain, 1) for domain in domains]
        made = helper.make_model(
            proto, opset_imports=opsets, ir_version=IR_VERSION, producer_name="bitwright"
        )
        helper.set_model_props(made, self._properties())
        return made

    def _properties(self) -> dict[str, str]:
        """What ONNX has no place for: the digest, and the real value of level 1 of each end."""
        scales = {
            f"bitwright.scale.{edge}": ",".join(map(repr, self.graph.types[edge].scale))
            for edge in (*self.graph.inputs, *self.graph.outputs)
            if self.graph.types[edge].scale
        }
        return {"bitwright.digest": self.graph.digest, **scales}


def check_exact(graph: Graph) -> None:
    """Refuse a graph whose numbers the floats of ONNX cannot hold exactly.

    Raises:
        GraphError: names the node or edge.
    """
    from bitwright.lower.certificate import certify

    for claim in certify(graph).claims:
        reach = max(-claim.lo, claim.hi, -claim.partial_lo, claim.partial_hi)
        wide = claim.op in ("requant", "requant_float")
        limit, carrier = (FLOAT64_EXACT, "float64") if wide else (FLOAT32_EXACT, "float32")
        if reach > limit:
            raise GraphError(
                f"its sums reach {reach}, more than {carrier} holds exactly ({limit})",
                where=claim.node,
                hint="ONNX carries integers as floats; use fewer bits or a smaller layer",
            )
    for node in graph:
        for index, factor in enumerate(node.ints("multipliers") if node.op == "add" else ()):
            kind = graph.types[node.inputs[index]]
            if max(-kind.lo, kind.hi) * abs(factor) > FLOAT32_EXACT:
                raise GraphError("its products do not fit into float32 exactly", where=node.name)
    for edge, kind in graph.types.items():
        if max(-kind.lo, kind.hi) > FLOAT32_EXACT:
            raise GraphError("its levels do not fit into float32 exactly", where=edge)


def float_scale(kind: TensorType, edge: str) -> NDArray[np.float32]:
    """The scale of an edge as float32: a normal number, as are the reals of all levels but 0.

    Raises:
        GraphError: float32 holds the scale, or the real of its largest level, as 0, infinity or
            with fewer digits.
    """
    with np.errstate(over="ignore", under="ignore"):
        scale = np.array(kind.scale, np.float32)
        reach = scale * np.float32(max(-kind.lo, kind.hi, 1))
    if not np.isfinite(reach).all() or (scale < np.finfo(np.float32).tiny).any():
        raise GraphError(
            f"its scale, {min(kind.scale):g} to {max(kind.scale):g}, leaves what float32 holds",
            where=edge,
            hint="ONNX carries reals as float32; scale the last layer",
        )
    return scale


def require_equal(
    expected: Mapping[str, NDArray[Any]], found: Mapping[str, NDArray[Any]], tool: str
) -> int:
    """How many values were compared, if all are equal.

    Raises:
        MismatchError: names the first that is not.
    """
    for edge, values in expected.items():
        differing = np.argwhere(values != found[edge])
        if len(differing):
            at = tuple(int(i) for i in differing[0])
            raise MismatchError(
                f"{len(differing)} values differ, first at {at}: the graph gives {values[at]}, "
                f"{tool} {found[edge][at]}",
                where=f"ONNX export, edge {edge}",
            )
    return sum(values.size for values in expected.values())
