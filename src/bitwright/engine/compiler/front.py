# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> layers of the engine: products fused with what follows them, channels placed.

Flattening and concatenation become addresses; what has no mapping is refused by name. `top_k` is
left to the host, which the image says.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np

from bitwright.base.errors import ModelError, NoHardware
from bitwright.engine.compiler import draft as drafts
from bitwright.engine.compiler.columns import columns_of, widened
from bitwright.engine.compiler.draft import Draft, no_mapping
from bitwright.engine.compiler.finish import (
    copied,
    fits,
    kept,
    lined,
    looked_up,
    requantized,
    signed_back,
    thresholded,
    whole_threshold,
)
from bitwright.engine.compiler.network import Network
from bitwright.engine.compiler.nibbles import Families
from bitwright.engine.compiler.pooling import can_pool, pooled, rising
from bitwright.engine.compiler.values import EITHER, SIGNED, UNSIGNED, Layer, Post, Value
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import Bits, Result
from bitwright.ir import INTEGER, Graph, IntArray, Node, TensorType

_ACTIVATIONS = ("threshold", "requant", "lookup")
_PRODUCTS = ("conv", "dense", "add", "sum_pool", "max_pool")
_OPERATIONS = (
    *_ACTIVATIONS, *_PRODUCTS, "flatten", "concat", "space_to_depth", "upsample", "top_k",
)  # fmt: skip
_MOST = (1 << 31) - 1
#: Of an image: each row may become a strip of its own, and each strip is planned; columns have the
#: 16 bits of INPUT.
_MOST_ROWS, _MOST_COLUMNS = 4096, (1 << 16) - 1
#: Times that a network is made anew since lanes of 4 bits were refused somewhere.
_MOST_ATTEMPTS = 8


def network_of(graph: Graph, config: EngineConfig) -> Network:
    """The layers of a graph.

    Raises:
        ModelError: a node has no mapping; says which, why, and the nearest thing that has one.
    """
    if graph.dialect.name != INTEGER.name:
        raise ModelError(f"the engine runs integer graphs, not {graph.dialect.name} ones")
    for edge, kind in graph.types.items():
        if len(kind.shape) == 3 and (kind.shape[0] > _MOST_ROWS or kind.shape[1] > _MOST_COLUMNS):
            raise ModelError(
                f"an image of {kind.shape[0]} x {kind.shape[1]}; the engine's have at most "
                f"{_MOST_ROWS} x {_MOST_COLUMNS}",
                where=f"engine, {edge}",
                hint="use smaller images; those of one row may be signals",
            )
    families = Families(graph)
    for attempt in count():
        if attempt == _MOST_ATTEMPTS:
            families.refuse_all()
        before = len(families.refused)
        try:
            network = _Front(graph, config, families).run()
        except ModelError:
            if len(families.refused) == before:
                raise
        else:
            if len(families.refused) == before:
                return network
    raise AssertionError


