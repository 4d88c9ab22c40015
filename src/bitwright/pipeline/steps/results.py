# SPDX-License-Identifier: Apache-2.0
"""What each step has found, as typed values that lie as ``result.json`` in the step's folder.

Shares are in [0, 1]; figures that could come from several places are `Figure`s with their source.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from bitwright.base.errors import RunError
from bitwright.base.figures import Figure
from bitwright.base.files import atomic_write, regular_bytes
from bitwright.base.records import OperandRow, Record
from bitwright.train.precision_rows import PrecisionRow

FILE = "result.json"


class Result(Record):
    """Base of the results."""

    def save(self, folder: Path) -> None:
        """Write ``result.json``."""
        atomic_write(folder / FILE, self.model_dump_json(indent=1) + "\n")


_R = TypeVar("_R", bound=Result)


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
        return kind.model_validate_json(regular_bytes(path))
    except (OSError, ValidationError) as error:
        raise RunError(
            f"cannot be read: {error}",
            where=str(path),
            hint="delete the folder: the step is then done again",
        ) from error


class Epoch(Result):
    """One epoch of a training curve."""

    epoch: int
    lr: float
    train_loss: float
    train_accuracy: float
    validation_loss: float | None
    validation_accuracy: float | None


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


class TeacherRow(Result):
    """One teacher; its accuracy is on the test images, None for a file of logits."""

    model: str
    parameters: int
    accuracy: Figure | None
    history: tuple[Epoch, ...]
    kept_epoch: int


class TeachResult(Result):
    """The teachers, and their accuracy together."""

    teachers: tuple[TeacherRow, ...]
    accuracy: Figure | None


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


class TrainResult(Result):
    """The float model; ``shipped`` where it came with the package, its history too.

    Attributes:
        precision: of every epoch, where it was trained in low precision.
    """

    data: DataFacts
    parameters: int
    accuracy: Figure
    history: tuple[Epoch, ...]
    kept_epoch: int
    shipped: Shipped | None = None
    precision: tuple[PrecisionRow, ...] = ()


class PhaseRow(Result):
    """One phase of training in few bits.

    Attributes:
        teacher_accuracy: of the network that learned along, on the test images, when the phase was
            over; only of a co-study.
    """

    name: str
    history: tuple[Epoch, ...]
    kept_epoch: int
    validation_accuracy: float | None
    teacher_accuracy: Figure | None = None


class QuantizeResult(Result):
    """The integer network; ``accuracy_calibrated`` is that before training in few bits.

    ``input_rounding`` is the rule from real inputs to their levels.
    """

    accuracy: Figure
    accuracy_calibrated: Figure
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


class LowerResult(Result):
    """The integer graph, and what was compared with ``==``.

    Attributes:
        compared_images: test images on which the model and the lowered graph gave equal scores.
        compared_values: scores compared on them.
        reference_images: of these, those on which the interpreter, too, agreed on every edge.
        qonnx_images: test images on which QONNX's executor gave equal scores; 0 without a file.
        qonnx_refused: why there is no QONNX file; empty if there is one.
        size_bits: all weights and thresholds as stored in hardware.
    """

    digest: str
    accuracy: Figure
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
