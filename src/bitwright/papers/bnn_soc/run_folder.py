# SPDX-License-Identifier: Apache-2.0
"""What `bitwright bnn train` leaves: the model, packed too, and how it was trained."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write, parse_json, read_bytes
from bitwright.papers.bnn_soc.course import Look
from bitwright.papers.bnn_soc.model import Model

MODEL, PACKED, COURSE = "model.safetensors", "packed.safetensors", "course.json"
_HINT = "a folder that `bitwright bnn train --out` wrote"


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


def load_run(folder: Path) -> Trained:
    """Read a run.

    Raises:
        DataError: it is none, or damaged.
    """
    model = Model.load(folder / MODEL)
    content = read_bytes(folder / COURSE, hint=_HINT)
    try:
        about: Any = parse_json(content)
        looks = tuple(Look(**look) for look in about["looks"])
        threads = int(about["threads"])
        numbers = [float(v) for look in looks for v in asdict(look).values()]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"damaged: {error!r}", where=str(folder / COURSE), hint=_HINT) from error
    if not looks or not all(math.isfinite(n) and n >= 0 for n in numbers) or not looks[-1].cycles:
        raise DataError("holds no looks", where=str(folder / COURSE), hint=_HINT)
    return Trained(folder.name, model, looks, threads)
