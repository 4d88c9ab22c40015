# SPDX-License-Identifier: Apache-2.0
"""What `bitwright bnn train` leaves: the model, packed too, and how it was trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from bitwright.base.bounded import bounded_reader
from bitwright.base.described import Strict, validated
from bitwright.base.errors import DataError
from bitwright.base.files import MOST_TEXT, atomic_write, read_bytes
from bitwright.papers.bnn_soc.course import Look
from bitwright.papers.bnn_soc.model import Model

MODEL, PACKED, COURSE = "model.safetensors", "packed.safetensors", "course.json"
_HINT = "a folder that `bitwright bnn train --out` wrote"


class _Course(Strict):
    """How a network was trained."""

    threads: int = Field(ge=1, le=1 << 16)
    looks: tuple[Look, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Trained:
    """A run.

    Attributes:
        name: of its folder.
        model: with float masters.
        looks: accuracies on the way.
        threads: that trained it.
    """

    name: str
    model: Model
    looks: tuple[Look, ...]
    threads: int

    @property
    def seconds_of_60000(self) -> float:
        """Training time of the document's 60 000 cycles, in proportion."""
        last = self.looks[-1]
        return last.seconds / last.cycles * 60_000


def save_run(folder: Path, model: Model, looks: Sequence[Look], threads: int) -> None:
    """Write a run; what is there under the same names is replaced."""
    model.save(folder / MODEL)
    if model.settings.binary:
        model.save(folder / PACKED, packed=True)
    about = {"threads": threads, "looks": [asdict(look) for look in looks]}
    atomic_write(folder / COURSE, json.dumps(about, indent=1) + "\n")


@bounded_reader
def load_run(folder: Path) -> Trained:
    """Read a run.

    Raises:
        DataError: it is none, or damaged.
    """
    model = Model.load(folder / MODEL)
    place = folder / COURSE
    try:
        about = validated(_Course, read_bytes(place, hint=_HINT, most=MOST_TEXT))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(f"{field}: {first['msg']}", where=str(place), hint=_HINT) from error
    return Trained(folder.name, model, about.looks, about.threads)
