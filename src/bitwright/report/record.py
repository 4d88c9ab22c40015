# SPDX-License-Identifier: Apache-2.0
"""The schema of ``report.json``. Every number that is a claim is a `Figure`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, Field, model_validator

from bitwright.base.figures import Figure, Resources
from bitwright.base.records import (
    BlockRow,
    EdgeRow,
    EngineRow,
    FifoRow,
    OperandRow,
    PathRow,
    Record,
)
from bitwright.train.precision_rows import PrecisionRow


class SummaryRow(Record):
    """One line of the summary table; ``figure`` is None where a step has not been done."""

    label: str
    figure: Figure | None
    note: str = ""


class Stage(Record):
    """One step of the pipeline.

    Attributes:
        headline: what it gave, in a few words.
        seconds: how long it took when it ran, or None if it has not run.
    """

    name: str
    headline: str
    seconds: float | None = None


class MetricStage(Record):
    """The task's metrics at one stage of the pipeline, on ``images`` held-out images.

    Attributes:
        figure: by the metric that chooses.
        others: name of each further metric -> its value.
    """

    stage: str
    figure: Figure = Field(validation_alias=AliasChoices("figure", "accuracy"))
    images: int
    others: dict[str, Figure] = Field(default_factory=dict)


class Curve(Record):
    """A training curve: named series over the same epochs."""

    title: str
    y_label: str
    epochs: tuple[int, ...]
    series: dict[str, tuple[float, ...]]


class LayerRow(Record):
    """One layer with weights: its numbers and what it costs.

    Attributes:
        accumulator_bits: exact width from the actual weights; ``naive_bits`` the usual bound.
        cycles: per image, by the model.
        predicted, measured: resources by the model and by synthesis.
    """

    layer: str
    op: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    weight_format: str
    input_bits: int
    parameters: int
    macs: int
    accumulator_lo: int
    accumulator_hi: int
    accumulator_bits: int
    naive_bits: int
    pe: int | None = None
    simd: int | None = None
    cycles: int | None = None
    predicted: Resources | None = None
    measured: Resources | None = None


class SampleLevel(Record):
    """What the network said of one image at one stage of the pipeline; ``png`` is base64."""

    stage: str
    prediction: str
    png: str
    value: str = ""


class Sample(Record):
    """One held-out image with what the accelerator said; ``png`` is base64.

    Attributes:
        levels: where pictures are drawn on: what other stages said of it.
        right: whether that is right; None where there is more or less, but no right and wrong.
        value: by the metric that chooses, in words; empty where it is no mean of images.
    """

    index: int
    label: str
    prediction: str
    png: str
    right: bool | None = None
    value: str = ""
    levels: tuple[SampleLevel, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_a_classifier(cls, fields: Any) -> Any:
        """Earlier versions left what is right to the words."""
        if not isinstance(fields, Mapping) or "right" in fields:
            return fields
        return {**fields, "right": fields.get("label") == fields.get("prediction")}


class Baseline(Record):
    """Speed of one engine on this machine's processor."""

    engine: str
    batch: int
    threads: int
    images_per_second: Figure


class Energy(Record):
    """Energy of one inference: an estimate, by cause in microjoules, and its sources."""

    total: Figure
    parts: dict[str, float]
    sources: str


class Report(Record):
    """Everything one run found.

    Attributes:
        interval: cycles an image, simulated or else predicted; 0 where nothing is known.
        clock_mhz: at which rates are said.
        lut_kind: what LUTs count: "packed" or cells of "synthesis".
        metric: what ``quality`` is: the task's metric that chooses.
        distribution: values of that metric over the images of the integer graph: middle of each
            bar, and how many images it has; empty where all are right or wrong.
        legend: what is drawn on the sample images.
        inputs: what the inputs are called, in the plural.
        engine: of kind ``engine``: where its cycles go; None for a circuit of the network's own.
    """

    name: str
    description: str
    bitwright: str
    summary: tuple[SummaryRow, ...]
    stages: tuple[Stage, ...]
    quality: tuple[MetricStage, ...] = Field(validation_alias=AliasChoices("quality", "accuracy"))
    task: str = "classification"
    metric: str = "accuracy"
    distribution: tuple[tuple[str, int], ...] = ()
    legend: str = ""
    inputs: str = "images"
    proof: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    precision: tuple[PrecisionRow, ...] = ()
    operands: tuple[OperandRow, ...] = ()
    layers: tuple[LayerRow, ...] = ()
    blocks: tuple[BlockRow, ...] = ()
    fifos: tuple[FifoRow, ...] = ()
    capacity: Resources | None = None
    target: str = ""
    critical_path: tuple[PathRow, ...] = ()
    edges: tuple[EdgeRow, ...] = ()
    engine: EngineRow | None = None
    interval: int = 0
    clock_mhz: float = 0
    lut_kind: str = ""
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    samples: tuple[Sample, ...] = ()
    energy: Energy | None = None
    baselines: tuple[Baseline, ...] = ()
    cpu: str = ""
    facts: dict[str, str] = Field(default_factory=dict)
    recipe: str = ""
    graph: str = ""
