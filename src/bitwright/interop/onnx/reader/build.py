# SPDX-License-Identifier: Apache-2.0
"""The state of one import: emits integer nodes for what ONNX tensors turn out to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from bitwright.base.errors import FormatError, GraphError
from bitwright.base.names import plain_word, visible
from bitwright.formats import parse_format
from bitwright.interop.onnx.reader import views
from bitwright.interop.onnx.reader.budget import Tensors
from bitwright.interop.onnx.reader.evaluate import Evaluator
from bitwright.interop.onnx.reader.levels import (
    MAX_STEPS,
    MAX_TABLE,
    Quantizer,
    as_step,
    format_for,
    whole_numbers,
)
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.rounds import requant_of, same_levels, split_at_rounding
from bitwright.interop.onnx.reader.softmax import Softmax
from bitwright.interop.onnx.reader.values import Const, Floats, Value, one_if_equal
from bitwright.ir import Attr, GraphBuilder, IntArray, TensorType, window_shape

INPUT = "x"
_QUANTIZE_FIRST = "put a quantizer (Quant, or QuantizeLinear and DequantizeLinear) in front of it"
_WHOLE = 1e-9
#: Work on a node of the graph and on a parameter (here and in the passes behind), and on an element
#: of a frame.
_MADE, _PARAMS, _FRAME = 800_000, 80, 16
_VIEWS = frozenset("Reshape Flatten Transpose Squeeze Unsqueeze Identity Dropout Shape".split())
#: What may read integers between a QuantizeLinear and its DequantizeLinear; other operators would
#: work on reals instead. Those with a message of their own are here, too.
_ON_CODES = _VIEWS | frozenset(
    "Clip Relu QuantizeLinear DequantizeLinear SpaceToDepth DepthToSpace MaxPool".split()
)
#: What may read a softmax, which is left to the host.
_ON_SOFTMAX = _VIEWS | frozenset("ArgMax TopK Softmax LogSoftmax".split())


class Made(NamedTuple):
    """How an edge was made, so that it can be made again a little differently."""

    op: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, Attr]
    params: Mapping[str, IntArray]


@dataclass(frozen=True)
class Row:
    """One node of the file: its name, its operator, and what it became."""

    node: str
    op: str
    became: str


@dataclass
class Importer:
    """One import at work.

    Attributes:
        tensors: what each ONNX tensor is by now.
        evaluator: of values; knows how much work is left.
        frames: shape (H, W, C) or (C,) of every edge, the real input's included.
        types: element types of ONNX tensors, as far as they are known.
        real_input: the input's value and quantizer, once it is quantized.
        batch: that the file spells out.
        became: rows of the report.
        notes: what the user should know, such as roundings that are not exact.
        labels: edges that hold indices of classes.
        rankable: whether the scores have an order that hardware can tell.
        softmaxes: ONNX tensors that are scores here -> the softmaxes of them that they are in the
            file, in their order.
    """

    builder: GraphBuilder
    tensors: Tensors
    evaluator: Evaluator
    batch: int = 1
    frames: dict[str, tuple[int, ...]] = field(default_factory=dict)
    types: dict[str, np.dtype[Any] | None] = field(default_factory=dict)
    real_input: tuple[Value, Quantizer] | None = None
    became: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cache: dict[object, str] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)
    rankable: bool = True
    softmaxes: dict[str, tuple[Softmax, ...]] = field(default_factory=dict)

    # -- reading ------------------------------------------------------------------------------

    def tensor(self, node: OnnxNode, place: int) -> Value | Const:
        """An input of a node."""
        if not node.has(place):
            raise node.error(f"has no input {place}")
        found = self.tensors[node.inputs[place]]
        if isinstance(found, Value) and found.border_any and node.op != "Conv":
            raise node.error("reads a Pad", "only a Conv can follow a Pad")
        if isinstance(found, Value) and found.codes is not None and node.op not in _ON_CODES:
            self.settled(found, node)
        if node.inputs[place] in self.softmaxes and node.op not in _ON_SOFTMAX:
            raise node.error(
                "works on a softmax", "only scores can have a softmax: the host computes it"
            )
        return found

    def data(self, node: OnnxNode, place: int) -> Value:
        """An input that changes with the network's input."""
        found = self.tensor(node, place)
        if isinstance(found, Const):
            raise node.error(f"input {place} is a constant; this operator works on the data")
        return found

    def const(self, node: OnnxNode, place: int) -> Const:
        """An input that must be a constant."""
        found = self.tensor(node, place)
        if isinstance(found, Value):
            raise node.error(
                f"input {place} ({node.inputs[place]}) changes with the network's input",
                "only constants are supported there",
            )
        return found

    def constant_at(self, node: OnnxNode, place: int) -> Const | None:
        """An input that must be a constant, None where the node leaves it out."""
        return self.const(node, place) if node.has(place) else None

    # -- emitting -----------------------------------------------------------------------------

    def add(
        self,
        op: str,
        inputs: tuple[str, ...],
        node: OnnxNode,
        attrs: Mapping[str, Attr] | None = None,
        params: Mapping[str, IntArray] | None = None,
    ) -> str:
        """Append an integer node; the dialect's complaints name the ONNX node."""
        held = sum(np.size(array) for array in (params or {}).values())
        self.evaluator.work.spend(node, _MADE + _PARAMS * held)
        try:
            edge = self.builder.add(
                op,
                inputs,
                name=self.builder.unique(identifier(node.name)),
                attrs=attrs,
                params=params,
                source=visible("_".join(node.name.split())),
            )
        except (GraphError, FormatError) as error:
            raise node.error(f"has no integer form: {error.message}", error.hint) from error
        self.frames[edge] = self.builder.types[edge].shape
        self.made[edge] = Made(op, inputs, attrs or {}, params or {})
        return edge

    def kind(self, value: Value) -> TensorType:
        """The type of a value's edge."""
        return self.builder.types[value.edge]

    def level_range(self, value: Value) -> tuple[int, int]:
        """The interval of a value's edge."""
        kind = self.kind(value)
        return kind.lo, kind.hi

    def frame(self, value: Value) -> tuple[int, ...]:
        """Shape of a value's edge, known for the real input too, behind its waiting pools."""
        frame = self.frames[value.edge]
        for pool in value.pools:
            rows, columns = window_shape(
                (frame[0], frame[1]), pool.kernel, pool.stride, pool.padding
            )
            frame = (rows, columns, frame[2])
        return frame

    # -- views --------------------------------------------------------------------------------

    def order(self, value: Value) -> IntArray:
        """The value's index array, written out."""
        return views.canonical(self.frame(value)) if value.order is None else value.order

    def viewed(self, value: Value, order: IntArray) -> Value:
        """The value with its elements in a new order (and shape)."""
        return replace(value, shape=order.shape, order=views.simplified(order, self.frame(value)))

    def constant(self, value: Value, const: Const, node: OnnxNode) -> Floats:
        """A constant that broadcasts against a value, as one number or one per edge channel.

        Raises:
            ModelError: it does not broadcast, or differs between pixels of a channel.
        """
        array = np.asarray(const.value, np.float64)
        if not np.isfinite(array).all():
            raise node.error("has a constant that is not finite")
        if array.size == 1:
            return array.reshape(1)
        if value.order is None and array.shape[-len(value.shape) + 1 :] == (
            value.shape[1],
            *[1] * (len(value.shape) - 2),
        ):
            return one_if_equal(array.ravel())  # (C, 1, 1) against NCHW: no pixels to look at
        try:
            spread = np.broadcast_to(array, value.shape)
        except ValueError as error:
            raise node.error(
                f"a constant of shape {array.shape} does not broadcast against {value.shape}"
            ) from error
        frame = self.frame(value)
        self.evaluator.work.spend(node, _FRAME * prod(frame))
        flat = np.zeros(prod(frame))
        flat[self.order(value).ravel()] = spread.ravel()
        pixels = flat.reshape(-1, frame[-1])
        if not (pixels == pixels[0]).all():
            raise node.error(
                f"a constant of shape {array.shape} differs between the pixels of a channel",
                "use one number, or one number a channel",
            )
        return one_if_equal(pixels[0])

    def vector(self, value: Value, node: OnnxNode) -> tuple[Value, IntArray | None]:
        """A rank-2 value on a vector edge, and the edge's element of each of its elements."""
        if len(value.shape) != 2 or value.shape[0] != 1:
            raise node.error(
                f"expects a matrix (N, features), its input has shape {value.shape}",
                "put a Flatten in front of it",
            )
        order = self.order(value).ravel()
        value = self.settled(value, node)
        frame = self.frame(value)
        if len(frame) != 1:
            flat, same = value.edge, same_levels(self.builder.types[value.edge])
            if same is not None:
                of_two = flat
                flat = self.cached(
                    ("one scale", of_two), lambda: self.add("requant", (of_two,), node, *same)
                )
            edge = self.cached(("flatten", flat), lambda: self.add("flatten", (flat,), node))
            pixels = int(np.prod(frame[:-1]))
            value = replace(value.spread(lambda c: np.tile(c, pixels)), edge=edge)
        plain = np.array_equal(order, np.arange(self.frame(value)[0]))
        place = None if plain else order
        return replace(value, order=None if plain else order[np.newaxis]), place

    def image(
        self, value: Value, node: OnnxNode, last: bool = False
    ) -> tuple[Value, IntArray | None]:
        """A rank-4 value on an image edge, and the edge's channel of each of its channels."""
        frame = self.frame(value)
        found = views.as_image(value.order, frame, last) if len(value.shape) == 4 else None
        if found is None and value.edge and len(frame) == 1:
            raise node.error(
                "takes an image, but its input is a vector that was never one",
                "use a dense layer (MatMul, Gemm) instead",
            )
        if found is None:
            raise node.error(
                f"takes an image (N, C, H, W), its input of shape {value.shape} is no image that "
                "hardware can stream",
                "a Reshape or Transpose before it mixes pixels in a way other than "
                "space-to-depth, flattening or channels-last",
            )
        if found.block > 1:
            value = self.settled(value, node)
            edge = self.cached(
                ("s2d", value.edge, found.block),
                lambda: self.add("space_to_depth", (value.edge,), node, {"block": found.block}),
            )
            copies = found.block**2
            value = replace(value.spread(lambda c: np.tile(c, copies)), edge=edge)
        order = views.permuted(self.frame(value), found.channels, last)
        return replace(value, order=order), found.channels

    def cached(self, key: object, make: Callable[[], str]) -> str:
        """An edge made once, however many read it."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    # -- from reals to levels -----------------------------------------------------------------

    def quantize(self, value: Value, quantizer: Quantizer, node: OnnxNode) -> Value:
        """The value after a quantizer: a threshold node, a table, or the network's input."""
        if not value.edge:
            return self._quantize_input(value, quantizer, node)
        value = replace(value, codes=None)
        edge = value.edge
        if not self._keeps(value, quantizer, node):
            self._check_pools(value, node)
            steps = tuple(step.key() for step in value.steps)
            key = ("quantize", edge, value.unit.tobytes(), quantizer.key(), steps)
            edge = self.cached(key, lambda: self._emit_quantizer(value, quantizer, node))
            for pool in value.pools:
                make = partial(self.add, "max_pool", (edge,), node, pool.attrs)
                edge = self.cached(("pool", edge, pool), make)
        step = None if value.pools else as_step(quantizer)
        before = step and (edge, value, step)
        return Value(edge, value.shape, value.order, quantizer.unit, before=before)

    def _quantize_input(self, value: Value, quantizer: Quantizer, node: OnnxNode) -> Value:
        if value.pools:
            raise node.error("a pool in front of the first quantizer", _QUANTIZE_FIRST)
        if self.real_input is not None:
            first, used = self.real_input
            same = used.key() == quantizer.key() and first.rows == value.rows
            if not same or [s.key() for s in first.steps] != [s.key() for s in value.steps]:
                raise node.error(
                    "is a second, different quantizer of the network's input",
                    "quantize the input once, or say which integers it takes: --input-type uint8 "
                    "(input_type='uint8' in Python)",
                )
        else:
            try:
                kind = parse_format(quantizer.format)
            except FormatError as error:
                raise node.error(error.message, error.hint) from error
            self.real_input = (value, quantizer)
            unit = tuple(float(u) for u in quantizer.unit)
            self.builder.input(
                INPUT, TensorType(self.frames[""], kind, unit, quantizer.lo, quantizer.hi)
            )
            self.frames[INPUT] = self.frames[""]
        return Value(INPUT, value.shape, value.order, quantizer.unit)

    def _check_pools(self, value: Value, node: OnnxNode) -> None:
        """Steps behind a waiting pool must rise, or the maximum would become a minimum."""
        for pool in value.pools:
            for step in value.steps[pool.after :]:
                if not (step.direction() >= 0).all():
                    raise node.error(
                        f"{step.op} behind a max pool reverses its order", _QUANTIZE_FIRST
                    )

    def _keeps(self, value: Value, quantizer: Quantizer, node: OnnxNode) -> bool:
        """Whether the quantizer changes no level (a second one with the same scale)."""
        lo, hi = self.level_range(value)
        if value.pools or hi - lo >= MAX_TABLE or (quantizer.lo, quantizer.hi) != (lo, hi):
            return False
        bipolar = self.kind(value).is_bipolar
        if bipolar != (quantizer.step != 1):
            return False
        levels = np.arange(lo, hi + 1, 2 if bipolar else 1)[:, None]
        return bool((self.evaluator.quantized(value, quantizer, levels, node) == levels).all())

    def _emit_quantizer(self, value: Value, quantizer: Quantizer, node: OnnxNode) -> str:
        lo, hi = self.level_range(value)
        rows = max(value.rows, quantizer.rows)
        direction = np.broadcast_to(value.direction(), (rows,)).copy()
        count = (quantizer.hi - quantizer.lo) // quantizer.step

        attrs: dict[str, Attr] = {"scale": tuple(float(u) for u in quantizer.unit)}
        if not np.isnan(direction).any() and 1 <= count <= MAX_STEPS:
            found = self.evaluator.thresholds(value, quantizer, (lo, hi), node)
            params = {"thresholds": found.thresholds}
            if found.flip.any():
                params["flip"] = found.flip.astype(np.int64)
            attrs |= {"base": quantizer.lo, "step": quantizer.step, "format": quantizer.format}
            return self.add("threshold", (value.edge,), node, attrs, params)
        if hi - lo >= MAX_TABLE:
            raise node.error(
                f"{count + 1} output levels of {hi - lo + 1} input levels: too many for thresholds "
                "and for a table",
                "use a quantizer of at most 8 bits, or a rising activation function",
            )
        every = np.broadcast_to(np.arange(lo, hi + 1)[:, None], (hi - lo + 1, rows))
        table = self.evaluator.quantized(value, quantizer, every, node).T
        return self.table(value.edge, table, attrs, node)

    def table(self, edge: str, table: IntArray, attrs: Mapping[str, Attr], node: OnnxNode) -> str:
        """A lookup node."""
        try:
            name = format_for(int(table.min()), int(table.max()))
        except FormatError as error:
            raise node.error(error.message, error.hint) from error
        return self.add("lookup", (edge,), node, {**attrs, "format": name}, {"table": table})

    # -- from anything to integers ------------------------------------------------------------

    def settled(self, value: Value, node: OnnxNode) -> Value:
        """A value on an edge, without waiting pools or an open QuantizeLinear."""
        if not value.edge:
            raise node.error(
                "gets real numbers: the network's input is not quantized",
                "say which integers it takes: --input-type uint8 (input_type='uint8' in Python), "
                f"with --input-scale; or {_QUANTIZE_FIRST}",
            )
        if value.codes is not None:
            raise node.error(
                "stands between a QuantizeLinear and its DequantizeLinear",
                "only Clip, Reshape and Transpose may stand there: export in the QDQ style",
            )
        if value.pools:
            raise node.error(
                "reads a max pool of values whose order is reversed and not quantized",
                _QUANTIZE_FIRST,
            )
        return value

    def linear(self, value: Value, node: OnnxNode) -> tuple[Value, Floats, Floats]:
        """A value whose real is ``gain * level + offset``; exact tables where steps are not affine.

        Raises:
            ModelError: it is not quantized.
        """
        value = self.settled(value, node)
        form = value.affine()
        if form is not None:
            return value, *form
        value = self.tabulated(value, node)
        form = value.affine()
        assert form is not None  # tabulated leaves affine steps at most
        return value, *form

    def requantized(self, value: Value, node: OnnxNode) -> Value | None:
        """The value on an edge of whole numbers, if among its steps is a rounding to them."""
        parts = split_at_rounding(value)
        if parts is None:
            return None
        try:
            made = requant_of(parts, self.kind(value))
        except FormatError as error:
            raise node.error(error.message, error.hint) from error
        if made is None:
            return None
        if isinstance(made, Quantizer):
            return replace(self.quantize(parts.whole, made, node), steps=parts.rest)
        edge = self.cached(
            (
                "requant",
                value.edge,
                *made.attrs.items(),
                *(a.tobytes() for a in made.params.values()),
            ),
            lambda: self.add("requant", (value.edge,), node, *made),
        )
        return Value(edge, value.shape, value.order, np.ones(1), parts.rest)

    def tabulated(self, value: Value, node: OnnxNode) -> Value:
        """Steps such as Relu on quantized levels, where they give whole levels again: a table.

        A rounding to whole numbers among the steps makes levels of 1.
        """
        found = self.requantized(value, node)
        if found is not None:
            return found
        lo, hi = self.level_range(value)
        unit = np.abs(value.unit)
        if hi - lo < MAX_TABLE and (unit > 0).all():
            levels = np.broadcast_to(np.arange(lo, hi + 1)[:, None], (hi - lo + 1, value.rows))
            exact = self.evaluator.reals(value, levels, node) / unit
            whole = np.rint(exact)
            if np.isfinite(exact).all() and (np.abs(exact - whole) <= _WHOLE).all():
                attrs: dict[str, Attr] = {"scale": tuple(float(u) for u in unit)}
                table = whole_numbers(whole.T)
                edge = self.cached(
                    ("table", value.edge, table.tobytes(), unit.tobytes()),
                    lambda: self.table(value.edge, table, attrs, node),
                )
                return Value(edge, value.shape, value.order, unit)
        raise node.error(
            f"gets real numbers: {value.steps[-1].op} before it gives no whole levels",
            _QUANTIZE_FIRST,
        )

    def shifted(self, value: Value, by: int, node: OnnxNode) -> str:
        """An edge whose levels are greater by a constant, made by its own threshold or table."""
        maker = self.made.get(value.edge)
        if maker is None or maker.op not in ("threshold", "lookup"):
            raise node.error(
                f"pads with real zero, but level {-by} of its input stands for zero",
                "quantize its input with zero point 0, or use no padding",
            )
        kind = self.kind(value)
        attrs: dict[str, Attr] = dict(maker.attrs)
        params = dict(maker.params)
        if maker.op == "threshold":
            attrs["base"] = int(str(attrs["base"])) + by
        else:
            params["table"] = params["table"] + by
        attrs["format"] = format_for(kind.lo + by, kind.hi + by)
        return self.cached(
            ("shift", value.edge, by),
            lambda: self.add(maker.op, maker.inputs, node, attrs, params),
        )


def identifier(text: str) -> str:
    """A name that graphs, files and Verilog accept."""
    clean = plain_word(text, joined=True)
    return clean if clean[:1].isalpha() else f"n_{clean}" if clean else "node"
