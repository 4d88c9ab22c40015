# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> the unfolded hardware graph: which blocks there are and how they are wired."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from bitwright.base.errors import ModelError, NoHardware
from bitwright.base.names import NameCounter
from bitwright.formats import parse_format
from bitwright.hw.blocks.requant import MAX_OUT_BITS, ROUNDINGS
from bitwright.hw.blocks.threshold import MAX_BITS
from bitwright.hw.dialect import HARDWARE
from bitwright.hw.operands import stream_operand, weight_operand
from bitwright.hw.own import taken
from bitwright.ir import Attr, Graph, GraphBuilder, IntArray, Node, TensorType


def template(graph: Graph) -> Graph:
    """The blocks of an integer graph, completely folded (PE = SIMD = 1), without converters and
    FIFOs.

    Raises:
        NoHardware: of a node.
        ModelError: an input is an output too, or nothing reads an edge.
    """
    builder = GraphBuilder(graph.name, HARDWARE)
    streams = _Streams(graph, builder)
    for edge in graph.inputs:
        streams.define_input(edge)
    for node in graph:
        try:
            _map_node(node, streams)
        except NoHardware:
            raise
        except ModelError as error:
            where, hint = error.where, error.hint
            raise NoHardware(error.message, node=node.name, where=where, hint=hint) from error
    return builder.finish(*(streams.outputs[edge] for edge in graph.outputs))


def _map_node(node: Node, streams: _Streams) -> None:
    """The blocks of a node: the user's own, or those of its operation."""
    graph = streams.graph
    own = taken(node, tuple(graph.types[edge] for edge in node.inputs))
    if own is not None:
        _map_same(own, streams)
        return
    if node.op not in _MAPPERS:
        known = f"operations with hardware are {', '.join(sorted(_MAPPERS))}"
        raise _no_hardware(node, f"the operation {node.op!r} has no hardware block", known)
    _check_codes(node, graph)
    _MAPPERS[node.op](node, streams)


def _no_hardware(node: Node, what: str, hint: str) -> NoHardware:
    return NoHardware(what, node=node.name, where=node.source or node.name, hint=hint)


# What moves values without computing with them, compares them, or multiplies them.
_TAKES_CODES = frozenset({"conv", "dense", "max_pool", "space_to_depth", "upsample", "flatten"})


def _check_codes(node: Node, graph: Graph) -> None:
    """Streams of unevenly spaced levels carry codes, which few blocks can read.

    Raises:
        ModelError: this one cannot.
    """
    for edge in node.inputs:
        kind = graph.types[edge]
        if kind.code_format is None:
            continue
        if node.op not in _TAKES_CODES:
            raise _no_hardware(
                node,
                f"{node.op} of {kind.code_format.name} numbers has no hardware",
                f"only {', '.join(sorted(_TAKES_CODES))} take them; use an integer format for the "
                "activation in front",
            )
        stream_operand(kind, node.source or node.name)


class _Streams:
    """Which stream each reader of an integer edge gets; a stream has one reader, else a fork."""

    def __init__(self, graph: Graph, builder: GraphBuilder) -> None:
        self.graph, self.builder = graph, builder
        self._free: dict[str, deque[str]] = {}
        self._reads = Counter(edge for node in graph for edge in node.inputs)
        self._taken = {*graph.types, *(node.name for node in graph)}
        self._counter = NameCounter()
        self.outputs: dict[str, str] = {}

    def fresh(self, stem: str) -> str:
        """A name that neither graph has: ``relu_1`` may be a node of the user's."""
        return self._counter.free(stem, self._taken, self.builder)

    def define(self, edge: str, make: Callable[[str], str]) -> None:
        """Make the stream of an integer edge, and a tree of forks if it has several readers.

        A graph output keeps the edge's name, so that hardware and integer graph have the same
        outputs.
        """
        is_output = edge in self.graph.outputs
        readers = self._reads[edge] + is_output
        is_input = edge in self.graph.inputs
        stream = make(edge if readers < 2 or is_input else self.fresh(f"{edge}_all"))
        if readers == 0:
            where = (self.graph.producer(edge) or self.graph.nodes[0]).name
            raise ModelError(f"nothing reads {edge!r}", where=where, hint="remove dead nodes first")
        if is_input and is_output:
            raise ModelError(f"input {edge!r} is also an output: there is nothing to build")
        streams = []
        for index in range(readers - 1):
            last = index == readers - 2
            first = edge if is_output and index == 0 else self.fresh(f"{edge}_{index}")
            rest = self.fresh(f"{edge}_{index + 1}" if last else f"{edge}_rest{index}")
            name = self.fresh(f"{edge}_fork")
            self.builder.add("fork", (stream,), name=name, outputs=(first, rest))
            streams.append(first)
            stream = rest
        streams.append(stream)
        if is_output:
            self.outputs[edge] = streams.pop(0)
        self._free[edge] = deque(streams)

    def define_input(self, edge: str) -> None:
        """As `define`, for an input of the graph."""
        kind = self.graph.types[edge]
        self.define(edge, lambda name: self.builder.input(name, kind))

    def take(self, node: Node) -> list[str]:
        """The streams that a node of the integer graph reads, one for each input; an edge that it
        reads twice comes in two streams.
        """
        return [self._free[edge].popleft() for edge in node.inputs]

    def emit(
        self,
        node: Node,
        inputs: Sequence[str],
        op: str,
        attrs: Mapping[str, Attr],
        params: Mapping[str, IntArray] | None = None,
    ) -> None:
        """The block that makes the result of a node of the integer graph, under its name."""
        self.define(
            node.output,
            lambda name: self.builder.append(
                Node(node.name, op, tuple(inputs), (name,), attrs, params or {}, node.source)
            ),
        )

    def add(self, node: Node, part: str, op: str, inputs: Sequence[str], **attrs: Attr) -> str:
        """A block in front of the one that `emit` makes; its output stream."""
        name = self.fresh(f"{node.name}_{part}")
        return self.builder.add(op, tuple(inputs), name=name, attrs=attrs, source=node.source)

    def image(self, node: Node) -> None:
        """Make sure that a node reads an image.

        Raises:
            ModelError: it does not.
        """
        shape = self.graph.types[node.inputs[0]].shape
        if len(shape) != 3:
            raise ModelError(f"{node.op} needs an image, got shape {shape}", where=node.name)


