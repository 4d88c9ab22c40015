# SPDX-License-Identifier: Apache-2.0
"""Rows that steps of a run leave behind and reports show."""

from __future__ import annotations

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from bitwright.base.figures import Resources


class Record(BaseModel):
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
