# SPDX-License-Identifier: Apache-2.0
"""The overflow certificate: for every accumulator the worst case, and an input that attains it.

A certificate is a claim that can be checked without trusting whoever made it. For the claim
``lo <= sum <= hi`` two things are shown:

* *it is reached*: `Witness` says which inputs of one window sit at the upper end of their interval
  and which at the lower end. `witness_inputs` rebuilds that feature map and the reference kernels
  compute the sum: it must equal the claim.
* *it is not exceeded*: for any other input x within the intervals,
  ``hi - sum(x) = sum_i |w_i| * |x_i - x*_i| >= 0``, because the witness x* sits at the end to which
  the sign of ``w_i`` points.

`check` derives every figure again and executes every witness, and raises where anything differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError, MismatchError
from bitwright.base.files import parse_json
from bitwright.formats import Format, parse_format
from bitwright.ir import INTEGER, ChannelRange, Graph, IntArray, Node, bits_for_interval
from bitwright.lower.ranges import (
    DotRange,
    add_min_max,
    analyse,
    as_conv,
    dot_range,
    product_range,
)

SCHEMA = 1


@dataclass(frozen=True)
class Witness:
    """An input that attains a bound.

    Attributes:
        channel: the output channel (row) of the accumulator.
        position: output pixel (oh, ow) of the window; (0, 0) for a vector.
        at_hi: hexadecimal, one bit an input of the window in the order (kh, kw, c), first input in
            the most significant bit of the first digit: 1 = upper end of its interval, 0 = lower.
        count: number of inputs, as the last digit may be padded with zeros.
    """

    channel: int
    position: tuple[int, int]
    at_hi: str
    count: int


@dataclass(frozen=True)
class AccumulatorClaim:
    """Everything claimed of one accumulator.

    Attributes:
        node, source, op: which one, and the user's layer.
        terms: number of products in one sum (MW).
        weight_bits, input_bits: widths of the two operands.
        lo, hi: exact worst case of the finished sum, bias included.
        partial_lo, partial_hi: exact worst case of all partial sums in any order (for a requant:
            of the product, the sum with the offset, and that plus half a unit for rounding).
        width: bits of a two's complement (or unsigned) register that holds all of these.
        naive_width: the bound without looking at the weights: weight bits + input bits +
            ceil(log2(terms)); with a bias, one more than the wider of that and the bias.
        low, high: inputs that attain lo and hi.
    """

    node: str
    source: str
    op: str
    terms: int
    weight_bits: int
    input_bits: int
    lo: int
    hi: int
    partial_lo: int
    partial_hi: int
    width: int
    naive_width: int
    low: Witness
    high: Witness

    @property
    def saved(self) -> int:
        """Bits saved against the naive width."""
        return self.naive_width - self.width


@dataclass(frozen=True)
class Certificate:
    """All accumulators of one graph, named by the graph's digest."""

    graph: str
    digest: str
    claims: tuple[AccumulatorClaim, ...]

    def claim(self, node: str) -> AccumulatorClaim:
        """The claim of a node.

        Raises:
            MismatchError: there is none.
        """
        for claim in self.claims:
            if claim.node == node:
                return claim
        raise MismatchError("the certificate has no claim for this accumulator", where=node)

    def to_json(self) -> str:
        """The certificate as JSON text; `from_json` reads it back."""
        body = {"schema": SCHEMA, "graph": self.graph, "digest": self.digest}
        return json.dumps({**body, "claims": [asdict(c) for c in self.claims]}, indent=1) + "\n"

    def table(self) -> str:
        """The certificate as a text table, one accumulator a line."""
        head = ("accumulator", "terms", "lo", "hi", "partial lo", "partial hi", "bits", "naive")
        rows: list[tuple[str, ...]] = [(*head, "saved")]
        for c in self.claims:
            numbers = (c.terms, c.lo, c.hi, c.partial_lo, c.partial_hi, c.width, c.naive_width)
            rows.append((c.node, *map(str, numbers), str(c.saved)))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(widths[i]) if i == 0 else cell.rjust(widths[i])
                for i, cell in enumerate(row)
            )
            for row in rows
        )