@dataclass(frozen=True)
class _Shape:
    """The window in front of a node; `groups` is the attribute of the block."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    @property
    def span(self) -> tuple[int, int]:
        """Rows and columns of the image that one window covers."""
        rows, columns = (d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        return rows, columns


def _add_border(node: Node, streams: _Streams, stream: str, value: int, shape: _Shape) -> str:
    """A pad. Where the first window ends in front of the first pixel, its result depends on no
    input: the pad must not send the border of a frame that never comes.
    """
    padding = node.ints("padding")
    if not any(padding):
        return stream
    kind = streams.builder.types[stream].format
    if kind is not None and not bool(kind.contains(value).all()):
        raise _no_hardware(
            node,
            f"an image of format {kind.name} has no level {value} to pad with",
            "use an activation format with a zero in front of this layer, or no padding",
        )
    rows, columns = shape.span
    ahead = (rows - 1, columns - 1) < padding[:2]  # in the order of the stream
    return streams.add(
        node, "pad", "pad", [stream], padding=padding, value=value, wait_for_input=int(ahead)
    )


def _window_attrs(streams: _Streams, stream: str, shape: _Shape) -> dict[str, Attr]:
    """Attributes of a window; its buffer lets writer and reader run side by side across rows."""
    width = streams.builder.types[stream].shape[1]
    rows, columns = shape.span
    return {
        "kernel": shape.kernel,
        "stride": shape.stride,
        "dilation": shape.dilation,
        "groups": shape.groups,
        "pixels": (rows - 1 + shape.stride[0]) * width + columns,
    }


def _add_window(node: Node, streams: _Streams, stream: str, shape: _Shape) -> str:
    if prod(shape.kernel) == 1 and prod(shape.stride) == 1:
        return stream
    attrs = _window_attrs(streams, stream, shape)
    return streams.add(node, "window", "window", [stream], **attrs)


def _map_conv(node: Node, streams: _Streams) -> None:
    """A window and a matrix unit; one unit a channel where each output channel reads one input
    channel of its own.
    """
    _check_weights(node)
    weight, groups = node.params["weight"], node.integer("groups")
    rows, kernel_h, kernel_w, columns = weight.shape
    depthwise = groups > 1 and columns == 1 and rows == groups
    shape = _Shape(
        (kernel_h, kernel_w),
        node.ints("stride"),
        node.ints("dilation"),
        0 if depthwise else groups,
    )
    (stream,) = streams.take(node)
    stream = _add_border(node, streams, stream, 0, shape)
    stream = _add_window(node, streams, stream, shape)
    params = {**node.params, "weight": weight.reshape(rows, -1)}
    attrs = {key: node.attrs[key] for key in ("weight_format", "weight_scale")}
    if node.op == "conv_rounded":
        attrs |= _rounded(node, kernel_h * kernel_w * columns, depthwise=depthwise)
    if depthwise:
        streams.emit(node, [stream], "depthwise", attrs, params)
    else:
        streams.emit(node, [stream], "matvec", {**attrs, "groups": groups}, params)


def _rounded(node: Node, terms: int, *, depthwise: bool) -> dict[str, Attr]:
    """Attributes of a unit whose accumulator rounds: a step of the sum is one of the unit.

    Raises:
        ModelError: no unit has such steps.
    """
    tile = min(node.integer("tile"), terms)
    if terms % tile or (depthwise and tile not in (1, terms)):
        raise _no_hardware(
            node,
            f"{terms} products of a sum in steps of {tile} have no hardware",
            "a channel's own products are added one by one or all at once"
            if depthwise
            else f"take a divisor of {terms}: every step of the unit adds as many",
        )
    return {"tile": tile, "simd": tile, **{name: node.integer(name) for name in ("drop", "bits")}}


def _map_dense(node: Node, streams: _Streams) -> None:
    _check_weights(node)
    streams.emit(node, streams.take(node), "matvec", node.attrs, node.params)


def _check_weights(node: Node) -> None:
    """Raises ModelError unless there is a multiplier for the node's weights."""
    kind = parse_format(node.string("weight_format"))
    weight_operand(kind, node.params["weight"], node.source or node.name)


