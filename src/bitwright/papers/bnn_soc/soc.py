# SPDX-License-Identifier: Apache-2.0
"""The DE0-Nano-SoC's time as the document measured it (spec 2.17 to 2.21): a calibrated model.

A layer of R rows and C columns takes ``launch + R C (product + growth log2(C / 784))``. That a
product costs more in longer rows is in the measurements (on the FPGA twice as much at 4096 columns
as at 784): consecutive work-items read addresses a row apart, and the vector of inputs outgrows
what is near. Three constants a kernel and place stand against three measured layers: this is a
calibration. What it predicts is other layers, and the sums for networks, which are printed too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from bitwright.base.errors import DataError, TargetError
from bitwright.base.files import parse_toml
from bitwright.papers.bnn_soc.packing import words_of

PLACES = ("arm", "soc")
KERNELS = ("multiply", "xnor", "compressed")
_LAYERS = ("hidden1", "hidden2", "output")
_NETS = {"net1": ("hidden1", "output"), "net2": ("hidden1", "hidden2", "output")}
_REFERENCE_COLUMNS = 784
#: Bytes of a weight; packed rows are whole 32-bit words.
_WEIGHT_BYTES = {"multiply": 4, "xnor": 1}


@cache
def published() -> dict[str, Any]:
    """The document's tables."""
    text = (files("bitwright.papers.bnn_soc") / "published.toml").read_text(encoding="utf-8")
    return parse_toml(text)


@dataclass(frozen=True)
class Cost:
    """What a kernel costs at a place.

    Attributes:
        launch_ms: a layer, whatever its size.
        product_ns: a multiply-accumulate in rows of 784 columns.
        growth_ns: more for every doubling of the columns.
    """

    launch_ms: float
    product_ns: float
    growth_ns: float

    def layer_ms(self, rows: int, columns: int) -> float:
        """Time of one layer."""
        each = self.product_ns + self.growth_ns * math.log2(columns / _REFERENCE_COLUMNS)
        return self.launch_ms + rows * columns * max(each, 0.0) * 1e-6


@cache
def cost(place: str, kernel: str) -> Cost:
    """The constants that give the three measured layers; a suspect cell counts as corrected.

    Raises:
        DataError: no such place or kernel.
    """
    _known(place, kernel)
    times = _consistent(place, kernel)
    shapes = published()["shapes"]
    (rows1, short), (rows2, long), (few, _) = (shapes[layer] for layer in _LAYERS)
    of_long = (times["hidden2"] - times["output"]) / ((rows2 - few) * long) * 1e6
    launch = times["output"] - few * long * of_long * 1e-6
    if launch < 0:  # a launch takes time: then it is the smallest that is none, the layers decide
        launch, of_long = 0.0, times["hidden2"] / (rows2 * long) * 1e6
    of_short = (times["hidden1"] - launch) / (rows1 * short) * 1e6
    return Cost(launch, of_short, (of_long - of_short) / math.log2(long / short))


def _known(place: str, kernel: str) -> None:
    if place not in PLACES or kernel not in KERNELS:
        raise DataError(
            f"no kernel {kernel!r} at {place!r}",
            where="model of the SoC",
            hint=f"places: {', '.join(PLACES)}; kernels: {', '.join(KERNELS)}",
        )


def _consistent(place: str, kernel: str) -> dict[str, float]:
    times = dict(published()["time"][place][kernel])
    for cell in published()["suspect"]:
        if (cell["place"], cell["kernel"]) == (place, kernel):
            times[cell["cell"]] = cell["corrected"]
    return times


@dataclass(frozen=True)
class Cell:
    """A printed time and the model's; ``reason`` says why a cell is not to be trusted."""

    place: str
    kernel: str
    cell: str
    printed_ms: float
    model_ms: float
    reason: str = ""

    @property
    def relative(self) -> float:
        """How far the model is off, as a share of what is printed."""
        return self.model_ms / self.printed_ms - 1


def cells() -> tuple[Cell, ...]:
    """All times of the document's two tables, layers and networks, beside the model's."""
    reasons = {(c["place"], c["kernel"], c["cell"]): c["reason"] for c in published()["suspect"]}
    found = []
    for place in PLACES:
        for kernel in KERNELS:
            constants = cost(place, kernel)
            shapes = published()["shapes"]
            layers = {name: constants.layer_ms(*shapes[name]) for name in _LAYERS}
            layers |= {net: sum(layers[name] for name in parts) for net, parts in _NETS.items()}
            for cell, printed in published()["time"][place][kernel].items():
                reason = reasons.get((place, kernel, cell), "")
                found.append(Cell(place, kernel, cell, printed, layers[cell], reason))
    return tuple(found)


@dataclass(frozen=True)
class Buffers:
    """Bytes of a layer's buffers (the table of spec 2.16).

    Attributes:
        macs: products of one frame.
        weight, inputs, outputs: bytes.
        accesses: reads of one work-item: its row of weights and the vector of inputs, element by
            element or word by word.
    """

    macs: int
    weight: int
    inputs: int
    outputs: int
    accesses: int


