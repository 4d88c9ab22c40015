# SPDX-License-Identifier: Apache-2.0
"""What a recipe says of a network's input, for hosts: it imports nothing but what it stands on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from bitwright.base.described import Strict, validated
from bitwright.base.errors import GraphError
from bitwright.base.files import read_text
from bitwright.data.preparation import Preparation

_MOST_BYTES = 1 << 24
#: Pixels along a side, as many as a picture has that is decoded (`decoding.MOST_PIXELS`).
_MOST_SIDE, _MOST_PIXELS = 1 << 13, 1 << 24
#: Values of a pixel.
PIXELS = 256

Side = Annotated[int, Field(gt=0, le=_MOST_SIDE)]
Count = Annotated[int, Field(gt=0, lt=1 << 31)]
Level = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def is_size(height: int, width: int) -> bool:
    """Whether image files are made into inputs of this size."""
    return max(height, width) <= _MOST_SIDE and height * width <= _MOST_PIXELS


class Preprocessing(Strict):
    """How an image file becomes levels, as training does it: `bitwright.host.images` applies it.

    Attributes:
        size: (height, width) of the network's input.
        channels: 1: grey, 3: red, green, blue.
        fit: ``stretch``: the whole image is resized, proportions or not; ``middle``: its short side
            becomes ``short_side`` pixels (at least the larger one of ``size``), and ``size`` is cut
            out of the middle.
        filter: of resizing, one of Pillow's, with its area of support growing with the factor.
        levels: level of every pixel value 0 to 255; one row, or one a channel.
    """

    size: tuple[Side, Side]
    channels: Literal[1, 3]
    fit: Literal["stretch", "middle"] = "stretch"
    short_side: Side | None = None
    filter: Literal["bilinear"] = "bilinear"
    levels: tuple[tuple[Level, ...], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not is_size(*self.size):
            raise ValueError(f"size {self.size} has more than {_MOST_PIXELS} pixels")
        if self.fit == "middle" and (self.short_side or max(self.size)) < max(self.size):
            raise ValueError(
                f"short_side ({self.short_side}) must be at least the larger side of size "
                f"({max(self.size)})"
            )
        if any(len(row) != PIXELS for row in self.levels):
            raise ValueError(f"levels: expected {PIXELS} numbers a row, one for each pixel value")
        if len(self.levels) not in (1, self.channels):
            raise ValueError(f"{len(self.levels)} rows of levels for {self.channels} channels")
        return self


class DataLevels(Strict):
    """The numbers that a data set holds: ``real = level * scale``."""

    type: str
    scale: Finite


class NumberRule(Strict):
    """How numbers of the world become the levels of a data set: what `Preparation` was fitted to.

    Attributes:
        rule: in words.
        offset, step: one, or one for each column of a table.
        low, high: the smallest and the largest level.
        format: of the levels.
        scale: real value of one level for the network.
    """

    rule: str
    offset: tuple[Finite, ...] = Field(min_length=1)
    step: tuple[Positive, ...] = Field(min_length=1)
    low: Level
    high: Level
    format: Annotated[str, Field(pattern=r"^u?int([2-9]|1[0-6])$")]
    scale: Positive

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.offset) != len(self.step):
            raise ValueError(f"{len(self.offset)} offsets for {len(self.step)} steps")
        return self

    def preparation(self) -> Preparation:
        """The rule as a value that applies it."""
        signed, bits = self.format.startswith("int"), int(self.format.lstrip("uint"))
        offset, step = np.array(self.offset), np.array(self.step)
        return Preparation(offset, step, bits, signed, self.scale)


class HostInput(Strict):
    """What the recipe says of a network's input and labels, for hosts.

    Attributes:
        inputs: what inputs are called: images, signals, rows.
        shape: of one, channels last.
        format, scale, rounding: of the network's levels: ``level = round(real / scale)``.
        data: what its reals were made of.
        preparation: how the levels of the data set were made of other numbers; None where they are
            as they came.
        preprocessing: of image files; None: the network takes none, or not of bytes.
        classes: names of the labels.
    """

    inputs: str
    shape: tuple[Count, ...]
    format: str
    scale: Finite
    rounding: str
    data: DataLevels
    preparation: NumberRule | None = None
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        rule = self.preparation
        if rule is not None and len(rule.step) not in (1, *self.shape[-1:]):
            raise ValueError(f"{len(rule.step)} steps of inputs of shape {self.shape}")
        return self


def read_input(path: Path) -> HostInput | None:
    """What a run noted; None if there is nothing.

    Raises:
        GraphError: the file is malformed.
    """
    if not path.is_file():
        return None
    try:
        return validated(HostInput, read_text(path, most=_MOST_BYTES))
    except ValidationError as error:
        raise GraphError(f"malformed: {error.errors()[0]['msg']}", where=str(path)) from error
