# SPDX-License-Identifier: Apache-2.0
"""Carry chains of an ECP5 netlist packed tighter than synthesis leaves them.

A half of a CCU2C is a look-up table of four inputs with a carry: its sum is ``P ^ carry``, the next
carry is ``carry`` where P = 1, else G; P is the whole table, G its value at C = D = 0, a function
of A and B alone (Yosys' model, ``lattice/ccu2c_sim.vh``; Lattice TN-02206). Yosys maps an adder
onto it with two of the four inputs and puts everything in front into LUTs; nextpnr adds a whole
cell where a carry comes into a chain from the fabric, constants included, and one where it leaves
(see `bitwright.build.packing`). Here

- a carry that comes in is made by a half of the chain itself, and one that goes out is the sum of
  one: an odd number of bits has a half to spare. Where bit 0 is alone in front it needs no carry:
  its half makes the next one's carry, its sum, where it is read, is a LUT;
- LUTs that only halves read move into these, where the function allows: ``a & b + c & d``, the bit
  of a multiplication, is one half.

The function of the netlist stays what it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, count, product
from typing import Any

from bitwright.build.netlist import free_nets

_CARRY, _LUT, _NOTHING = "CCU2C", "LUT4", "x"
_PORTS = "ABCD"
Bit = int | str
Cells = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A function of nets: bit number i is its value where net k is bit k of i."""

    nets: tuple[int, ...]
    bits: int

    def at(self, values: dict[int, int]) -> int:
        """The value where the nets have these values."""
        return self.bits >> sum(values[net] << k for k, net in enumerate(self.nets)) & 1

    @classmethod
    def of(cls, nets: tuple[int, ...], values: Iterator[int]) -> Table:
        return cls(nets, sum(value << place for place, value in enumerate(values)))


def settings(nets: tuple[int, ...]) -> Iterator[dict[int, int]]:
    """All values of nets, net 0 fastest."""
    for values in product((0, 1), repeat=len(nets)):
        yield dict(zip(nets, reversed(values), strict=True))


def table_of(inputs: tuple[Bit, ...], init: int) -> Table:
    """The function of a look-up table, constants among its inputs put in.

    >>> table_of((7, "1", 9, "0"), 0x0008)
    Table(nets=(7, 9), bits=2)
    """
    nets = tuple(dict.fromkeys(bit for bit in inputs if isinstance(bit, int)))

    def value(setting: dict[int, int]) -> int:
        bits = (setting[b] if isinstance(b, int) else int(b == "1") for b in inputs)
        return init >> sum(bit << k for k, bit in enumerate(bits)) & 1

    return Table.of(nets, (value(setting) for setting in settings(nets)))


def put_in(outer: Table, net: int, inner: Table) -> Table:
    """`outer` with `inner` in the place of one of its nets."""
    nets = tuple(dict.fromkeys((*(n for n in outer.nets if n != net), *inner.nets)))
    return Table.of(
        nets, (outer.at({**values, net: inner.at(values)}) for values in settings(nets))
    )


@dataclass(frozen=True)
class Half:
    """One bit of a chain: propagate, generate (looked at where propagate is 0), net of the sum."""

    propagate: Table
    generate: Table
    sum: Bit = _NOTHING

    @property
    def nets(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self.propagate.nets, *self.generate.nets)))

    def with_table(self, net: int, inner: Table) -> Half:
        """With a function in the place of a net."""
        propagate, generate = (
            put_in(table, net, inner) if net in table.nets else table
            for table in (self.propagate, self.generate)
        )
        return replace(self, propagate=propagate, generate=generate)

    def placed(self) -> tuple[tuple[Bit, ...], int] | None:
        """Inputs A to D and the table of a half that does this; None if there is none."""
        nets = self.nets
        if len(nets) > len(_PORTS):
            return None
        for pair in combinations(nets, min(2, len(nets))):
            found = self._with_pair(pair, tuple(n for n in nets if n not in pair))
            if found is not None:
                return found
        return None

    def _with_pair(
        self, pair: tuple[int, ...], others: tuple[int, ...]
    ) -> tuple[tuple[Bit, ...], int] | None:
        inputs: tuple[Bit, ...] = (*pair, *("0",) * (2 - len(pair)), *others)
        inputs = (*inputs, *("1",) * (len(_PORTS) - len(inputs)))
        init = 0
        carries: dict[int, int] = {}
        for values in settings(self.nets):
            place = sum(
                (values[bit] if isinstance(bit, int) else int(bit)) << k
                for k, bit in enumerate(inputs)
            )
            if self.propagate.at(values):
                init |= 1 << place
            elif carries.setdefault(place & 3, self.generate.at(values)) != self.generate.at(
                values
            ):
                return None
        for low, carry in carries.items():
            if inputs[3] == "1":  # the lowest four entries say nothing but the carry
                init = init & ~(1 << low) | carry << low
            elif init >> low & 1 != carry:
                return None
        return inputs, init


ZERO, ONE = Table((), 0), Table((), 1)