class _Front:
    def __init__(self, graph: Graph, config: EngineConfig, families: Families) -> None:
        self.graph, self.config, self.families = graph, config, families
        self.network = Network.of(graph)
        self.values: dict[str, Value] = {}

    def run(self) -> Network:
        for node in self.graph:
            if node.op not in _OPERATIONS:
                levels = "requantize to int8 or uint8"
                streaming = "build it as streaming hardware (hardware.kind: streaming)"
                raise no_mapping(
                    node,
                    f"{node.op} is not done by the engine",
                    levels if node.op == "requant_float" else streaming,
                )
        for edge in self.graph.inputs:
            kind = self.graph.types[edge]
            if not fits(kind):
                reason = f"an input in [{kind.lo}, {kind.hi}] has more than 8 bits"
                hint, where = "quantize the input to uint8 or int8", f"engine, {edge}"
                readers = self.graph.consumers(edge)
                if not readers:
                    raise ModelError(reason, where=where, hint=hint)
                raise NoHardware(reason, node=readers[0].name, edge=edge, where=where, hint=hint)
            size, channels = self._size(kind), kind.channels
            columns = columns_of(self.graph, edge, self.config)
            if columns is not None:
                self.network.columns[edge] = columns
                size, channels = (size[0], columns.width), columns.taps * channels
            value = self._new_value(edge, kind, size, np.arange(channels))
            self.values[edge] = self.network.inputs[edge] = value
        for node in self.graph:
            if node.op in _ACTIVATIONS:
                self._note(node)
            elif node.op == "top_k":
                self._host(node)
        for edge in self.graph.outputs:
            producer = self.graph.producer(edge)
            if producer is None or producer.op != "top_k":
                self.network.outputs[edge] = self.output(edge)
        return self.network

    def _note(self, node: Node) -> None:
        """The value of an activation; or of the max pool behind it, if the product takes it in."""
        readers = self.graph.consumers(node.output)
        if len(readers) == 1 and readers[0].op == "max_pool" and not self._is_output(node.output):
            channels = self.graph.types[node.output].channels
            found = rising(node, channels)
            value = found and self._pooled(node.inputs[0], *found, readers[0], readers[0].output)
            if value is not None:
                self.values[readers[0].output] = value
                return
        self.values[node.output] = self.activate(node.inputs[0], node)

    def _is_output(self, edge: str) -> bool:
        return edge in self.graph.outputs

    def _host(self, node: Node) -> None:
        if self.graph.consumers(node.output):
            raise no_mapping(
                node, "top_k is done by the host, so nothing can follow it", "make it an output"
            )
        self.network.host.append(node)
        self.network.outputs[node.inputs[0]] = self.output(node.inputs[0])

    @staticmethod
    def _size(kind: TensorType) -> tuple[int, int]:
        return (kind.shape[0], kind.shape[1]) if len(kind.shape) == 3 else (1, 1)

    def _new_value(
        self, name: str, kind: TensorType, size: tuple[int, int], places: IntArray,
        lanes: int | None = None,
    ) -> Value:  # fmt: skip
        """A value of 8-bit lanes."""
        most = int(places.max()) + 1 if lanes is None else lanes
        planes = -(-most // self.config.lanes)
        sign = SIGNED if kind.lo < 0 else UNSIGNED if kind.hi > 127 else EITHER
        return Value(name, *size, planes, places.astype(np.int64), (sign,) * planes)

    # Values of edges --------------------------------------------------------------------------

    def value(self, edge: str) -> Value:
        """The 8-bit value of an edge, made by a layer of its own if need be."""
        if edge not in self.values:
            self.values[edge] = self._make(edge)
        return self.values[edge]

    def _make(self, edge: str) -> Value:
        node, kind = self.graph.producer(edge), self.graph.types[edge]
        assert node is not None
        if node.op == "flatten":
            return self.value(node.inputs[0])
        if node.op == "concat":
            return self._concat(node)
        if not fits(kind):
            raise no_mapping(
                node,
                f"its result in [{kind.lo}, {kind.hi}] has more than 8 bits and is read by "
                f"{', '.join(n.op for n in self.graph.consumers(edge)) or 'an output'}",
                "put an activation or a quantizer behind it",
            )
        if node.op == "space_to_depth":
            draft = drafts.unfolded(node, self.value(node.inputs[0]), self.config)
            return self._layer(draft, kept(draft, kind), edge, kind)
        if node.op == "upsample":
            return self._upsample(node)
        draft = self.product(node)
        return self._layer(draft, kept(draft, kind), edge, kind)

    def output(self, edge: str) -> Value:
        """The value of an output of the graph: of 8 bits, or raw sums."""
        node = self.graph.producer(edge)
        while node is not None and node.op == "flatten" and edge not in self.values:
            edge = node.inputs[0]
            node = self.graph.producer(edge)
        if edge in self.values or fits(self.graph.types[edge]):
            return self.value(edge)
        if node is None or node.op not in _PRODUCTS or node.op == "max_pool":
            return self._make(edge)  # refuses
        draft, kind = self.product(node), self.graph.types[edge]
        self._check_sums(node, kind, draft)
        self.values[edge] = self._layer(draft, kept(draft, kind), edge, kind)
        return self.values[edge]

    def _layer(self, draft: Draft, post: Post, name: str, kind: TensorType) -> Value:
        """Append a layer; its output."""
        out = self._new_value(name, kind, draft.size, draft.places, draft.lanes)
        if post.result == Result.FOUR:
            planes = draft.lanes // (2 * self.config.lanes)
            sign = SIGNED if kind.lo < 0 else UNSIGNED if kind.hi > 7 else EITHER
            out = Value(name, *draft.size, planes, draft.places, (sign,) * planes, Result.FOUR)
        if post.result == Result.RAW:
            planes = draft.lanes // self.config.outputs * self.config.raw_words
            out = Value(name, *draft.size, planes, draft.places, (SIGNED,) * planes, Result.RAW)
        # Of one column no second pixel is read: steps of 1 need one pass.
        down, across = (s if n > 1 else 1 for s, n in zip(draft.stride, draft.size, strict=True))
        self.network.append(
            Layer(
                name, draft.nodes, draft.sources, out, draft.parts, post, draft.kernel,
                (down, across), draft.dilation, draft.padding, draft.reduce,
                Bits.FOUR if draft.sources[0].result == Result.FOUR else Bits.EIGHT, draft.macs,
            )
        )  # fmt: skip
        return out

    # Products ---------------------------------------------------------------------------------

    def product(self, node: Node) -> Draft:
        """The product of a node, with nothing behind it."""
        kind = self.graph.types[node.output]
        size = self._size(kind)
        if node.op in ("conv", "dense"):
            source = self.value(node.inputs[0])
            columns = self.network.columns.get(node.inputs[0])
            if columns is not None:
                draft = drafts.product(widened(node, columns), source, size, self.config)
                draft.macs = node.params["weight"].size * size[0] * size[1]
                return draft
            if node.op == "conv" and self._is_vector(node.inputs[0], source):
                raise no_mapping(node, "a convolution of a vector", "use a dense layer")
            return drafts.product(node, source, size, self.config)
        if node.op == "add":
            return self._addition(node)
        return drafts.pool(node, self.value(node.inputs[0]), size, None, self.config)

    def _is_vector(self, edge: str, value: Value) -> bool:
        return self.graph.types[edge].channels != len(value.places)

    def _addition(self, node: Node) -> Draft:
        a, b = (self.value(edge) for edge in node.inputs)
        if len(a.places) != len(b.places) or (a.height, a.width) != (b.height, b.width):
            raise no_mapping(
                node, "its operands are flattened images of different shapes", "add, then flatten"
            )
        if not np.array_equal(a.places, b.places) or a.planes != b.planes:
            kind = self.graph.types[node.inputs[1]]
            if not fits(kind):
                raise no_mapping(
                    node,
                    f"an operand in [{kind.lo}, {kind.hi}], of parts with and without signs, whose "
                    "channels lie in other places than the other one's",
                    "put an activation or a quantizer behind the concatenation",
                )
            draft = drafts.replaced(node, b, a.places, a.planes, self.config)
            b = self._layer(draft, kept(draft, kind), f"{node.name}_placed", kind)
        return drafts.addition(node, (a, b), node.ints("multipliers"), self.config)

    def _concat(self, node: Node) -> Value:
        parts = [self.value(edge) for edge in node.inputs]
        kind = self.graph.types[node.output]
        if any(
            self._is_vector(e, v) and (v.height, v.width) != (1, 1)
            for e, v in zip(node.inputs, parts, strict=True)
        ):
            raise no_mapping(node, "it joins flattened images", "join, then flatten")
        first = 0
        places: list[IntArray] = []
        signs: list[int] = []
        whole = self._new_value(node.output, kind, self._size(kind), np.zeros(1, np.int64))
        if self.families.narrow(node.output):
            whole.result = Result.FOUR
        seen: set[Value] = set()
        again = []
        for part in parts:
            again.append(part.parent is not None or self._inside(part, whole) or part in seen)
            seen.add(part)
        if any(v.result != whole.result for v in parts) or (
            whole.result == Result.FOUR and any(again)  # a copy is made of bytes
        ):
            # Not as it was thought: what is made now is never used, all begins again.
            self.families.refuse(node.output)
            whole.result = Result.EIGHT
            parts = [self._new_value(v.name, kind, (v.height, v.width), v.places) for v in parts]
        for edge, part, copy in zip(node.inputs, parts, again, strict=True):
            piece = part
            if copy:
                draft = drafts.identity(node, part, self.config)
                name = f"{node.name}_part{len(places)}"
                piece = self._layer(draft, copied(draft), name, self.graph.types[edge])
                piece.signs = part.signs
            piece.parent = (whole, first)
            places.append(piece.places + first * piece.lanes(self.config.lanes))
            signs += piece.signs
            first += piece.planes
        whole.planes, whole.signs, whole.places = first, tuple(signs), np.concatenate(places)
        return whole

    @staticmethod
    def _inside(part: Value, whole: Value) -> bool:
        return part.root[0] is whole

    def _upsample(self, node: Node) -> Value:
        source, kind = self.value(node.inputs[0]), self.graph.types[node.output]
        lanes = source.planes * self.config.lanes
        out = self._new_value(node.output, kind, self._size(kind), source.places, lanes)
        out.signs = source.signs
        factor = node.ints("factor")
        self.network.append(
            Layer(node.name, (node.name,), (source,), out, upsample=(factor[0], factor[1]))
        )
        return out

    # Activations ------------------------------------------------------------------------------

    def activate(self, edge: str, node: Node) -> Value:
        """The activation ``node`` of an edge."""
        producer, kind = self.graph.producer(edge), self.graph.types[edge]
        name = node.output if edge == node.inputs[0] else f"{node.output}_{edge}"
        if edge not in self.values and producer is not None:
            if producer.op == "flatten" and not fits(kind):
                return self._activate_flat(producer, node)
            if producer.op == "max_pool" and not fits(kind):
                return self._activate_pool(producer, node, name)
            alone = len(self.graph.consumers(edge)) == 1 and edge not in self.graph.outputs
            if producer.op in _PRODUCTS and (alone or not fits(kind)):
                draft = self.product(producer)
                self._check_sums(producer, kind, draft)
                draft.nodes = (*draft.nodes, node.name)
                return self._finished(draft, node, name, kind)
        source = self.value(edge)
        rows = max(len(array) for array in node.params.values())
        if self._is_vector(edge, source) and rows > 1:
            raise no_mapping(
                node,
                f"{node.op} with parameters of each of {rows} elements of a flattened image",
                "put it in front of the flattening",
            )
        draft = drafts.identity(node, source, self.config)
        draft.nodes = (node.name,)
        return self._finished(draft, node, name, kind)

    def _activate_flat(self, flatten: Node, node: Node) -> Value:
        kind = self.graph.types[flatten.inputs[0]]
        rows = max(len(array) for array in node.params.values())
        if rows > 1 and self._size(kind) != (1, 1):
            raise no_mapping(
                node,
                f"{node.op} with parameters of each of {rows} elements of a flattened image",
                "put it in front of the flattening",
            )
        return self.activate(flatten.inputs[0], node)

    def _activate_pool(self, pool: Node, node: Node, name: str) -> Value:
        """The activation moved in front of a pool of sums: a rising one commutes with the maximum,
        a falling one makes a minimum of it.
        """
        none = np.zeros(self.graph.types[pool.output].channels, np.int64)
        value = self._pooled(pool.inputs[0], node, none, pool, name)
        if value is not None:
            return value
        if node.op == "lookup":
            raise no_mapping(
                node, "a table behind a pool of sums", "put the activation in front of the pool"
            )
        falls = node.params.get("flip", np.zeros(1, np.int64)) == 1
        if node.op == "requant":
            falls = node.params["multiplier"] < 0
        inner = self.activate(pool.inputs[0], node)
        signs = np.broadcast_to(np.where(falls, -1, 1), (len(inner.places),))
        kind = self.graph.types[node.output]
        size = self._size(self.graph.types[pool.output])
        mixed = bool((signs < 0).any())
        draft = drafts.pool(pool, inner, size, signs if mixed else None, self.config)
        post = kept(draft, kind)
        if mixed:
            post = signed_back(post, draft, signs)
        return self._layer(draft, post, name, kind)

    def _pooled(
        self, edge: str, activation: Node, falls: IntArray, pool: Node, name: str
    ) -> Value | None:
        """Product, max pool and activation in one layer, the channels that fall negated; None if
        they do not fit into one.
        """
        producer = self.graph.producer(edge)
        if (
            producer is None
            or producer.op != "conv"
            or not fits(self.graph.types[activation.output])
        ):
            return None
        alone = len(self.graph.consumers(edge)) == 1 and not self._is_output(edge)
        if not alone or edge in self.values or producer.params["weight"].shape[1:3] != (1, 1):
            return None
        if any(producer.ints("padding")):  # sums of padding take part in the maximum
            return None
        draft, kind = self.product(producer), self.graph.types[edge]
        if not can_pool(draft, falls):
            return None
        self._check_sums(producer, kind, draft)
        size = self._size(self.graph.types[pool.output])
        draft = pooled(draft, falls, pool, size)
        draft.nodes = (*draft.nodes, activation.name)
        return self._finished(draft, activation, name, kind)

    def _check_sums(self, node: Node, kind: TensorType, draft: Draft) -> None:
        bias = 0 if draft.bias is None else int(np.abs(draft.bias).max(initial=0))
        if max(abs(kind.lo), abs(kind.hi)) + bias >= _MOST:
            raise no_mapping(
                node, f"sums in [{kind.lo}, {kind.hi}] need more than 32 bits", "use fewer bits"
            )

    def _finished(self, draft: Draft, node: Node, name: str, kind: TensorType) -> Value:
        out = self.graph.types[node.output]
        if not fits(out):
            raise no_mapping(
                node,
                f"results in [{out.lo}, {out.hi}] have more than 8 bits",
                "use 8 bits or fewer",
            )
        four = name in self.graph.types and self._as_nibbles(draft, node, name)
        if four:
            draft = drafts.paired(draft, self.config)
        line = lined(node, kind, draft, self.config) if node.op == "threshold" else None
        if line is not None:
            post = line
        elif node.op == "threshold":
            whole, posts = thresholded(node, draft)
            if not whole:
                return self._counted(draft, posts, node, name)
            post = posts[0]
        elif node.op == "requant":
            post = requantized(node, draft, self.config)
        else:
            post = looked_up(node, kind, draft, self.config)
        if four:
            post = replace(post, result=Result.FOUR)
        return self._layer(draft, post, name, out)

    def _as_nibbles(self, draft: Draft, node: Node, edge: str) -> bool:
        """Whether a result is written in lanes of 4 bits: it fits, words of it are made whole, and
        everything that reads it, or what it is joined to, multiplies by weights of 4 bits.
        """
        config = self.config
        per_group = config.outputs if node.op == "threshold" else config.outputs // 8
        rows = max(part.weights.shape[1] for part in draft.parts)
        pairs = all(part.group % 2 == 0 for part in draft.parts)
        return (
            config.nibbles
            and self.families.narrow(edge)
            and pairs
            and 2 * rows <= config.weight_rows
            and 4 * per_group <= config.parameter_rows
            and (node.op != "lookup" or len(node.params["table"]) == 1)
            and (node.op != "threshold" or whole_threshold(node))
        )

    def _counted(self, draft: Draft, posts: list[Post], node: Node, name: str) -> Value:
        """More than 15 thresholds: the product is made once for each 15, the counts are added."""
        kind = self.graph.types[node.output]
        count = TensorType(kind.shape, None, (1.0,), 0, 15)
        counts = [
            self._layer(draft, post, f"{name}_count{k}", count) for k, post in enumerate(posts)
        ]
        planes = counts[0].planes
        whole = Value(
            f"{name}_counts", *draft.size, planes * len(counts), draft.places,
            (EITHER,) * planes * len(counts),
        )  # fmt: skip
        for number, value in enumerate(counts):
            value.parent = (whole, number * planes)
        joined = drafts.summed(node, counts, self.config)
        post = kept(joined, kind)
        assert post.multiplier is not None and post.offset is not None
        step, base = node.integer("step"), node.integer("base")
        scaled = Post(
            Result.EIGHT, post.multiplier * step, post.offset + base, low=post.low, high=post.high
        )
        return self._layer(joined, scaled, name, kind)
