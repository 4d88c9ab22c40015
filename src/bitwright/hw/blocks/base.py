# SPDX-License-Identifier: Apache-2.0
"""What every hardware building block is: ports, timing, cost, instance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import isqrt
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.base.figures import Resources
from bitwright.hw.memory import STYLE_CODES, Memory, choose_style, ram_resources, ram_style
from bitwright.hw.rams import ram_lines, rows_resources
from bitwright.ir import Node, TensorType

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Port:
    """A named stream: the tensor it carries and how many elements travel in one beat."""

    name: str
    type: TensorType
    lanes: int

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.type.size % self.lanes:
            raise GraphError(
                f"{self.lanes} lanes do not divide the {self.type.size} elements of a frame",
                where=self.name,
            )

    @property
    def beats(self) -> int:
        """Transfers of one frame."""
        return self.type.size // self.lanes

    @property
    def width(self) -> int:
        """Bits of one beat."""
        return self.lanes * self.type.wire_bits


@dataclass(frozen=True)
class Firing:
    """The timing of a block that does one step ("fire") a cycle, in a fixed order, every frame.

    A step waits for all the beats it takes; a join takes beats of several inputs, in the same step
    (an addition) or in different ones (a concatenation).

    Attributes:
        fires: steps of one frame: the block's interval in cycles.
        consume: for beat k of the (first) input, the step that takes it (ascending).
        produce: for output beat j of a frame, the step that makes it (ascending).
        latency: cycles from that step to the beat being valid at the output.
        others: the same as `consume`, for every further input.
    """

    fires: int
    consume: Times
    produce: Times
    latency: int
    others: tuple[Times, ...] = ()

    @property
    def consumes(self) -> tuple[Times, ...]:
        """For every input, in order, the steps that take its beats."""
        return (self.consume, *self.others)


@dataclass(frozen=True)
class Fold:
    """One legal way to fold a block: attributes to set, and the lanes it then has at its ports."""

    attrs: tuple[tuple[str, int | str], ...]
    lanes_in: int
    lanes_out: int

    def as_dict(self) -> dict[str, int | str]:
        return dict(self.attrs)


@dataclass(frozen=True)
class Instance:
    """What the emitter writes for a block.

    Attributes:
        module: a module of ``rtl/lib``.
        parameters: parameter name -> integer, or a literal of the language where 32 bits are too
            few.
        memories: parameter name -> image; the parameter receives the file's path.
        lane_memories: parameter name -> an image a lane; the parameter receives the path without
            the lane's number and ``.mem``.
    """

    module: str
    parameters: Mapping[str, int | str]
    memories: Mapping[str, Memory] = field(default_factory=dict)
    lane_memories: Mapping[str, tuple[Memory, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("parameters", "memories", "lane_memories"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


@dataclass(frozen=True)
class Block(ABC):
    """A hardware building block: a node of the hardware graph with the types of its edges.

    Subclasses are final; each gives the block's meaning in cycles and cells.

    Attributes:
        input_type: type of the first input edge.
        output_type: type of every output edge.
        choices: attributes that stand instead of the node's own: another folding of the same block.
        other_types: types of the further input edges of a join.
    """

    LANES: ClassVar[str] = "pe"  # the attribute with the elements a beat, in and out
    IN_ROWS: ClassVar[bool] = False  # two registers stand behind the buffer (`hw.rams`)

    node: Node
    input_type: TensorType
    output_type: TensorType
    choices: tuple[tuple[str, int | str], ...] = ()
    other_types: tuple[TensorType, ...] = ()

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """Types of all input edges, in the node's order."""
        return (self.input_type, *self.other_types)

    @cached_property
    def _chosen(self) -> dict[str, int | str]:
        return dict(self.choices)

    def integer(self, attr: str) -> int:
        """An attribute that a folding may set."""
        value = self._chosen.get(attr)
        return value if isinstance(value, int) else self.node.integer(attr)

    def string(self, attr: str) -> str:
        """An attribute that a folding may set."""
        value = self._chosen.get(attr)
        return value if isinstance(value, str) else self.node.string(attr)

    def with_attrs(self, **attrs: int | str) -> Node:
        """The node with the choices, and with some more attributes replaced."""
        return replace(self.node, attrs={**self.node.attrs, **dict(self.choices), **attrs})

    @classmethod
    def chosen(cls, node: Node) -> type[Block]:
        """The class that stands for a node of this operation: a folding may choose another
        module.
        """
        return cls

    def folded(self, fold: Fold) -> Block:
        """This block folded another way."""
        return replace(self, choices=fold.attrs)

    @property
    def pe(self) -> int:
        return self.integer("pe")

    @property
    def in_pixels(self) -> bool:
        """Whether the elements of a window come pixel after pixel, `lanes` channels of each: an
        order that depends on the lanes, so that no converter can stand in front.
        """
        return False

    @property
    def out_pixels(self) -> bool:
        """The same of the elements that it gives."""
        return False

    @property
    def lanes(self) -> tuple[int, int]:
        """Elements a beat at the input (at every one of them) and at the output."""
        both = self.integer(self.LANES)
        return both, both

    @property
    def buffer(self) -> tuple[int, int] | None:
        """(words, bits) of the memory of the block that is written while it runs, if it has one
        that `ram_style` places; 0 words are left out.
        """
        return None

    @property
    def lut_words(self) -> int:
        """Words of its buffer that are read in one cycle if that is a LUT RAM; else 0."""
        if self.buffer is None or self.string("ram_style") != "distributed":
            return 0
        return self.ram_lines or self.buffer[0]

    @property
    def ram_lines(self) -> int:
        """Words of a row of its buffer; 0: it is whole."""
        if self.buffer is None or not self.IN_ROWS:
            return 0
        return ram_lines(*self.buffer, self.string("ram_style"))

    @property
    def ram_parameters(self) -> dict[str, int]:
        """How the RTL keeps the buffer."""
        style = {"RamStyle": STYLE_CODES[self.string("ram_style")]}
        return style | ({"RamLines": self.ram_lines} if self.ram_lines else {})

    @abstractmethod
    def firing(self) -> Firing:
        """When beats are taken and made; see `Firing`."""

    @abstractmethod
    def features(self, family: str) -> dict[str, float]:
        """Terms of the cost formula of this kind of block (see `hw.cost`)."""

    @abstractmethod
    def instance(self) -> Instance:
        """Module, parameters and memory images."""

    def foldings(self) -> tuple[Fold, ...]:
        """All legal foldings; one entry without attributes where there is no choice."""
        lanes_in, lanes_out = self.lanes
        return (Fold((), lanes_in, lanes_out),)

    def resolve(self, family: str) -> Node:
        """The node with every `auto` made definite for a family."""
        if self.buffer is None:
            return self.with_attrs()
        words, bits = self.buffer
        return self.with_attrs(
            ram_style=ram_style(family, max(1, words), bits, self.string("ram_style"))
        )

    def more_cost(self, family: str) -> Resources:
        """What stands beside the block's own module and is not in its fitted line."""
        return Resources()

    def memory_cost(self, family: str) -> Resources:
        """Block RAM, DSP and LUT memory, counted exactly rather than fitted."""
        if self.buffer is None or self.buffer[0] == 0:
            return Resources()
        style = self.string("ram_style")
        cost = rows_resources if self.IN_ROWS else ram_resources
        return cost(family, *self.buffer, style)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Input streams, one per input edge of the node."""
        types = self.input_types
        if len(types) == 1:
            return (Port("in", self.input_type, self.lanes[0]),)
        return tuple(Port(f"in{i}", t, self.lanes[0]) for i, t in enumerate(types))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Output streams, one per output edge of the node."""
        if len(self.node.outputs) == 1:
            return (Port("out", self.output_type, self.lanes[1]),)
        names = (f"out{i}" for i in range(len(self.node.outputs)))
        return tuple(Port(name, self.output_type, self.lanes[1]) for name in names)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def cost_kind(self) -> str:
        """The line of the cost model (see `hw.cost`) that holds for this block."""
        return self.node.op

    @property
    def interval(self) -> int:
        """Cycles per frame when this block alone limits the pipeline."""
        return self.firing().fires

    @property
    def latency(self) -> int:
        """Cycles from the first input beat to the first output beat, never stalled."""
        firing = self.firing()
        first = min(int(consume[0]) for consume in firing.consumes)
        return max(0, int(firing.produce[0]) - first) + firing.latency

    @property
    def pipeline(self) -> int:
        """Register stages between a step and the output: what can hold bubbles."""
        return self.firing().latency