def from_json(text: str) -> Certificate:
    """Inverse of `Certificate.to_json`.

    Raises:
        DataError: not a certificate, or one of another version.
    """
    try:
        body: dict[str, Any] = parse_json(text)
        if body["schema"] != SCHEMA:
            raise DataError(
                f"certificate of schema {body['schema']!r}, expected {SCHEMA}",
                hint="make it again with this version",
            )
        claims = tuple(
            AccumulatorClaim(
                **{**c, "low": _witness_from(c["low"]), "high": _witness_from(c["high"])}
            )
            for c in body["claims"]
        )
        return Certificate(str(body["graph"]), str(body["digest"]), claims)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"not an overflow certificate: {error}") from error


def _witness_from(body: dict[str, Any]) -> Witness:
    row, column = body["position"]
    return Witness(
        int(body["channel"]), (int(row), int(column)), str(body["at_hi"]), int(body["count"])
    )


def _pack(bits: NDArray[np.bool_]) -> str:
    return np.packbits(bits.astype(np.uint8)).tobytes().hex()


def _unpack(witness: Witness) -> IntArray:
    packed = np.frombuffer(bytes.fromhex(witness.at_hi), np.uint8)
    return np.unpackbits(packed, count=witness.count).astype(np.int64)


def naive_width(weight_bits: int, input_bits: int, terms: int, bias: IntArray | None) -> int:
    """Width of an accumulator without looking at the weights."""
    width = weight_bits + input_bits + ceil(log2(terms))
    if bias is None:
        return width
    return max(width, bits_for_interval(int(bias.min()), int(bias.max()))) + 1


def _register(lo: int, hi: int) -> int:
    return bits_for_interval(min(lo, 0), max(hi, 0))


def _level_bits(number_format: Format) -> int:
    """Bits of a code; of an integer with a zero point those of its levels, which may be more."""
    if number_format.is_integer and number_format.min_level != number_format.min_code:
        return bits_for_interval(number_format.min_level, number_format.max_level)
    return number_format.bits


def _claim(
    node: Node,
    final: ChannelRange,
    partial: tuple[int, int],
    factors: IntArray,
    bits: tuple[int, int],
    bias: IntArray | None = None,
    at: tuple[IntArray, IntArray] | None = None,
) -> AccumulatorClaim:
    """The claim of a node whose channels are sums of products.

    Args:
        factors: ``(channels, terms)``, whose signs say which end of an input attains a bound.
        bits: widths of weights and inputs.
        at: ``(channels, 2)`` positions that attain the lower and the upper bounds; (0, 0) if left
            out.
    """
    (lo, hi), terms = final.hull, factors.shape[1]
    low_at, high_at = at or (np.zeros((len(factors), 2), np.int64),) * 2

    def witness(row: int, places: IntArray, at_hi: NDArray[np.bool_]) -> Witness:
        return Witness(row, (int(places[row, 0]), int(places[row, 1])), _pack(at_hi), terms)

    row_lo, row_hi = int(final.lo.argmin()), int(final.hi.argmax())
    return AccumulatorClaim(
        node=node.name,
        source=node.source,
        op=node.op,
        terms=terms,
        weight_bits=bits[0],
        input_bits=bits[1],
        lo=lo,
        hi=hi,
        partial_lo=partial[0],
        partial_hi=partial[1],
        width=_register(min(lo, partial[0]), max(hi, partial[1])),
        naive_width=naive_width(*bits, terms, bias),
        low=witness(row_lo, low_at, factors[row_lo] < 0),
        high=witness(row_hi, high_at, factors[row_hi] > 0),
    )


def _dot_claim(graph: Graph, node: Node, found: DotRange) -> AccumulatorClaim:
    source = graph.types[node.inputs[0]]
    dot = as_conv(node, source.channels) if node.op == "sum_pool" else node
    weight = dot.params["weight"]
    weight_bits = _level_bits(parse_format(dot.string("weight_format")))
    input_bits = source.wire_bits if source.format is None else _level_bits(source.format)
    return _claim(
        node,
        found.final,
        found.partial.hull,
        weight.reshape(len(weight), -1),
        (weight_bits, input_bits),
        node.params.get("bias"),
        (found.low_at, found.high_at),
    )


