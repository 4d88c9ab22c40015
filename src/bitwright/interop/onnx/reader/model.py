# SPDX-License-Identifier: Apache-2.0
"""An ONNX file as plain values, every one of them checked: nothing after this sees a protobuf.

Only the Python parts of ``onnx`` run on the file (its protobuf parser and its decoder of tensors,
the latter after sizes are known to be right). The C++ checker, shape inference and ONNX Runtime
never see a file from outside: they can crash the process, and nothing here needs them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError, ModelError, ToolError
from bitwright.base.files import file_inside, held_size, read_bytes
from bitwright.base.regular import open_regular
from bitwright.interop.protobuf import parsed
from bitwright.ir.types import MAX_FRAME, MAX_NODES

Array = NDArray[Any]

MAX_FILE = 1 << 31
MAX_ELEMENTS = 1 << 27
MAX_RANK = 8
#: Operator set of a file that does not say which it uses.
OPSET = 13
_UNDEFINED, _STRING, _COMPLEX = 0, 8, (14, 15)
_HALF_BYTE = (21, 22)


@dataclass(frozen=True)
class OnnxNode:
    """One node.

    Attributes:
        name: unique: its own, or made from its operator and place.
        opset: version of the standard domain, which says what the operator means.
    """

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = OPSET

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"node {self.name} ({self.op})"

    def has(self, place: int) -> bool:
        """Whether the optional input is there."""
        return len(self.inputs) > place and bool(self.inputs[place])

    def ints(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        value = self.attrs.get(name, default)
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            raise self.error(f"attribute {name} must be a list of integers, got {value!r}")
        return value

    def integer(self, name: str, default: int) -> int:
        """An attribute that is one integer."""
        value = self.attrs.get(name, default)
        if not isinstance(value, int):
            raise self.error(f"attribute {name} must be an integer, got {value!r}")
        return value

    def real(self, name: str, default: float) -> float:
        """An attribute that is one finite number."""
        value = self.attrs.get(name, default)
        if not isinstance(value, int | float) or not np.isfinite(value):
            raise self.error(f"attribute {name} must be a number, got {value!r}")
        return float(value)

    def string(self, name: str, default: str) -> str:
        """An attribute that is text."""
        value = self.attrs.get(name, default)
        if not isinstance(value, str):
            raise self.error(f"attribute {name} must be a string, got {value!r}")
        return value

    def array(self, name: str) -> Array:
        """An attribute that is a tensor."""
        value = self.attrs.get(name)
        if not isinstance(value, Stored):
            raise self.error(f"attribute {name} must be a tensor, got {value!r}")
        return value.read()

    def error(self, message: str, hint: str | None = None) -> ModelError:
        """A complaint about this node."""
        return ModelError(message, where=self.where, hint=hint)


@dataclass(frozen=True)
class TensorInfo:
    """A graph input or output; None is a dynamic dimension, dtype None an unknown one."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str | None


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A checked model.

    Attributes:
        nodes: in topological order.
        inputs: without those that are constants.
        constants: initializers by name, not decoded yet.
        datatypes: QONNX's data type annotations by tensor.
        opset: version of the standard domain.
        size: bytes that the file and the files beside it bring, as far as its tensors lie there.
    """

    name: str
    nodes: tuple[OnnxNode, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    constants: Mapping[str, Stored]
    datatypes: Mapping[str, str]
    opset: int
    size: int


def read_model(source: Path | bytes) -> OnnxModel:
    """Read and check a file, or the bytes of one.

    Raises:
        DataError: it cannot be read, is no ONNX, truncated, or has data of the wrong size.
        ModelError: a tensor made twice, a cycle, a missing tensor, an unsupported construct.
        ToolError: the package ``onnx`` is missing.
    """
    where = "ONNX file" if isinstance(source, bytes) else str(source)
    body = source if isinstance(source, bytes) else read_bytes(source, most=MAX_FILE)
    folder = None if isinstance(source, bytes) else source.resolve().parent
    graph, opset = _parse(body, where)
    if len(graph.node) > MAX_NODES:
        raise ModelError(f"{len(graph.node)} nodes; at most {MAX_NODES} are read", where=where)
    constants: dict[str, Stored] = {}
    for proto in graph.initializer:
        name = _text(proto.name)
        if name in constants:
            raise ModelError(f"two initializers are named {name!r}", where=where)
        constants[name] = stored_tensor(proto, f"initializer {name}", folder)
    if len(graph.sparse_initializer):
        raise ModelError(
            "sparse initializers are not supported", where=where, hint="store them dense"
        )
    inputs = tuple(_info(v, "input") for v in graph.input if _text(v.name) not in constants)
    outputs = tuple(_info(v, "output") for v in graph.output)
    nodes = _nodes(graph, folder, opset)
    ordered = _sorted_nodes(nodes, {*constants, *(i.name for i in inputs)}, outputs)
    held = len(body) if isinstance(source, bytes) else min(len(body), held_size(source))
    size = held + _beside([*constants.values(), *inner_tensors(nodes)])
    notes = _annotations(graph)
    return OnnxModel(_text(graph.name), ordered, inputs, outputs, constants, notes, opset, size)


def inner_tensors(nodes: Iterable[OnnxNode]) -> Iterator[Stored]:
    """Tensors that nodes bring themselves."""
    return (v for node in nodes for v in node.attrs.values() if isinstance(v, Stored))


def _beside(tensors: list[Stored]) -> int:
    """Bytes of other files that tensors show; those that several show count once."""
    shown: Counter[Path] = Counter()
    for tensor in tensors:
        if tensor.data is not None:
            shown[tensor.data.path] += tensor.data.length
    return sum(min(count, held_size(path)) for path, count in shown.items())


_BROKEN = "is no ONNX file, or is truncated or damaged"


def _parse(body: bytes, where: str) -> tuple[Any, int]:
    try:
        import onnx
    except ImportError as error:
        raise ToolError(
            f"reading ONNX needs a package that is missing: {error.name}",
            hint="pip install 'onnx<1.22'",
        ) from error
    hint = "export or copy it again"
    model = parsed(onnx.ModelProto, body, where, broken=_BROKEN, hint=hint)
    if not model.HasField("graph") or not len(model.graph.output):
        raise DataError(f"{_BROKEN}: it has no graph with outputs", where=where)
    if len(model.functions):
        raise ModelError(
            "it defines functions of its own, which are not supported",
            where=where,
            hint="inline them: onnx.inliner.inline_local_functions",
        )
    versions = {o.version for o in model.opset_import if _text(o.domain) in ("", "ai.onnx")}
    if len(versions) > 1:
        said = f"it names {len(versions)} versions of the standard operators, {sorted(versions)}"
        raise ModelError(said, where=where, hint="export it again")
    return model.graph, int(versions.pop()) if versions else OPSET


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _annotations(graph: Any) -> dict[str, str]:
    return {
        _text(note.tensor_name): _text(entry.value)
        for note in graph.quantization_annotation
        for entry in note.quant_parameter_tensor_names
        if _text(entry.key) == "finn_datatype"
    }


def _info(value: Any, role: str) -> TensorInfo:
    from onnx import TensorProto, helper

    where = f"{role} {_text(value.name)}"
    if not value.type.HasField("tensor_type"):
        raise ModelError("is no tensor (a sequence, map or optional)", where=where)
    tensor = value.type.tensor_type
    shape: list[int | None] = []
    for dim in tensor.shape.dim:
        fixed = dim.HasField("dim_value")
        if fixed and not 0 < dim.dim_value <= MAX_ELEMENTS:
            raise ModelError(f"has a dimension of {dim.dim_value}", where=where)
        shape.append(int(dim.dim_value) if fixed else None)
    if prod(d or 1 for d in shape) > MAX_FRAME:
        raise ModelError(f"shape {shape} has more than {MAX_FRAME} elements", where=where)
    known = tensor.elem_type in TensorProto.DataType.values() and tensor.elem_type not in (
        _UNDEFINED,
        _STRING,
    )
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if known else None
    return TensorInfo(_text(value.name), tuple(shape), dtype)


class Data(NamedTuple):
    """A piece of a file beside the model."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of a file: its dimensions fit its data, which are decoded when they are needed.

    Attributes:
        where: how messages name it.
        nbytes: of the array.
        data: where its bytes lie, if beside the file.
    """

    where: str
    nbytes: int
    data: Data | None
    _proto: Any

    def read(self) -> Array:
        """The array.

        Raises:
            DataError: it cannot be decoded, or the file beside the model cannot be read.
        """
        from onnx import TensorProto, numpy_helper

        proto = self._proto
        if self.data is not None:
            proto = TensorProto(data_type=proto.data_type, dims=proto.dims)
            self.fill(proto)
        try:
            return np.array(numpy_helper.to_array(proto))
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"cannot be decoded: {error}", where=self.where) from error

    def fill(self, proto: Any) -> None:
        """Put the bytes beside the file, if they lie there, into a TensorProto.

        Raises:
            DataError: that file cannot be read.
        """
        if self.data is not None:
            proto.raw_data = bytes_beside(self.data, self.where)
            del proto.external_data[:]
            proto.ClearField("data_location")

    def error(self, message: str, hint: str | None = None) -> ModelError:
        """A complaint about this tensor."""
        return ModelError(message, where=self.where, hint=hint)


def stored_tensor(proto: Any, where: str, folder: Path | None) -> Stored:
    """A TensorProto, after its dimensions and the size of its data were checked.

    Raises:
        DataError: they do not fit each other.
        ModelError: strings, complex numbers, or an external file outside the model's folder.
    """
    from onnx import TensorProto, helper

    kind, dims = proto.data_type, list(proto.dims)
    if kind not in TensorProto.DataType.values() or kind in (_UNDEFINED, _STRING, *_COMPLEX):
        raise ModelError(f"has the unsupported element type {kind}", where=where)
    if len(dims) > MAX_RANK or any(d < 0 for d in dims) or _product(dims) > MAX_ELEMENTS:
        raise DataError(f"impossible dimensions {dims}", where=where)
    count = prod(dims)
    width = helper.tensor_dtype_to_np_dtype(kind).itemsize
    size = -(-count // 2) if kind in _HALF_BYTE else count * width
    if proto.data_location == TensorProto.EXTERNAL:
        return Stored(where, count * width, _external(proto, where, folder, size), proto)
    if proto.HasField("raw_data"):
        if len(proto.raw_data) != size:
            raise DataError(
                f"{len(proto.raw_data)} bytes of data, dimensions {dims} need {size}",
                where=where,
                hint="the file is damaged; export it again",
            )
        if any(len(getattr(proto, name)) for name in _FIELDS):
            raise DataError("holds its numbers twice", where=where, hint="export it again")
    else:
        held = len(getattr(proto, helper.tensor_dtype_to_field(kind)))
        if held not in (count, -(-count // 2) if kind in _HALF_BYTE else count):
            raise DataError(f"{held} values, dimensions {dims} need {count}", where=where)
    return Stored(where, count * width, None, proto)


#: Where a tensor has its numbers, if not as bytes.
_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def _product(dims: list[int]) -> int:
    total = 1
    for dim in dims:
        total = min(total * max(dim, 1), MAX_ELEMENTS + 1)
    return total


def _external(proto: Any, where: str, folder: Path | None, size: int) -> Data:
    facts = {_text(entry.key): _text(entry.value) for entry in proto.external_data}
    name = facts.get("location", "")
    if folder is None:
        raise ModelError(
            "its data lie in another file", where=where, hint="load the model by its path"
        )
    try:
        path = file_inside(folder, name)
    except (OSError, ValueError):
        raise ModelError(
            f"its data are said to lie in {name!r}, which is no file in the model's folder",
            where=where,
            hint="put the data file beside the model; files elsewhere are never opened",
        ) from None
    try:
        offset, length = int(facts.get("offset", 0)), int(facts.get("length", size))
        if offset < 0 or length != size or offset + length > path.stat().st_size:
            raise ValueError(f"bytes {offset} .. {offset + length} do not fit")
    except (OSError, ValueError) as error:
        raise DataError(f"external data of {name}: {error}", where=where) from error
    return Data(path, offset, length)


def bytes_beside(data: Data, where: str) -> bytes:
    try:
        with open_regular(data.path) as file:
            file.seek(data.offset)
            body = file.read(data.length)
    except OSError as error:
        raise DataError(f"external data of {data.path.name}: {error}", where=where) from error
    if len(body) != data.length:
        raise DataError(f"external data of {data.path.name} end too soon", where=where)
    return body


def _attributes(proto: Any, where: str, folder: Path | None) -> dict[str, Any]:
    from onnx import AttributeProto as A

    plain = {
        A.FLOAT: lambda a: float(a.f),
        A.INT: lambda a: int(a.i),
        A.STRING: lambda a: _text(a.s),
        A.FLOATS: lambda a: tuple(float(v) for v in a.floats),
        A.INTS: lambda a: tuple(int(v) for v in a.ints),
        A.STRINGS: lambda a: tuple(_text(v) for v in a.strings),
        A.TENSOR: lambda a: stored_tensor(a.t, f"{where}, attribute {_text(a.name)}", folder),
    }
    found: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.type not in plain:
            raise ModelError(
                f"attribute {_text(attribute.name)} is a subgraph or of an unsupported kind",
                where=where,
                hint="control flow (If, Loop, Scan) has no hardware; export a static graph",
            )
        name = _text(attribute.name)
        if name in found:
            raise ModelError(f"has two attributes {name}", where=where, hint="export it again")
        found[name] = plain[attribute.type](attribute)
    return found


def _nodes(graph: Any, folder: Path | None, opset: int) -> list[OnnxNode]:
    taken: set[str] = set()
    nodes = []
    for index, proto in enumerate(graph.node):
        op = _text(proto.op_type)
        name = _text(proto.name) or f"{op}_{index}"
        while name in taken:
            name = f"{name}_{index}"
        taken.add(name)
        attrs = _attributes(proto, f"node {name} ({op})", folder)
        ends = (tuple(map(_text, proto.input)), tuple(map(_text, proto.output)))
        nodes.append(OnnxNode(name, op, _text(proto.domain), *ends, attrs, opset))
    return nodes


def _makers(
    nodes: list[OnnxNode], known: set[str], outputs: tuple[TensorInfo, ...]
) -> dict[str, int]:
    """Which node makes each tensor; every tensor is made once, every output is made."""
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in makers or name in known:
                raise node.error(f"makes tensor {name!r}, which exists already", "rename one")
            makers[name] = index
    for output in outputs:
        if output.name not in makers and output.name not in known:
            raise ModelError(f"no node makes the graph's output {output.name!r}")
    return makers


def _sorted_nodes(
    nodes: list[OnnxNode], known: set[str], outputs: tuple[TensorInfo, ...]
) -> tuple[OnnxNode, ...]:
    """Topological order, the file's own where it is one."""
    makers = _makers(nodes, known, outputs)
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for index, node in enumerate(nodes):
        sorter.add(index)
        for name in filter(None, node.inputs):
            if name in makers:
                sorter.add(index, makers[name])
            elif name not in known:
                raise node.error(f"reads tensor {name!r}, which nothing makes")
    try:
        sorter.prepare()
    except CycleError as error:
        stuck = nodes[error.args[1][0]]
        hint = "a network has no loops"
        raise stuck.error("lies on a cycle: it needs its own output", hint) from error
    ready: list[int] = []
    ordered: list[OnnxNode] = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
        index = heapq.heappop(ready)
        ordered.append(nodes[index])
        sorter.done(index)
    return tuple(ordered)
