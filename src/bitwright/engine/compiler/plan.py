# SPDX-License-Identifier: Apache-2.0
"""Which values stay on the chip, which layers are chained in strips, and where everything lies.

A *segment* is a chain of layers done strip by strip of rows: what lies between its layers never
leaves the chip and is never whole. One layer done at once is a segment too. A value that no segment
hides lies in the features as a whole for as long as it lives, or in the memory outside, from which
strips are loaded and to which they are stored, two buffers each.
"""

from __future__ import annotations

from math import gcd

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.nests import leaves_in
from bitwright.engine.compiler.network import Network
from bitwright.engine.compiler.segments import BUFFERS, Buffers, Plan, Segment, Wish
from bitwright.engine.compiler.values import Layer, Value
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import Result
from bitwright.ir.placement import first_fit

#: Planes of a strip that a layer which works plane by plane holds at a time.
_PLANES = 8
#: How many buffers there may be of what is loaded plane by plane.
_DEPTHS = (2, 3, 4, 6, 8, 12, 16, 1 << 12)
#: Layers of strips that are looked at while a plan is made, counted, not timed, so that a network
#: gives the same program everywhere: a minute or so. DenseNet-121 takes 300 thousand.
_MOST_LOOKS = 10_000_000
#: Strips of the network's input.
_FIRST_STRIPS = 4