def _product_claim(graph: Graph, node: Node, inputs: ChannelRange) -> AccumulatorClaim:
    found = product_range(node, inputs)
    multiplier, offset = node.params["multiplier"], node.params["offset"]
    lo, hi = found.hull
    # On the way: the bare product, the sum, and the sum with half a unit added for rounding.
    shift = node.integer("shift")
    if node.op == "requant_float":
        # The place of rounding follows the magnitude: at most half of its leading bit is added.
        reach = max(abs(lo), abs(hi)).bit_length()
        shift += max(0, reach - node.integer("significant") - shift)
    half = (1 << shift) >> 1
    partial_lo = min(0, lo, int((found.lo - offset).min()))
    partial_hi = max(0, hi + half, int((found.hi - offset).max()))
    weight_bits = bits_for_interval(int(multiplier.min()), int(multiplier.max()))
    factors = np.broadcast_to(multiplier, inputs.lo.shape)[:, np.newaxis]
    bits = (weight_bits, graph.types[node.inputs[0]].wire_bits)
    return _claim(node, found, (partial_lo, partial_hi), factors, bits, offset)


def _add_claim(graph: Graph, node: Node, operands: tuple[ChannelRange, ...]) -> AccumulatorClaim:
    low, high = add_min_max(node, operands)
    final = ChannelRange(low.sum(axis=0), high.sum(axis=0))
    partial_lo = int(np.minimum(low, 0).sum(axis=0).min())
    partial_hi = int(np.maximum(high, 0).sum(axis=0).max())
    first, second = node.ints("multipliers")
    both = node.inputs[0] == node.inputs[1]
    if both:  # one tensor, but the hardware makes two products: either may stand alone
        alone = [m * end for m in (first, second) for end in operands[0].hull]
        partial_lo, partial_hi = min(partial_lo, *alone), max(partial_hi, *alone)
    factors = np.broadcast_to([first + second] * 2 if both else [first, second], (low.shape[1], 2))
    weight_bits = max(bits_for_interval(min(m, 0), max(m, 0)) for m in (first, second))
    bits = (weight_bits, max(graph.types[edge].wire_bits for edge in node.inputs))
    return _claim(node, final, (partial_lo, partial_hi), factors, bits)


def _claims(graph: Graph) -> tuple[AccumulatorClaim, ...]:
    ranges = analyse(graph)
    claims = []
    for node in graph:
        inputs = tuple(ranges[edge] for edge in node.inputs)
        if node.op in ("conv", "dense", "sum_pool"):
            claims.append(_dot_claim(graph, node, dot_range(graph, node, inputs[0])))
        elif node.op in ("requant", "requant_float"):
            claims.append(_product_claim(graph, node, inputs[0]))
        elif node.op == "add":
            claims.append(_add_claim(graph, node, inputs))
    return tuple(claims)


def certify(graph: Graph) -> Certificate:
    """The overflow certificate of an integer graph."""
    return Certificate(graph.name, graph.digest, _claims(graph))


def _window(graph: Graph, node: Node, witness: Witness) -> tuple[IntArray, IntArray, IntArray]:
    """Rows, columns and channels of the input that each bit of a witness speaks of."""
    if node.op == "sum_pool":
        node = as_conv(node, graph.types[node.inputs[0]].channels)
    if node.op != "conv":
        channels = np.arange(witness.count) if node.op == "dense" else np.array([witness.channel])
        zero = np.zeros(len(channels), np.int64)
        return zero, zero, channels
    rows, kernel_h, kernel_w, width = node.params["weight"].shape
    group = witness.channel // (rows // node.integer("groups"))
    stride, padding, dilation = node.ints("stride"), node.ints("padding"), node.ints("dilation")
    kh, kw, c = np.unravel_index(np.arange(witness.count), (kernel_h, kernel_w, width))
    return (
        witness.position[0] * stride[0] - padding[0] + kh * dilation[0],
        witness.position[1] * stride[1] - padding[1] + kw * dilation[1],
        c + group * width,
    )


