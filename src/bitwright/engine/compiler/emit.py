# SPDX-License-Identifier: Apache-2.0
"""Plan -> steps: the instructions of every layer, by strips of rows and pieces of weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.finish import parameter_bytes
from bitwright.engine.compiler.nests import View, Where, execs, parameter_rows, stored_rows
from bitwright.engine.compiler.network import Network
from bitwright.engine.compiler.rooms import Blob, Ring
from bitwright.engine.compiler.segments import Plan, Segment
from bitwright.engine.compiler.steps import Access, Action, Space, Step
from bitwright.engine.compiler.values import Layer, Part, Value, is_diagonal
from bitwright.engine.config import EngineConfig
from bitwright.engine.footprint import check_length
from bitwright.engine.isa import Bits, Buffer, Load, LoadMode, Result, Store, WeightOrder

_MOST_OUTPUTS = (1 << 8) - 1
_PIECES = 8  # of the weight memory
_MOST_RUN = (1 << 16) - 1


@dataclass(frozen=True)
class _Piece:
    """Some output groups of a part whose weights are loaded together."""

    part: Part
    rows: int
    diagonal: bool


class Emitter:
    """Makes the steps of a whole plan.

    Attributes:
        memory: root -> word in the memory outside, behind the constants.
        constants: weights, parameters and tables.
    """

    def __init__(self, network: Network, plan: Plan, config: EngineConfig) -> None:
        self.network, self.plan, self.config = network, plan, config
        self.constants = Blob(config.lanes)
        self.memory: dict[Value, int] = {}
        self.memory_words = 0
        self.steps: list[Step] = []
        self.actions = 0  # of all steps, stores left out
        self.weights, self.parameters = Ring(config.weight_rows), Ring(config.parameter_rows)
        self.pieces: dict[Layer, list[_Piece]] = {}
        self.held: dict[tuple[Layer, int], tuple[int, int]] = {}
        self.last_weights = np.zeros(0, np.int8), 0  # of this segment: what, and where
        self.placed: dict[Layer, int] = {}  # parameters that were loaded with a layer's before
        self.batches = self._batches()
        self.loaded: set[Value] = set()
        self.table = -1
        self.turns: dict[Value, int] = {}
        self.stored = {value.root[0] for value in network.outputs.values()}
        roots = [value.root[0] for value in (*network.inputs.values(), *network.outputs.values())]
        roots += [
            value.root[0]
            for layer in network.layers
            for value in (*layer.sources, layer.out)
            if value not in plan.hidden and value.root[0] not in plan.resident
        ]
        for root in roots:
            if root not in self.memory:
                self.memory[root] = self.memory_words
                self.memory_words += root.words

    def _batches(self) -> dict[Layer, list[Layer]]:
        """First layer -> the layers whose parameters come together: nothing else takes a place
        between them. What is computed in strips loads its own, for every strip maybe.
        """
        found: dict[Layer, list[Layer]] = {}
        batch: list[Layer] = []
        total = 0
        for segment in self.plan.segments:
            for layer in segment.layers:
                if layer.upsample is not None:
                    continue
                rows = self._count(layer)
                if len(segment.strips) > 1 or rows > self._most_parameters:
                    batch, total = [], 0
                    continue
                alone = len(found) == 1  # the first layer is waited for
                if not batch or alone or total + rows > self._most_parameters:
                    batch, total = [], 0
                batch.append(layer)
                total += rows
                found[batch[0]] = batch
        return found

    def run(self) -> list[Step]:
        for segment in self.plan.segments:
            self._segment(segment)
        return self.steps

    # Segments ---------------------------------------------------------------------------------

    def _segment(self, segment: Segment) -> None:
        strips, config = segment.strips, self.config
        rows = parameters = 0
        for layer in segment.layers:
            self.pieces[layer] = list(self._cut(segment, layer))
            rows += sum(piece.rows for piece in self.pieces[layer])
            groups = sum(piece.part.groups for piece in self.pieces[layer])
            parameters += groups * parameter_rows(layer, config)
        keeps = len(strips) > 1 and rows <= config.weight_rows
        keeps = keeps and parameters <= config.parameter_rows
        if keeps:
            self.weights.make_room(rows)
            self.parameters.make_room(parameters)
        self.held, self.last_weights = {}, (np.zeros(0, np.int8), 0)
        for number, strip in enumerate(strips):
            needs = segment.needs(*strip)
            views = self._views(segment, needs, number)
            pending = self._inputs(segment, needs, views)
            for layer in segment.layers:
                pending = self._layer(segment, layer, needs, views, pending, keeps)
            self._outputs(segment, needs, views)

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.actions += len(step.loads) + len(step.execs)
        check_length(self.actions, f"engine, {self.network.layers[-1].name}")

    def _cut(self, segment: Segment, layer: Layer) -> Iterator[_Piece]:
        """The layer's parts in pieces: of an eighth of the weight memory, so that loads run ahead
        by nearly all of it, and of half of the parameter memory.
        """
        config, post = self.config, layer.post
        own_tables = post is not None and post.tables is not None and len(post.tables) > 1
        most = config.parameter_rows // 2 // parameter_rows(layer, config)
        most = 1 if own_tables else min(most, _MOST_OUTPUTS)
        most = min([most, *(segment.buffers[value].planes for value in _slices(segment, layer))])
        for part in layer.parts:
            rows = part.weights.shape[1]
            if rows > config.weight_rows:
                raise ModelError(
                    f"an output group needs {rows} rows of weights; the engine has "
                    f"{config.weight_rows}",
                    where=f"engine, {layer.name}",
                    hint="use an engine with more weight rows, or pool in front of the layer",
                )
            alone = len(part.weights) > 1 or part.order == WeightOrder.SEQUENTIAL
            count = min(most, max(1, config.weight_rows // _PIECES // rows)) if alone else most
            if layer.out.result == Result.FOUR:  # two groups are a word
                count = max(2, count - count % 2)
            diagonal = is_diagonal(part.weights, config.outputs)
            first = 0
            while first < part.groups:
                # The array has nothing else to do while the first weights of all are loaded.
                due = layer is self.network.layers[0] and first == 0
                least = min(count, 2 if layer.out.result == Result.FOUR else 1)
                piece = part.cut(first, min(least if due else count, part.groups - first))
                yield _Piece(piece, stored_rows(piece), diagonal)
                first += piece.groups

    def _views(
        self, segment: Segment, needs: dict[Value, tuple[int, int]], number: int
    ) -> dict[Value, View]:
        """Of everything that the segment reads and writes in a strip."""
        views: dict[Value, View] = {}
        for value, held in segment.buffers.items():
            if held.planes == value.planes:
                start = held.addresses[number % len(held.addresses)]
                first = _rows_of(value, needs)[0]
                views[value] = View(start - first * value.width, held.rows * value.width)
        for layer in segment.layers:
            for value in (*layer.sources, layer.out):
                parent = value.parent
                if value in views or value in segment.buffers:
                    continue
                if parent is not None and parent[0] in segment.buffers:
                    whole = views[parent[0]]
                    views[value] = View(whole.base + parent[1] * whole.plane, whole.plane)
                elif value.root[0] in self.plan.resident:
                    views[value] = self._home(value)
        return views

    def _home(self, value: Value) -> View:
        """Of a value that lies in the features as a whole."""
        root, plane = value.root
        size = root.height * root.width
        return View(self.plan.resident[root] + plane * size, size)

    # Moves ------------------------------------------------------------------------------------

    def _inputs(
        self, segment: Segment, needs: dict[Value, tuple[int, int]], views: dict[Value, View]
    ) -> list[Action]:
        """Loads of a strip: what lies outside, and what the host gave and nobody loaded yet."""
        loads: list[Action] = []
        for value in segment.buffers:
            if value not in segment.made and value in views:
                loads += self._load(value, _rows_of(value, needs), views[value], segment.name)
        for source in [value for layer in segment.layers for value in layer.sources]:
            for given in self.network.inputs.values():
                resident = given.root[0] in self.plan.resident
                if resident and given.root[0] is source.root[0] and given not in self.loaded:
                    self.loaded.add(given)
                    loads += self._load(given, (0, given.height), self._home(given), segment.name)
        return loads

    def _load(
        self, value: Value, rows: tuple[int, int], view: View, layer: str,
        planes: tuple[int, int] | None = None,
    ) -> list[Action]:  # fmt: skip
        return [
            Action(
                Load(
                    buffer=Buffer.FEATURES, memory=memory, x=x, y=y, memory_y=memory_step,
                    address=address, buffer_y=step,
                ),
                (
                    Access(Space.MEMORY, memory, memory + (y - 1) * memory_step + x, False),
                    Access(Space.FEATURES, address, address + (y - 1) * step + x, True),
                ),
                layer,
            )
            for memory, address, x, y, memory_step, step in self._runs(value, rows, view, planes)
        ]  # fmt: skip

    def _store(
        self, value: Value, rows: tuple[int, int], view: View, layer: str,
        planes: tuple[int, int] | None = None,
    ) -> list[Action]:  # fmt: skip
        return [
            Action(
                Store(
                    memory=memory, x=x, y=y, memory_y=memory_step, address=address, buffer_y=step
                ),
                (
                    Access(Space.FEATURES, address, address + (y - 1) * step + x, False),
                    Access(Space.MEMORY, memory, memory + (y - 1) * memory_step + x, True),
                ),
                layer,
            )
            for memory, address, x, y, memory_step, step in self._runs(value, rows, view, planes)
        ]

    def _runs(
        self, value: Value, rows: tuple[int, int], view: View, planes: tuple[int, int] | None
    ) -> list[tuple[int, int, int, int, int, int]]:
        """Rows of planes (of all, or first to end) as blocks: (memory, address, x, y, memory step,
        buffer step).
        """
        root, plane = value.root
        first, end = planes or (0, value.planes)
        size, width = value.height * value.width, value.width
        memory = self.memory[root] + (plane + first) * size + rows[0] * width
        address = view.base + first * view.plane + rows[0] * width
        x, y = (rows[1] - rows[0]) * width, end - first
        if x == size == view.plane and x * y <= _MOST_RUN:
            return [(memory, address, x * y, 1, 0, 0)]
        if x <= _MOST_RUN:
            return [(memory, address, x, y, size, view.plane)]
        return [
            (memory + p * size + start, address + p * view.plane + start,
             min(_MOST_RUN, x - start), 1, 0, 0)
            for p in range(y) for start in range(0, x, _MOST_RUN)
        ]  # fmt: skip

    def _outputs(
        self, segment: Segment, needs: dict[Value, tuple[int, int]], views: dict[Value, View]
    ) -> None:
        """Stores of a strip's results, if they lie outside or are the network's."""
        for value in segment.ends:
            root = value.root[0]
            outside = root not in self.plan.resident
            if (outside or root in self.stored) and value in views:
                stores = self._store(value, needs[value], views[value], segment.name)
                self.steps[-1].stores += stores

    # Layers -----------------------------------------------------------------------------------

    def _layer(
        self, segment: Segment, layer: Layer, needs: dict[Value, tuple[int, int]],
        views: dict[Value, View], pending: list[Action], keeps: bool,
    ) -> list[Action]:  # fmt: skip
        """The steps of a layer's rows; ``pending`` loads come with the first."""
        rows = needs[layer.out]
        if layer.upsample is not None:
            self._add(Step(loads=[*pending, *self._upsample(layer, rows, views)]))
            return []
        each = parameter_rows(layer, self.config)
        whole = self._count(layer) <= self._most_parameters
        start = row = 0
        for number, piece in enumerate(self.pieces[layer]):
            step, group = Step(loads=pending), piece.part.group
            pending = []
            key = (layer, number)
            if not keeps or key not in self.held:
                if whole and number == 0:
                    row = self._whole_parameters(layer, step)
                elif not whole:
                    start = group
                    row = self._parameters([(layer, start, piece.part.groups)], step)
                place = row + (group - start) * each
                self.held[key] = self._weights(layer, piece, step), place
            self._tables(layer, piece, step)
            seen = views | self._slice(segment, layer, needs, piece, step)
            step.execs += execs(layer, piece.part, rows, Where(seen, *self.held[key]), self.config)
            self._add(step)
        return pending

    def _slice(
        self, segment: Segment, layer: Layer, needs: dict[Value, tuple[int, int]], piece: _Piece,
        step: Step,
    ) -> dict[Value, View]:  # fmt: skip
        """Load and store the planes of a piece, of values that are not here as a whole."""
        views: dict[Value, View] = {}
        first, end = piece.part.group, piece.part.group + piece.part.groups
        for value in _slices(segment, layer):
            held, rows = segment.buffers[value], needs[value]
            turn = self.turns[value] = self.turns.get(value, -1) + 1
            plane = held.rows * value.width
            address = held.addresses[turn % len(held.addresses)]
            view = View(address - rows[0] * value.width - first * plane, plane)
            views[value] = view
            if value is layer.out:
                step.stores += self._store(value, rows, view, layer.name, (first, end))
            else:
                step.loads += self._load(value, rows, view, layer.name, (first, end))
        return views

    def _weights(self, layer: Layer, piece: _Piece, step: Step) -> int:
        """Load the weights of a piece, unless they are those of the piece in front of it; the row
        where they lie.
        """
        given = piece.part.weights
        last, place = self.last_weights
        if given.shape == last.shape and np.array_equal(given, last):
            return place
        row = self.weights.take(piece.rows)
        self.last_weights = given, row
        table = given.reshape(-1, self.config.outputs, given.shape[-1])
        four = layer.bits == Bits.FOUR
        mode, count = LoadMode.PLAIN, piece.rows * self.config.outputs
        if piece.diagonal:
            lanes = np.arange(given.shape[-1])
            table = table[:, lanes % self.config.outputs, lanes]
            mode = LoadMode.DIAGONAL4 if four else LoadMode.DIAGONAL8
            count = piece.rows
        data = np.ascontiguousarray(table.astype(np.int8)).view(np.uint8)
        if four:
            data = ((data[..., ::2] & 15) | (data[..., 1::2] << 4)).astype(np.uint8)
        memory = self.constants.add(data)
        access = Access(Space.WEIGHTS, row, row + piece.rows, True)
        load = Load(
            buffer=Buffer.WEIGHTS, mode=mode, memory=memory, x=count,
            address=row * self.config.outputs,
        )  # fmt: skip
        step.loads.append(Action(load, (access,), layer.name))
        return row

    @property
    def _most_parameters(self) -> int:
        """Rows of parameters that are loaded at a time: a quarter of them, by one LOAD."""
        return min(self.config.parameter_rows // 4, _MOST_RUN // self.config.parameter_row_words)

    def _count(self, layer: Layer) -> int:
        """Rows of parameters of a layer."""
        groups = max(part.group + part.groups for part in layer.parts)
        return groups * parameter_rows(layer, self.config)

    def _whole_parameters(self, layer: Layer, step: Step) -> int:
        """Load the parameters of a layer, and those of the layers behind it as far as they fit: so
        few instructions stand in the load unit's queue in front of the weights. The row where the
        layer's lie.
        """
        if layer not in self.placed:
            batch = self.batches[layer] if layer in self.batches else [layer]
            pieces = [(la, 0, self._count(la) // parameter_rows(la, self.config)) for la in batch]
            row = self._parameters(pieces, step)
            for each in batch:
                self.placed[each], row = row, row + self._count(each)
        return self.placed.pop(layer)

    def _parameters(self, pieces: list[tuple[Layer, int, int]], step: Step) -> int:
        """Load the parameters of layers' output groups, first and how many; the first row."""
        tables = []
        for layer, first, groups in pieces:
            assert layer.post is not None
            table = parameter_bytes(layer.post, self.config)[first : first + groups]
            tables.append(table.reshape(-1))
        data = np.concatenate(tables)
        words = data.size // self.config.lanes
        count = words // self.config.parameter_row_words
        row = self.parameters.take(count)
        load = Load(
            buffer=Buffer.PARAMETERS, memory=self.constants.add(data), x=words,
            address=row * self.config.parameter_row_words,
        )  # fmt: skip
        access = Access(Space.PARAMETERS, row, row + count, True)
        step.loads.append(Action(load, (access,), pieces[0][0].name))
        return row

    def _tables(self, layer: Layer, piece: _Piece, step: Step) -> None:
        """Load the tables of a piece, unless they are there."""
        tables = None if layer.post is None else layer.post.tables
        if tables is None:
            return
        outputs = self.config.outputs
        own = tables[piece.part.group * outputs :][:outputs] if len(tables) > 1 else tables
        data = np.broadcast_to(own, (outputs, tables.shape[1]))
        memory = self.constants.add(np.ascontiguousarray(data))
        if memory != self.table:
            self.table, words = memory, self.config.table_words
            load = Load(buffer=Buffer.TABLES, memory=memory, x=words)
            step.loads.append(Action(load, (Access(Space.TABLES, 0, words, True),), layer.name))

    def _upsample(
        self, layer: Layer, rows: tuple[int, int], views: dict[Value, View]
    ) -> list[Action]:
        """Rows of the result, each loaded with every word repeated."""
        assert layer.upsample is not None
        source, out, (down, across) = layer.sources[0], layer.out, layer.upsample
        root, first_plane = source.root
        size, view, loads = source.height * source.width, views[out], []
        for plane in range(source.planes):
            memory = self.memory[root] + (first_plane + plane) * size
            for row in range(*rows):
                for shift in range(across):
                    start = memory + row // down * source.width
                    address = view.base + plane * view.plane + row * out.width + shift
                    load = Load(
                        buffer=Buffer.FEATURES, memory=start, x=1, y=source.width, memory_y=1,
                        address=address, buffer_y=across,
                    )  # fmt: skip
                    last = address + (source.width - 1) * across + 1
                    accesses = (
                        Access(Space.MEMORY, start, start + source.width, False),
                        Access(Space.FEATURES, address, last, True),
                    )
                    loads.append(Action(load, accesses, layer.name))
        return loads


def _rows_of(value: Value, needs: dict[Value, tuple[int, int]]) -> tuple[int, int]:
    """Rows of a value that a strip needs, or of those that are parts of it."""
    if value in needs:
        return needs[value]
    return next(rows for v, rows in needs.items() if v.parent is not None and v.parent[0] is value)


def _slices(segment: Segment, layer: Layer) -> list[Value]:
    """Values of a layer of which the features hold some planes at a time."""
    return [
        value
        for value in dict.fromkeys((*layer.sources, layer.out))
        if value in segment.buffers and segment.buffers[value].planes < value.planes
    ]