@dataclass(frozen=True)
class ChannelBlock(Block):
    """A block that takes and gives `pe` channels a cycle."""

    def foldings(self) -> tuple[Fold, ...]:
        return pe_foldings(self.output_type.channels)


@dataclass(frozen=True)
class TableBlock(ChannelBlock):
    """A block that reads constants of its channels from ROMs, which `ram_style` places."""

    @property
    def in_luts(self) -> bool:
        return self.string("ram_style") != "block"

    @abstractmethod
    def rom_cost(self, family: str, *, in_luts: bool) -> Resources:
        """The ROMs, with those that are worth one in block RAM unless `in_luts`."""

    def resolve(self, family: str) -> Node:
        logic, block = (self.rom_cost(family, in_luts=flag) for flag in (True, False))
        style = choose_style(self.string("ram_style"), logic.lut - block.lut, block.bram)
        if not block.bram:
            style = "distributed"
        return self.with_attrs(ram_style=style)

    def memory_cost(self, family: str) -> Resources:
        return self.rom_cost(family, in_luts=self.in_luts)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def all_foldings(lanes_in: str, lanes_out: str, **choices: Sequence[int | str]) -> tuple[Fold, ...]:
    """Every combination of these values of attributes, two of which are the lanes."""
    chosen = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
    return tuple(Fold(tuple(c.items()), int(c[lanes_in]), int(c[lanes_out])) for c in chosen)


def pe_foldings(channels: int, **choices: Sequence[int | str]) -> tuple[Fold, ...]:
    """The foldings of a block that takes and gives `pe` channels a cycle, with other choices."""
    return all_foldings("pe", "pe", pe=divisors(channels), **choices)


def one_to_one(beats: int, latency: int) -> Firing:
    """One beat in, one beat out, every cycle."""
    steps = np.arange(beats, dtype=np.int64)
    return Firing(beats, steps, steps, latency)