def _map_activation(node: Node, streams: _Streams) -> None:
    """A threshold or requantization, within what the modules take.

    Raises:
        ModelError: it is not.
    """
    output = streams.graph.types[node.output]
    if streams.graph.types[node.inputs[0]].is_bipolar:
        raise _no_hardware(
            node,
            f"{node.op} of a bipolar tensor has no hardware",
            "remove this activation: its input has two values only",
        )
    if node.op == "threshold":
        _check_threshold(node, output)
    else:
        _check_requant(node, output)
    _map_same(node, streams)


def _check_threshold(node: Node, output: TensorType) -> None:
    count, step = int(node.params["thresholds"].shape[1]), node.integer("step")
    _check_evenly_spaced(node, output)
    if count.bit_length() > MAX_BITS:
        raise _no_hardware(
            node,
            f"{count} thresholds a channel: the hardware searches at most {2**MAX_BITS - 1}",
            f"use an activation of at most {MAX_BITS} bits, or requantization",
        )
    if step != 1 and not output.is_bipolar:
        raise _no_hardware(
            node,
            f"thresholds with step {step} have no hardware",
            "use an activation format whose levels are one apart, or bipolar",
        )


def _check_requant(node: Node, output: TensorType) -> None:
    lo, hi, rounding = node.integer("lo"), node.integer("hi"), node.string("rounding")
    if node.op == "requant_float":
        to = f"{node.string('format')} within {lo} .. {hi}"
        limits, fits = "limits on both sides of 0", lo <= 0 <= hi
    else:
        _check_evenly_spaced(node, output)
        to = f"{output.wire_bits} bits"
        limits, fits = f"at most {MAX_OUT_BITS} bits", output.wire_bits <= MAX_OUT_BITS
    if not fits or rounding not in ROUNDINGS:
        raise _no_hardware(
            node,
            f"no hardware requantizes to {to} by {rounding}",
            f"{limits}; rounding {', '.join(ROUNDINGS)}",
        )


def _check_evenly_spaced(node: Node, output: TensorType) -> None:
    if output.code_format is not None:
        raise _no_hardware(
            node,
            f"{node.op} to {node.string('format')} has no hardware",
            "requant_float makes minifloats, lookup any format",
        )


def _map_same(node: Node, streams: _Streams) -> None:
    """An operation that the hardware dialect has under the same name with the same attributes."""
    streams.emit(node, streams.take(node), node.op, node.attrs, node.params)


def _map_pool(node: Node, streams: _Streams) -> None:
    """A window and what joins its pixels; the whole image needs no window."""
    streams.image(node)
    op, border = "pool_sum", 0
    if node.op == "max_pool":
        op, border = "pool_max", streams.graph.types[node.inputs[0]].lo
    shape = _Shape(node.ints("kernel"), node.ints("stride"))
    (stream,) = streams.take(node)
    stream = _add_border(node, streams, stream, border, shape)
    whole = shape.kernel == streams.builder.types[stream].shape[:2]
    if not whole:
        stream = _add_window(node, streams, stream, shape)
    streams.emit(node, [stream], op, {"window": 0 if whole else prod(shape.kernel)})


def _map_concat(node: Node, streams: _Streams) -> None:
    """A chain of joins of two.

    Raises:
        ModelError: there is one part only.
    """
    if len(node.inputs) < 2:
        raise _no_hardware(
            node, "a concatenation of one part has no hardware", "remove it: it does nothing"
        )
    stream, *others, last = streams.take(node)
    for number, other in enumerate(others):
        stream = streams.add(node, f"part{number}", "concat", [stream, other])
    streams.emit(node, [stream, last], "concat", {})


def _map_space_to_depth(node: Node, streams: _Streams) -> None:
    """A window as large as its stride: its order (kh, kw, c) is that of the operation."""
    block = node.integer("block")
    (stream,) = streams.take(node)
    shape = _Shape((block, block), (block, block))
    streams.emit(node, [stream], "window", _window_attrs(streams, stream, shape))


_MAPPERS: dict[str, Callable[[Node, _Streams], None]] = {
    "conv": _map_conv,
    "conv_rounded": _map_conv,
    "dense": _map_dense,
    "threshold": _map_activation,
    "requant": _map_activation,
    "requant_float": _map_activation,
    "max_pool": _map_pool,
    "sum_pool": _map_pool,
    "concat": _map_concat,
    "space_to_depth": _map_space_to_depth,
    **dict.fromkeys(("add", "lookup", "upsample", "flatten", "top_k"), _map_same),
}