def witness_inputs(
    graph: Graph, node: Node, witness: Witness, ranges: Mapping[str, ChannelRange]
) -> tuple[IntArray, ...]:
    """The inputs of a node that a witness describes, levels ``(1, *shape)``.

    What lies outside the window does not matter and sits at the lower end of its interval.

    Args:
        ranges: from `analyse`.
    """
    if node.op == "add":
        return tuple(
            _uniform(graph, edge, ranges[edge], bool(at_hi))
            for edge, at_hi in zip(node.inputs, _unpack(witness), strict=True)
        )
    kind, seen = graph.types[node.inputs[0]], ranges[node.inputs[0]]
    image = np.broadcast_to(seen.lo, kind.shape).copy()
    height, width = kind.shape[:2] if len(kind.shape) == 3 else (1, 1)
    rows, columns, channels = _window(graph, node, witness)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    level = np.where(_unpack(witness) == 1, seen.hi[channels], seen.lo[channels])
    pixels = image.reshape(height, width, -1)
    pixels[rows[inside], columns[inside], channels[inside]] = level[inside]
    return (image[np.newaxis],)


def _uniform(graph: Graph, edge: str, seen: ChannelRange, at_hi: bool) -> IntArray:
    """Every element at one end of its channel's interval."""
    image: IntArray = np.broadcast_to(seen.hi if at_hi else seen.lo, graph.types[edge].shape)
    return image[np.newaxis]


def attained(
    graph: Graph, node: Node, witness: Witness, ranges: Mapping[str, ChannelRange] | None = None
) -> int:
    """What the reference kernels compute at a witness, before a requant's shift."""
    feeds = witness_inputs(graph, node, witness, analyse(graph) if ranges is None else ranges)
    if node.op in ("requant", "requant_float"):
        values = feeds[0] * node.params["multiplier"] + node.params["offset"]
    else:
        types = tuple(graph.types[edge] for edge in node.inputs)
        (values,) = INTEGER.spec(node).reference(node, types, feeds)
    place = witness.position if values.ndim == 4 else (0,) * (values.ndim - 2)
    return int(values[(0, *place, witness.channel)])


def _fail(claim: AccumulatorClaim, what: str) -> None:
    raise MismatchError(
        what, where=f"overflow certificate, {claim.node}", hint="certify the graph again"
    )


def _check_claim(
    graph: Graph,
    claim: AccumulatorClaim,
    derived: AccumulatorClaim,
    ranges: Mapping[str, ChannelRange],
) -> None:
    for name, value in asdict(replace(derived, low=claim.low, high=claim.high)).items():
        given = asdict(claim)[name]
        if given != value:
            _fail(claim, f"claims {name} = {given}, the graph gives {value}")
    node = graph.node(claim.node)
    for side, bound in (("low", claim.lo), ("high", claim.hi)):
        witness: Witness = getattr(claim, side)
        channels = graph.types[node.output].channels
        expected = getattr(derived, side).count
        if not 0 <= witness.channel < channels or witness.count != expected:
            _fail(claim, f"the {side} witness does not fit the node")
        found = attained(graph, node, witness, ranges)
        if found != bound:
            _fail(claim, f"its {side} witness gives {found}, not {bound}")
    if _register(claim.partial_lo, claim.partial_hi) > claim.width:
        _fail(claim, f"{claim.width} bits do not hold [{claim.partial_lo}, {claim.partial_hi}]")


def check(certificate: Certificate, graph: Graph) -> None:
    """Prove a certificate against a graph.

    Every figure is derived again from the graph's weights, and every witness is executed by the
    reference kernels.

    Raises:
        MismatchError: the certificate belongs to another graph, misses an accumulator, claims
            a wrong figure, or a witness does not attain its bound.
    """
    if certificate.digest != graph.digest:
        raise MismatchError(
            f"the certificate is of graph {certificate.digest}, this is {graph.digest}",
            where=f"overflow certificate, {graph.name}",
            hint="certify the graph again",
        )
    derived = _claims(graph)
    names = [claim.node for claim in certificate.claims]
    if names != [claim.node for claim in derived]:
        raise MismatchError(
            f"the certificate speaks of {names}, the graph has {[c.node for c in derived]}",
            where=f"overflow certificate, {graph.name}",
        )
    ranges = analyse(graph)
    for claim, again in zip(certificate.claims, derived, strict=True):
        _check_claim(graph, claim, again, ranges)