class _Planner:
    def __init__(self, network: Network, config: EngineConfig, wish: Wish) -> None:
        self.network, self.config, self.wish = network, config, wish
        self.looks = 0
        self.segments = [
            Segment([layer], [layer.out], layer.out.height) for layer in network.layers
        ]
        self.parts: dict[Value, dict[Value, None]] = {}
        for value in {v: 0 for la in network.layers for v in (*la.sources, la.out)}:
            self._note_parents(value)
        roots = {v.root[0] for layer in network.layers for v in (*layer.sources, layer.out)}
        self.outside = {root for root in roots if root.name in wish.outside}  # not resident
        self.hidden: set[Value] = set()
        self.kept = {value.root[0] for value in network.outputs.values()}
        self.given = {value.root[0] for value in network.inputs.values()}
        for layer in network.layers:
            if layer.upsample is not None:
                self.outside.add(layer.sources[0].root[0])
        for value in network.inputs.values():
            readers = [s for s in self.segments if value in s.layers[0].sources]
            if len(readers) == 1 and value.parent is None and value not in self.kept:
                # The first strip is computed while the others are loaded.
                self.outside.add(value)
                readers[0].most = -(-readers[0].most // _FIRST_STRIPS)

    def _note_parents(self, value: Value) -> None:
        while value.parent is not None:
            siblings = self.parts.setdefault(value.parent[0], {})
            if value in siblings:  # and so are those that it is a part of
                return
            siblings[value] = None
            value = value.parent[0]

    def roots(self) -> dict[Value, tuple[int, int]]:
        """Root -> first and last segment of its life."""
        spans: dict[Value, tuple[int, int]] = {}
        for number, segment in enumerate(self.segments):
            for layer in segment.layers:
                for value in (*layer.sources, layer.out):
                    root = value.root[0]
                    if value not in self.hidden:
                        first, _ = spans.get(root, (number, number))
                        spans[root] = (first, number)
        return spans

    def streamed(self, segment: Segment) -> list[tuple[Value, int, int]]:
        """Values that the segment holds in strips: how many buffers, and of how many planes."""
        found: dict[Value, tuple[int, int]] = {}
        for layer in segment.layers:
            for value in (*_streams(layer), layer.out):
                if value in self.hidden:
                    found[value] = 1, value.planes
                elif value.root[0] in self.outside:
                    planes = self._planes(segment, value)
                    whole = segment.rows == segment.height
                    count = BUFFERS if planes < value.planes or not whole else 1
                    if planes < value.planes and value not in segment.made:
                        count = min(segment.depth, -(-value.planes // planes) + 1)
                    found[value] = count, planes
        return [(value, *each) for value, each in found.items()]

    @staticmethod
    def _planes(segment: Segment, value: Value) -> int:
        """Planes of a value that are in the features at a time: where only a layer that works
        plane by plane has to do with it, a few.
        """
        users = [la for la in segment.layers if value in la.sources or la.out is value]
        if len(users) == 1 and users[0].lanewise:
            return min(value.planes, _PLANES)
        return value.planes

    def buffer_rows(self, segment: Segment) -> dict[Value, int]:
        rows: dict[Value, int] = {}
        for strip in segment.strips:
            needs = self._needs(segment, strip)
            for layer in segment.layers:
                for stream, value in zip(_streams(layer), layer.sources, strict=False):
                    first, end = needs[value]
                    rows[stream] = max(rows.get(stream, 0), end - first)
                first, end = needs[layer.out]
                rows[layer.out] = max(rows.get(layer.out, 0), end - first)
        return rows

    def _needs(self, segment: Segment, strip: tuple[int, int]) -> dict[Value, tuple[int, int]]:
        """As `Segment.needs`.

        Raises:
            ModelError: it was asked too often.
        """
        self.looks += len(segment.layers)
        if self.looks > _MOST_LOOKS:
            raise ModelError(
                f"no plan was found in {_MOST_LOOKS} looks at {len(self.network.layers)} layers",
                where=f"engine, {segment.name}",
                hint="use an engine with more feature words, smaller images, or fewer layers whose "
                "results are read much later",
            )
        return segment.needs(*strip)

    def words(self, segment: Segment) -> int:
        """Of the segment's buffers."""
        rows = self.buffer_rows(segment)
        return sum(
            count * planes * value.width * rows[value]
            for value, count, planes in self.streamed(segment)
        )

    def run(self) -> Plan:
        """What is larger than the features is hidden if it can be; then whatever has no room."""
        room = self.config.feature_words
        self.outside.update(root for root in self.roots() if root.words > room)
        for root in self.roots():
            if root.words > room // 2:
                self._hide(root)
        while True:
            number = self._fit_rows()
            if number is None:
                plan = self._place()
                if plan is not None:
                    return plan
                number = self._fullest()
            self._relieve(number)

    def _live(self, number: int, spans: dict[Value, tuple[int, int]]) -> list[Value]:
        return [
            root
            for root, (first, last) in spans.items()
            if root not in self.outside and first <= number <= last
        ]

    def _room(self, number: int, spans: dict[Value, tuple[int, int]]) -> int:
        return self.config.feature_words - sum(v.words for v in self._live(number, spans))

    def _fit_rows(self) -> int | None:
        """Choose the rows of every segment's strips; the number of one that has no room."""
        spans = self.roots()
        for number, segment in enumerate(self.segments):
            if not self._fit(segment, self._room(number, spans)):
                return number
        return None

    def _fit(self, segment: Segment, room: int) -> bool:
        """Rows of a strip and how far loads run ahead: what takes the least time; False if not even
        one row fits.
        """
        found: list[tuple[float, int, int]] = []
        for depth in _DEPTHS:
            segment.depth = depth
            if self._most_rows(segment, room):
                found.append((self._cost(segment), -depth, segment.rows))
        if found:
            _, deepest, segment.rows = min(found)
            segment.depth = -deepest
        return bool(found)

    def _cost(self, segment: Segment) -> float:
        """Cycles of a segment, about: loads hide behind the layers that work plane by plane, and
        behind the others as far as there are buffers for them.
        """
        made, sources = segment.made, {v for la in segment.layers for v in la.sources}
        lanewise = others = words = ahead = 0.0
        for strip in segment.strips:
            needs = self._needs(segment, strip)
            for layer in segment.layers:
                first, end = needs[layer.out]
                share = (end - first) / layer.out.height * layer_cycles(layer, self.config)
                lanewise += share * layer.lanewise
                others += share * (not layer.lanewise)
            for value in sources:
                if value not in made and value.root[0] in self.outside:
                    each = value.width * (needs[value][1] - needs[value][0])
                    planes, whole = self._planes(segment, value), value.planes
                    words += whole * each
                    if planes < whole:
                        ahead += min(whole, (segment.depth - 1) * planes) * each
        cycles = self.config.word_bytes / self.config.constants.bytes_per_cycle  # of a word
        weights = len(segment.strips) * self._weight_words(segment) * cycles
        hidden = max(0.0, min(others - weights, ahead * cycles))
        return max(lanewise, words * cycles - hidden) + max(others, weights)

    def _weight_words(self, segment: Segment) -> int:
        """Words of weights that every strip loads anew; 0 if they stay or there is one strip."""
        rows = words = 0
        for layer in segment.layers:
            for part in layer.parts:
                rows += part.weights.shape[0] * part.weights.shape[1]
                words += 0 if layer.lanewise else part.weights.size // part.weights.shape[-1]
        stays = rows <= self.config.weight_rows or len(segment.strips) == 1
        return 0 if stays else words

    def _most_rows(self, segment: Segment, room: int) -> bool:
        """The most rows a strip that fit, evened out; False if not even one does."""
        height = segment.height

        def fits(rows: int) -> bool:
            segment.rows = rows
            return self.words(segment) <= room

        low = high = segment.most
        if not fits(high):
            low = 1
            if not fits(1):
                return False
        while low < high - 1:  # low fits, high does not
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        segment.rows = -(-height // -(-height // low))
        return True

    def _fullest(self) -> int:
        spans = self.roots()
        rooms = [
            self._room(n, spans) - self.words(segment) for n, segment in enumerate(self.segments)
        ]
        return rooms.index(min(rooms))

    def _relieve(self, number: int) -> None:
        """Give a segment more room: hide a value between two layers, or send one outside.

        Raises:
            ModelError: a layer's smallest strip is larger than the features.
        """
        spans = self.roots()
        live = self._live(number, spans)
        for root in sorted(live, key=lambda v: -v.words):
            if self._hide(root):
                return
        if not live:
            layer = self.segments[number].layers[-1]
            raise ModelError(
                f"one row of its maps needs {self.words(self.segments[number])} words; the engine "
                f"has {self.config.feature_words}",
                where=f"engine, {layer.name}",
                hint="use an engine with more feature words, a smaller image or fewer channels",
            )
        self.outside.add(max(live, key=lambda root: root.words / self._traffic(root)))

    def _traffic(self, root: Value) -> float:
        """Words that move if a root lies outside, for each of its own."""
        readers = sum(
            any(v.root[0] is root for layer in segment.layers for v in layer.sources)
            for segment in self.segments
        )
        return 0.1 + readers + (root not in self.given) - (root in self.kept) * 0.5

    def _hide(self, value: Value) -> bool:
        """Chain the layer that makes a value with those that read it, if that fits and pays."""
        if value in self.kept | self.given or value.parent is not None:
            return False
        makers = [s for s in self.segments if value in s.ends]
        readers = [s for s in self.segments if any(value in la.sources for la in s.layers)]
        if len(makers) != 1 or not readers or makers[0] in readers or value.result == Result.RAW:
            return False
        parts = [makers[0], *readers]
        ends = [end for part in parts for end in part.ends if end is not value]
        layers = [layer for part in parts for layer in part.layers]
        moved = any(layer.upsample is not None for layer in layers)
        inside = any(end in layer.sources for end in ends for layer in layers)
        if moved or inside or len({end.height for end in ends}) != 1:
            return False
        most = min(max(1, part.most * ends[0].height // part.height) for part in parts)
        merged = Segment(layers, ends, most)
        before = list(self.segments)
        self.hidden.add(value)
        for place in (readers[0], readers[-1]):
            self.segments = [merged if s is place else s for s in before]
            self.segments = [s for s in self.segments if s not in parts]
            if self._in_order() and self._chained(merged, value):
                return True
        self.segments = before
        self.hidden.remove(value)
        return False

    def _chained(self, merged: Segment, value: Value) -> bool:
        """Whether a new segment fits and pays, with its ends on the chip or else outside."""
        more = {end.root[0] for end in merged.ends} - self.outside
        for outside in (self.outside, self.outside | more):
            before, self.outside = self.outside, outside
            room = self._room(self.segments.index(merged), self.roots())
            if self._fit(merged, room) and self._pays(merged, value):
                return True
            self.outside = before
        return False

    def _in_order(self) -> bool:
        """Whether every layer comes behind what makes its sources."""
        made = {id(layer.out) for segment in self.segments for layer in segment.layers}
        for segment in self.segments:
            for layer in segment.layers:
                for value in layer.sources:
                    if any(id(part) in made for part in (value, *self._children(value))):
                        return False
                made.remove(id(layer.out))
        return True

    def _children(self, value: Value) -> list[Value]:
        """Values that are parts of a value, and their parts."""
        found: list[Value] = []
        waiting = [*self.parts.get(value, ())]
        while waiting:
            found.append(waiting.pop())
            waiting += self.parts.get(found[-1], ())
        return found

    def _pays(self, merged: Segment, value: Value) -> bool:
        """Whether rows that two strips both compute cost less than a part of the time that moving
        the value would take: what moves may do so while X works.
        """
        again = 0.0
        for layer in merged.layers:
            computed = 0
            for strip in merged.strips:
                first, end = self._needs(merged, strip)[layer.out]
                computed += end - first
            again += (computed / layer.out.height - 1) * layer_cycles(layer, self.config)
        moved = 2 * value.words * self.config.word_bytes / self.config.constants.bytes_per_cycle
        return again <= moved * self.wish.waited

    def _place(self) -> Plan | None:
        """Addresses of everything, or None if gaps leave too little room."""
        spans = self.roots()
        items: list[tuple[Value, Segment | None, int, tuple[int, int]]] = []
        for root, span in spans.items():
            if root not in self.outside:
                items.append((root, None, root.words, span))
        for number, segment in enumerate(self.segments):
            rows = self.buffer_rows(segment)
            for value, count, planes in self.streamed(segment):
                size = planes * value.width * rows[value]
                items += [(value, segment, size, (number, number))] * count
        found = _fitted([(size, span) for _, _, size, span in items], self.config.feature_words)
        if found is None:
            return None
        resident: dict[Value, int] = {}
        for segment in self.segments:
            segment.buffers = {}
        for (value, owner, _, _), offset in zip(items, found, strict=True):
            if owner is None:
                resident[value] = offset
            else:
                if value not in owner.buffers:
                    planes = self._planes(owner, value)
                    planes = value.planes if value in self.hidden else planes
                    owner.buffers[value] = Buffers([], self.buffer_rows(owner)[value], planes)
                owner.buffers[value].addresses.append(offset)
        live = tuple(tuple(self._live(n, spans)) for n in range(len(self.segments)))
        return Plan(self.segments, resident, self.hidden, live)


def layer_cycles(layer: Layer, config: EngineConfig) -> int:
    """Cycles of the array for a whole layer, but for what groups at the borders waste."""
    passes = gcd(layer.stride[1], config.pixels)
    groups = -(-layer.out.height * layer.out.width // config.pixels)
    leaves = leaves_in(layer, config)
    return groups * sum(
        part.groups * max(part.planes * layer.taps * passes, leaves) for part in layer.parts
    )


def _fitted(items: list[tuple[int, tuple[int, int]]], room: int) -> list[int] | None:
    """Addresses of items (size, life), the larger, the earlier or the longer ones first; None if
    none of the three orders fits.
    """
    orders = (
        sorted(range(len(items)), key=lambda i: (-items[i][0], items[i][1])),
        sorted(range(len(items)), key=lambda i: (items[i][1][0], -items[i][0])),
        sorted(range(len(items)), key=lambda i: (items[i][1][0] - items[i][1][1], -items[i][0])),
    )
    for order in orders:
        offsets, size = first_fit([items[i][0] for i in order], [items[i][1] for i in order])
        if size <= room:
            places = dict(zip(order, offsets, strict=True))
            return [places[i] for i in range(len(items))]
    return None


def _streams(layer: Layer) -> tuple[Value, ...]:
    """What a layer loads if its sources lie outside: the whole that several of them are parts of,
    one behind the other. An upsampling loads its result.
    """
    if layer.upsample is not None:
        return ()
    parents = {value.parent[0] for value in layer.sources if value.parent is not None}
    together = all(value.parent is not None for value in layer.sources) and len(parents) == 1
    if len(layer.sources) > 2 and together:
        return (next(iter(parents)),)
    return layer.sources


def plan_network(network: Network, config: EngineConfig, wish: Wish | None = None) -> Plan:
    """Where everything lies, the features never overflowing.

    Raises:
        ModelError: a layer does not fit.
    """
    if not network.layers:
        return Plan([], {}, set())
    return _Planner(network, config, wish or Wish()).run()
