# SPDX-License-Identifier: Apache-2.0
"""What each step has found, as typed values that lie as ``result.json`` in the step's folder.

Shares are in [0, 1]; figures that could come from several places are `Figure`s with their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from bitwright.base.described import validated
from bitwright.base.errors import RunError
from bitwright.base.figures import Figure
from bitwright.base.files import atomic_write, regular_bytes
from bitwright.base.records import OperandRow, Record
from bitwright.train.precision_rows import PrecisionRow
from bitwright.train.records import named, unnamed

FILE = "result.json"


class Result(Record):
    """Base of the results."""

    def save(self, folder: Path) -> None:
        """Write ``result.json``."""
        atomic_write(folder / FILE, self.model_dump_json(indent=1) + "\n")


_R = TypeVar("_R", bound=Result)


def _also(*names: str, **more: Any) -> Any:
    """A field that earlier versions had under another name."""
    return Field(validation_alias=AliasChoices(*names), **more)


def load_result(kind: type[_R], folder: Path) -> _R:
    """Read the result of a finished step.

    Raises:
        RunError: it cannot be read.
    """
    return read_record_of(kind, folder / FILE)


_M = TypeVar("_M", bound=BaseModel)


def read_record_of(kind: type[_M], path: Path) -> _M:
    """What a file of a finished step's folder says.

    Raises:
        RunError: it cannot be read.
    """
    try:
        return validated(kind, regular_bytes(path))
    except (OSError, ValidationError) as error:
        raise RunError(
            f"cannot be read: {error}",
            where=str(path),
            hint="delete the folder: the step is then done again",
        ) from error


class Metered(Result):
    """Base of the results that measure a network on test images.

    Attributes:
        metrics: name of each metric of the task -> its value; the first one is what chooses.
    """

    metrics: dict[str, Figure]

    @model_validator(mode="before")
    @classmethod
    def _accuracy_alone(cls, fields: Any) -> Any:
        """Earlier versions knew no other figure."""
        if not isinstance(fields, Mapping) or "accuracy" not in fields:
            return fields
        left = {name: value for name, value in fields.items() if name != "accuracy"}
        given = fields["accuracy"]
        return left | {"metrics": {} if given is None else {"accuracy": given}}

    @property
    def metric(self) -> str:
        """The name of the first metric; empty if nothing was measured."""
        return next(iter(self.metrics), "")

    @property
    def figure(self) -> Figure | None:
        """The value of the first metric."""
        return self.metrics.get(self.metric)


class Epoch(Result):
    """One epoch of a training curve, by the metric that chooses, whose key is ``metric``."""

    epoch: int
    lr: float
    train_loss: float
    train_metric: float
    validation_loss: float | None
    validation_metric: float | None
    metric: str = "accuracy"

    @model_validator(mode="before")
    @classmethod
    def _from_record(cls, record: Any) -> Any:
        return unnamed(record) if isinstance(record, Mapping) else record

    @model_serializer(mode="wrap")
    def _to_record(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        made: dict[str, Any] = named(fields(self))
        return made


class DataFacts(Result):
    """Which images were used.

    Attributes:
        source: the file or folder they came from, without its place, or the library.
        inputs: what was made of numbers that are no levels, in words.
    """

    name: str
    source: str
    digest: str
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    train: int
    validation: int
    test: int
    inputs: str = ""


class TeacherRow(Metered):
    """One teacher; nothing is measured of a file of logits."""

    model: str
    parameters: int
    history: tuple[Epoch, ...]
    kept_epoch: int


class TeachResult(Metered):
    """The teachers, and how well they do together."""

    teachers: tuple[TeacherRow, ...]


class Shipped(Result):
    """The checkpoint of the package that was taken instead of training.

    Attributes:
        name: of the entry.
        command: what trained it.
        accuracy: share of the test images that it states.
    """

    name: str
    command: str
    accuracy: float
    sha256: str


class TrainResult(Metered):
    """The float model; ``shipped`` where it came with the package, its history too.

    Attributes:
        precision: of every epoch, where it was trained in low precision.
    """

    data: DataFacts
    parameters: int
    history: tuple[Epoch, ...]
    kept_epoch: int
    shipped: Shipped | None = None
    precision: tuple[PrecisionRow, ...] = ()


class PhaseRow(Result):
    """One phase of training in few bits.

    Attributes:
        validation_metric: of the kept weights, by the metric that chooses.
        teacher_figure: of the network that learned along, on the test images, when the phase was
            over; only of a co-study.
    """

    name: str
    history: tuple[Epoch, ...]
    kept_epoch: int
    validation_metric: float | None = _also("validation_metric", "validation_accuracy")
    teacher_figure: Figure | None = _also("teacher_figure", "teacher_accuracy", default=None)


class QuantizeResult(Metered):
    """The integer network; ``calibrated`` is its figure before training in few bits.

    ``input_rounding`` is the rule from real inputs to their levels.
    """

    calibrated: Figure = _also("calibrated", "accuracy_calibrated")
    phases: tuple[PhaseRow, ...]
    operands: tuple[OperandRow, ...]
    input_rounding: str = "half_even"


class AccumulatorRow(Result):
    """One line of the overflow certificate."""

    node: str
    terms: int
    lo: int
    hi: int
    width: int
    naive_width: int


class LayerFacts(Result):
    """One layer of the integer graph, from its nodes.

    Attributes:
        node: the conv or dense node.
        source: the user's layer.
    """

    node: str
    op: str
    source: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    parameters: int
    macs: int
    weight_format: str
    weight_bits: int
    input_bits: int
    accumulator_bits: int


class LowerResult(Metered):
    """The integer graph, and what was compared with ``==``.

    Attributes:
        compared_images: test images on which the model and the lowered graph gave equal scores.
        compared_values: scores and labels compared on them.
        labels_that_tie: labels of these that are not the trained model's, whose highest scores are
            equal as float32 where the integers are not.
        reference_images: of these, those on which the interpreter, too, agreed on every edge.
        qonnx_images: test images on which QONNX's executor gave equal scores; 0 without a file.
        qonnx_refused: why there is no QONNX file; empty if there is one.
        size_bits: all weights and thresholds as stored in hardware.
    """

    digest: str
    compared_images: int
    compared_values: int
    reference_images: int
    qonnx_images: int
    size_bits: int
    weight_bits: int
    float_bits: int
    layers: tuple[LayerFacts, ...]
    certificate: tuple[AccumulatorRow, ...]
    qonnx_refused: str = ""
    labels_that_tie: int = 0