def wire(net: Bit) -> Table:
    """A net, or a constant, as a function."""
    return Table((net,), 0b10) if isinstance(net, int) else ONE if net == "1" else ZERO


@dataclass
class Chain:
    """A carry chain: its cells, its halves, the carry that comes in and the net of the one out."""

    cells: list[str]
    halves: list[Half]
    come: Bit
    out: Bit = _NOTHING
    extra: list[tuple[Table, Bit]] = field(default_factory=list)  # LUTs beside it: function, net

    def cost(self) -> int:
        """LUT sites, with what nextpnr adds."""
        ends = (self.come != _NOTHING) + (self.out != _NOTHING)
        return 2 * -(-len(self.halves) // 2) + 2 * ends + len(self.extra)

    def with_own_ends(self, first_alone: bool) -> Chain:
        """The carries that come in and go out as halves of the chain.

        Args:
            first_alone: bit 0 may become a LUT and the half that makes the next carry.
        """
        halves, extra = list(self.halves), list(self.extra)
        if self.come != _NOTHING:
            first = self._first_alone() if first_alone else None
            if first is not None:
                halves[0], more = first
                extra += more
            else:
                halves.insert(0, Half(ZERO, wire(self.come)))
        if self.out != _NOTHING:
            halves.append(Half(ZERO, ZERO, self.out))
        return replace(self, halves=halves, come=_NOTHING, out=_NOTHING, extra=extra)

    def _first_alone(self) -> tuple[Half, list[tuple[Table, Bit]]] | None:
        """Bit 0 as the half that makes the next carry, and a LUT for its sum; where that helps."""
        first, come = self.halves[0], self.come
        bits = len(self.halves) + (self.out != _NOTHING)
        read = first.sum != _NOTHING
        if isinstance(come, int) or (read and bits % 2) or bits < 2:
            return None
        p, g = first.propagate, first.generate
        values = list(settings(first.nets))
        carry = Table.of(
            first.nets,
            (int(come) if p.at(v) else g.at(v) for v in values),
        )
        half = Half(ZERO, carry)
        if half.placed() is None:
            return None
        total = Table.of(first.nets, (p.at(v) ^ int(come) for v in values))
        return half, [(total, first.sum)] if read else []


def _bit(cell: dict[str, Any], port: str) -> Bit:
    bits = cell["connections"].get(port, ())
    return bits[0] if bits and bits[0] != "z" else _NOTHING


class _Module:
    """A flattened module while its chains are packed."""

    def __init__(self, module: dict[str, Any]) -> None:
        self.cells: Cells = module["cells"]
        ports = module.get("ports", {}).values()
        self.outputs = [b for port in ports if port["direction"] != "input" for b in port["bits"]]
        self.readers = Counter(self.outputs)
        self.driver: dict[Bit, dict[str, Any]] = {}
        for cell in self.cells.values():
            self.readers.update(_inputs(cell))
            if cell["type"] == _LUT:
                self.driver[_bit(cell, "Z")] = cell
        self.names = set(self.cells)  # of all cells that there were, those of chains included
        self.free = free_nets(module)

    def alone(self, chain: Chain) -> bool:
        """Whether no LUT could move into bit 0 of a chain."""
        return not any(n in self.driver and self.readers[n] == 1 for n in chain.halves[0].nets)

    def chains(self) -> list[Chain]:
        """All chains that nothing but their ends ties to the fabric."""
        carries = {n: c for n, c in self.cells.items() if c["type"] == _CARRY and _plain(c)}
        by_come = defaultdict(list)
        outs = {_bit(c, "COUT") for c in carries.values()}
        for name, cell in carries.items():
            by_come[_bit(cell, "CIN")].append(name)
        found = []
        for name, cell in carries.items():
            come = _bit(cell, "CIN")
            if come in outs and self.readers[come] == 1 and isinstance(come, int):
                continue
            chain = Chain([], [], come)
            here: str | None = name
            while here is not None:
                chain.cells.append(here)
                chain.halves += self._halves(self.cells[here])
                out = _bit(self.cells[here], "COUT")
                after = by_come.get(out, []) if isinstance(out, int) else []
                here = after[0] if len(after) == 1 and self.readers[out] == 1 else None
                chain.out = out if here is None and self.readers[out] else _NOTHING
            found.append(chain)
        return found

    def _halves(self, cell: dict[str, Any]) -> Iterator[Half]:
        for number in "01":
            inputs = tuple(_bit(cell, port + number) for port in _PORTS)
            init = int(cell["parameters"]["INIT" + number], 2)
            total = _bit(cell, "S" + number)
            read = isinstance(total, int) and self.readers[total] > 0
            yield Half(
                table_of(inputs, init),
                table_of(inputs[:2], init & 15),
                total if read else _NOTHING,
            )

    def write(self, chain: Chain) -> None:
        """Cells of a chain in the place of those it was read from."""
        old = [self.cells.pop(name) for name in chain.cells]
        halves = [*chain.halves]
        if len(halves) % 2:
            halves.append(Half(ZERO, ZERO))
        come, size = chain.come, len(halves) // 2
        for place in range(size):
            name = chain.cells[place] if place < len(old) else self._new_name(chain.cells[-1])
            last = place == size - 1
            out = chain.out if last else next(self.free)
            sample = old[min(place, len(old) - 1)]
            self.cells[name] = _carry_cell(sample, halves[2 * place : 2 * place + 2], come, out)
            come = out
        for table, net in chain.extra:
            self.cells[self._new_name(chain.cells[0])] = _lut_cell(old[0], table, net)

    def _new_name(self, near: str) -> str:
        """A name that no cell has or had: Yosys numbers its own cells in the same way."""
        name = next(n for k in count() if (n := f"{near}_carry{k}") not in self.names)
        self.names.add(name)
        return name


def _plain(cell: dict[str, Any]) -> bool:
    """Whether carries pass through both halves."""
    return all(cell["parameters"].get(f"INJECT1_{n}") == "NO" for n in "01")


def _carry_cell(sample: dict[str, Any], halves: list[Half], come: Bit, out: Bit) -> dict[str, Any]:
    parameters = dict(sample["parameters"])
    links: dict[str, list[Bit]] = {"CIN": [come], "COUT": [out]}
    for number, half in zip("01", halves, strict=True):
        placed = half.placed()
        assert placed is not None  # as it was, or tried before
        inputs, init = placed
        parameters["INIT" + number] = f"{init:016b}"
        links |= {port + number: [bit] for port, bit in zip(_PORTS, inputs, strict=True)}
        links["S" + number] = [half.sum]
    return {**sample, "parameters": parameters, "connections": links}


def _lut_cell(sample: dict[str, Any], table: Table, net: Bit) -> dict[str, Any]:
    inputs: tuple[Bit, ...] = (*table.nets, *("0",) * (4 - len(table.nets)))
    ways = {**dict.fromkeys(_PORTS, "input"), "Z": "output"}
    return {
        "hide_name": 0, "type": _LUT, "attributes": dict(sample["attributes"]),
        "parameters": {"INIT": f"{table.bits:016b}"}, "port_directions": ways,
        "connections": {**{p: [b] for p, b in zip(_PORTS, inputs, strict=True)}, "Z": [net]},
    }  # fmt: skip


def pack_carries(module: dict[str, Any]) -> bool:
    """Pack the chains of a flattened module of a JSON netlist, in place.

    Returns:
        whether there was anything to pack.
    """
    state = _Module(module)
    packed = []
    for chain in state.chains():
        while chain.halves and chain.out == _NOTHING and chain.halves[-1].sum == _NOTHING:
            chain.halves.pop()
        better = chain.with_own_ends(state.alone(chain)) if chain.halves else chain
        packed.append(better if better.cost() < chain.cost() else chain)
    _Absorber(state, packed).run()
    for chain in packed:
        state.write(chain)
    return bool(packed)


class _Absorber:
    """Moves LUTs whose readers are all halves into these."""

    def __init__(self, state: _Module, chains: list[Chain]) -> None:
        self.cells, self.chains = state.cells, chains
        self.halves: dict[int, set[tuple[int, int]]] = defaultdict(set)  # readers of a net
        for number, chain in enumerate(chains):
            for place in range(len(chain.halves)):
                self._enter(number, place)
        inside = {name for chain in chains for name in chain.cells}
        self.others = Counter(state.outputs)  # readers that are no halves
        for name, cell in state.cells.items():
            if name not in inside:
                self.others.update(_inputs(cell))
        for chain in chains:
            self.others[chain.come] += 1
            self.others.update(net for table, _ in chain.extra for net in table.nets)

    def _enter(self, number: int, place: int) -> None:
        for net in self.chains[number].halves[place].nets:
            self.halves[net].add((number, place))

    def run(self) -> None:
        while self._round():
            pass

    def _round(self) -> bool:
        moved = False
        for name, cell in list(self.cells.items()):
            net = _bit(cell, "Z") if cell["type"] == _LUT else None
            if isinstance(net, int) and net in self.halves and not self.others[net]:
                moved |= self._move(name, net)
        return moved

    def _move(self, name: str, net: int) -> bool:
        cell = self.cells[name]
        then: dict[tuple[int, int], Half] = {}
        for number, place in self.halves[net]:
            half = self.chains[number].halves[place].with_table(net, _lut_table(cell))
            if half.placed() is None:
                return False
            then[number, place] = half
        for (number, place), half in then.items():
            self.chains[number].halves[place] = half
            self._enter(number, place)
        del self.halves[net], self.cells[name]
        self.others.subtract(_inputs(cell))
        return True


def _lut_table(cell: dict[str, Any]) -> Table:
    return table_of(tuple(_bit(cell, p) for p in _PORTS), int(cell["parameters"]["INIT"], 2))


def _inputs(cell: dict[str, Any]) -> Iterator[Bit]:
    for port, bits in cell["connections"].items():
        if cell["port_directions"].get(port) != "output":
            yield from bits
