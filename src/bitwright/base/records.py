# SPDX-License-Identifier: Apache-2.0
"""Rows that steps of a run leave behind and reports show."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, TypeAdapter, ValidationError

from bitwright.base.described import Described
from bitwright.base.figures import Resources

#: A clock in MHz, bits a second of a line, clock cycles, and any other figure: records may be
#: anybody's, and others are divided by them, or they are drawn. A target that knows no bound of its
#: clock is far below these.
Mhz = Annotated[float, Field(ge=1e-9, le=1e15)]
Baud = Annotated[float, Field(ge=1e-9, le=1e15)]
Finite = Annotated[float, Field(ge=-1e100, le=1e100)]
Positive = Annotated[float, Field(ge=1e-100, le=1e100)]
#: A figure of a machine, of which several are multiplied: what is computed of them lies in the
#: bounds of `Positive`.
Rating = Annotated[float, Field(ge=1e-30, le=1e30)]
Cycles = Annotated[int, Field(ge=0, lt=1 << 63)]


def _zero_or_from(least: float) -> AfterValidator:
    def check(value: float) -> float:
        if value != 0 and value < least:
            raise ValueError(f"Input should be 0, or at least {least:g}")
        return value

    return AfterValidator(check)


#: The same, of what may be nothing.
PositiveOrZero = Annotated[float, Field(ge=0, le=1e100), _zero_or_from(1e-100)]
RatingOrZero = Annotated[float, Field(ge=0, le=1e30), _zero_or_from(1e-30)]


def is_of(kind: TypeAdapter[Any] | None, value: object) -> bool:
    """Whether a JSON value that may be anybody's is of a kind as it is, a text of a figure being no
    figure. None: any is.
    """
    try:
        return kind is None or kind.validate_json(json.dumps(value), strict=True) is not None
    except ValidationError:
        return False


class Record(Described):
    """Base of all that is kept in a run directory: nothing unknown is read back."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OperandRow(Record):
    """What one operand of one layer became, and why, as `quant.explain` says."""

    layer: str
    type: str = ""
    operand: str = Field(validation_alias=AliasChoices("operand", "role"))
    format: str
    granularity: str
    scale: str
    reason: str


class BlockRow(Record):
    """One block of the accelerator.

    Attributes:
        instance: its name in the RTL.
        layer: the user's layer that it came from.
        cycles: between two images, if this block alone limited the pipeline.
        predicted, measured: resources by the model and by synthesis.
    """

    name: str
    instance: str = ""
    kind: str
    layer: str
    pe: int | None
    simd: int | None
    cycles: int
    latency: int
    predicted: Resources = Field(validation_alias=AliasChoices("predicted", "resources"))
    measured: Resources | None = None


class EdgeRow(Record):
    """One stream between two blocks; "" is the design's own input or output.

    Attributes:
        beats: transfers an image.
        width: bits of each.
    """

    source: str
    target: str
    beats: int
    width: int


class PathRow(Record):
    """The part of a critical path within one block.

    Attributes:
        block: name of the block, or of what else the path goes through.
        levels: cells of logic passed.
        logic_ns: in them, clock-to-output and set-up times included.
        routing_ns: on the nets inside the block, and on the one that leads into it.
    """

    block: str
    levels: int
    logic_ns: float
    routing_ns: float


class FifoRow(Record):
    """One FIFO: depth in beats, width in bits and, once simulated, the most beats it held."""

    instance: str
    depth: int
    width: int
    high_water: int | None = None


class EngineLayerRow(Record):
    """What a layer takes of a programmed engine's array, in cycles.

    Attributes:
        busy: cycles of its instructions.
        waits: cycles that the array stood still in it, by what it waited for: ``load``, ``store``,
            ``execute`` (results of its own) or ``fetch``.
        macs: multiply-accumulates of the network's convolutions and dense layers.
        utilisation: macs of what the array could do in the layer's time.
    """

    name: str
    busy: int
    waits: dict[str, int]
    macs: int
    utilisation: float


class EngineMappingRow(Record):
    """How a layer is done on a programmed engine.

    Attributes:
        nodes: of the integer graph, that it does.
        lanes: bits of the lanes that it multiplies in, 4 or 8; result: bits of its results.
        activation: what follows its sums: so many thresholds, a requantization, none.
        strips: how many its maps are cut into; rows: of one.
        chain: layers that are done strip by strip with it, itself included.
        sources, target: where its operands and its result lie: whole on the ``chip``, in the
            strips of a ``chain``, in the ``memory`` outside.
    """

    layer: str
    nodes: tuple[str, ...]
    lanes: int
    result: int
    activation: str
    strips: int
    rows: int
    chain: tuple[str, ...]
    sources: tuple[str, ...]
    target: str


class EngineWaitRow(Record):
    """Cycles that the array stood still in a layer, and for what of which layer."""

    layer: str
    what: str
    of: str
    cycles: int


class EngineSpanRow(Record):
    """A unit of the engine at work on a layer, from one cycle to another."""

    unit: str
    layer: str
    begin: int
    end: int


class EngineRow(Record):
    """A network on a programmed engine.

    Attributes:
        engine: ``PxIxO``.
        cycles: of an image.
        spans: of the three units, those of a layer that nearly touch as one.
    """

    engine: str
    cycles: int
    layers: tuple[EngineLayerRow, ...]
    waits: tuple[EngineWaitRow, ...]
    spans: tuple[EngineSpanRow, ...]