def buffers(kernel: str, rows: int, columns: int) -> Buffers:
    """What the host sends for one layer, and what its work-items read."""
    _known("soc", kernel)
    if kernel == "compressed":
        row, elements = 4 * words_of(columns), words_of(columns)
    else:
        row, elements = _WEIGHT_BYTES[kernel] * columns, columns
    return Buffers(rows * columns, rows * row, row, 4 * rows, 2 * elements)


def bridge_beats(nbytes: int, bridge: str, bits: int) -> int:
    """Transfers of a bridge between processor and FPGA.

    Raises:
        TargetError: the bridge cannot be so wide.
    """
    widths = published()["bridges"].get(bridge, [])
    if bits not in widths:
        raise TargetError(f"{bridge} is {widths} bits wide, not {bits}", where="bridge")
    return -(-nbytes * 8 // bits)


@dataclass(frozen=True)
class LayerTime:
    """A layer of a network: its kernel's time and what it moves over a bridge."""

    rows: int
    columns: int
    ms: float
    memory: Buffers
    beats: int

    @property
    def weight_mbytes_a_second(self) -> float:
        """Implied by the kernel's time."""
        return self.memory.weight / self.ms / 1e3


def network_time(
    sizes: Sequence[int], place: str, kernel: str, bridge_bits: int = 64
) -> tuple[LayerTime, ...]:
    """Every layer of a network of these sizes, by the model. Kernels alone: what the host sends is
    counted in beats of its bridge, whose clock the document does not give.
    """
    constants = cost(place, kernel)
    found = []
    for columns, rows in pairwise(sizes):
        memory = buffers(kernel, rows, columns)
        beats = bridge_beats(memory.weight + memory.inputs, "hps_to_fpga", bridge_bits)
        ms = constants.layer_ms(rows, columns)
        found.append(LayerTime(rows, columns, ms, memory, beats))
    return tuple(found)


@dataclass(frozen=True)
class Event:
    """One step of a classification (the sequence of spec 2.17).

    Attributes:
        at_ms: by the model; host steps take no time of their own in it.
        who: ``ARM`` or ``FPGA``.
        layer: from 1; 0 is none.
        nbytes: moved by this step.
        items: work-items that run.
    """

    at_ms: float
    who: str
    what: str
    layer: int = 0
    nbytes: int = 0
    items: int = 0


def trace(sizes: Sequence[int], kernel: str, bridge_bits: int = 64) -> tuple[Event, ...]:
    """The events of one frame on the board, in order."""
    found = [Event(0.0, "ARM", "read image from DDR, fill input layer", nbytes=sizes[0])]
    now = 0.0
    for number, layer in enumerate(network_time(sizes, "soc", kernel, bridge_bits), 1):
        memory = layer.memory
        each = 4 * memory.accesses if kernel != "xnor" else memory.accesses
        found += [
            Event(now, "ARM", "write weights", number, memory.weight),
            Event(now, "ARM", "write input activations", number, memory.inputs),
            Event(now, "ARM", "start kernel", number, items=layer.rows),
            Event(now, "FPGA", "read rows and inputs", number, layer.rows * each, layer.rows),
            Event(now, "FPGA", "multiply and accumulate", number, items=layer.rows),
        ]
        now += layer.ms
        found += [
            Event(now, "FPGA", "write cells of the output", number, memory.outputs, layer.rows),
            Event(now, "FPGA", "interrupt: completion", number),
            Event(now, "ARM", "read result", number, memory.outputs),
            Event(now, "ARM", "apply activation", number, items=layer.rows),
        ]
    found.append(Event(now, "ARM", "compare output layer with the expected class"))
    return tuple(found)


@dataclass(frozen=True)
class Usage:
    """Cells of a kernel's image.

    Attributes:
        used: by resource, as the document reports it; ``alms`` from its percentage.
        shared: the least of all kernels: board support and load and store units, mostly.
        limits: of the device.
    """

    kernel: str
    used: dict[str, int]
    shared: dict[str, int]
    limits: dict[str, int]

    @property
    def own(self) -> dict[str, int]:
        """What this kernel takes beyond what all take."""
        return {name: self.used[name] - self.shared[name] for name in self.used}

    @property
    def shares(self) -> dict[str, float]:
        """Of the device, for every resource that has a limit."""
        return {name: self.used[name] / limit for name, limit in self.limits.items()}

    @property
    def fits(self) -> bool:
        """Nothing is needed that is not there."""
        return all(share <= 1 for share in self.shares.values())


def usage(kernel: str) -> Usage:
    """Resources of one kernel (spec 4.5): a table with its common part set apart, no synthesis."""
    _known("soc", kernel)
    limits = dict(published()["device"])
    every = {name: _cells(name, limits) for name in KERNELS}
    names = every[kernel]
    shared = {name: min(one[name] for one in every.values()) for name in names}
    return Usage(kernel, names, shared, limits)


def _cells(kernel: str, limits: dict[str, int]) -> dict[str, int]:
    row = published()["resources"][kernel]
    kept = ("aluts", "registers", "pins", "dsp", "memory_bits", "m10k")
    alms = round(row["logic_percent"] / 100 * limits["alms"])
    return {name: row[name] for name in kept} | {"alms": alms}
