# SPDX-License-Identifier: Apache-2.0
"""Incremental quantization as a recipe asks for it. No torch here; `train.stages` does it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from bitwright.base.described import Strict

_MOST_BITS = 16


class Incremental(Strict):
    """A student that becomes a few-bit network step by step while it trains; one of the two.

    Attributes:
        bits: widths to begin with, falling; behind the last one every operand has the format of its
            policy. An operand that has more bits keeps them, and so does one whose format is no
            integer (but bipolar and ternary weights with a mean scale).
        portions: shares of each layer's weights, rising to 1, that are fixed to their grid, largest
            first, while the others train on as real numbers (Zhou et al. 2017, incremental network
            quantization). Activations have the format of their policy all the time.
        until: of the phase, the share at which each stage but the last ends; None: stages of equal
            length.
    """

    bits: tuple[Annotated[int, Field(ge=2, le=_MOST_BITS)], ...] = ()
    portions: tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...] = ()
    until: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...] | None = None

    @property
    def stages(self) -> int:
        """How many there are, the last one included."""
        return len(self.bits) + 1 if self.bits else len(self.portions)

    @property
    def ends(self) -> tuple[float, ...]:
        """The share of the phase at which each stage but the last ends."""
        if self.until is not None:
            return self.until
        return tuple((index + 1) / self.stages for index in range(self.stages - 1))

    def starts(self, epochs: int) -> tuple[int, ...]:
        """The first epoch, from 0, of each stage."""
        # A share such as 0.3 of 10 epochs is 3, whatever its binary fraction.
        return (0, *(math.ceil(round(end * epochs, 9)) for end in self.ends))

    def stage(self, epoch: int, epochs: int) -> int:
        """The stage that an epoch belongs to."""
        return sum(epoch >= start for start in self.starts(epochs)) - 1

    def check_epochs(self, epochs: int) -> None:
        """ValueError if a stage has no epoch."""
        starts = self.starts(epochs)
        for index, (start, after) in enumerate(zip(starts, (*starts[1:], epochs), strict=True)):
            if epochs and start >= after:
                raise ValueError(
                    f"incremental: stage {index + 1} of {self.stages} would have no epoch "
                    f"({epochs} in all, stages begin at {', '.join(map(str, starts))}): train "
                    "longer, or name fewer stages"
                )

    @model_validator(mode="after")
    def _one_kind(self) -> Incremental:
        if bool(self.bits) == bool(self.portions):
            raise ValueError("give either bits or portions, such as bits: [8, 6]")
        if any(later >= first for first, later in pairwise(self.bits)):
            raise ValueError(f"bits must fall from stage to stage, found {list(self.bits)}")
        shares = self.portions
        if any(later <= first for first, later in pairwise(shares)):
            raise ValueError(f"portions must rise from stage to stage, found {list(shares)}")
        if shares and shares[-1] != 1.0:
            raise ValueError(f"portions must end with 1, all of the weights, found {list(shares)}")
        return self

    @model_validator(mode="after")
    def _ends_fit(self) -> Incremental:
        if self.until is None:
            return self
        if len(self.until) != self.stages - 1:
            raise ValueError(
                f"until has {len(self.until)} entries for {self.stages} stages: give the end of "
                "each stage but the last, which ends with the phase"
            )
        if any(later <= first for first, later in pairwise(self.until)):
            raise ValueError(f"until must rise from stage to stage, found {list(self.until)}")
        return self
