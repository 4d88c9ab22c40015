# SPDX-License-Identifier: Apache-2.0
"""In the place of synthesis, place and route, whose time these tests do not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitwright.base.figures import Figure, Resources, Source
from bitwright.base.files import atomic_write
from bitwright.build.implement import RESULT, ImplementOptions, ImplementResult
from bitwright.build.target import Target


class Tools:
    """Place and route that reach one clock, whatever they get."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fmax: float, bitstream: float) -> None:
        self.fmax, self.bitstream, self.calls = fmax, bitstream, 0
        monkeypatch.setattr("bitwright.build.implement.implement", self)

    def __call__(
        self, design: Path, target: Target, out: Path, options: ImplementOptions, progress: Any
    ) -> ImplementResult:
        self.calls += 1
        assert (design / "design.json").is_file() and options.clock_mhz
        clock, fmax = options.clock_mhz, Figure(self.fmax, "MHz", Source.PLACE_AND_ROUTE)
        missed = options.needed_mhz if (options.needed_mhz or 0) > self.fmax else None
        luts = Figure(1, "LUT", Source.PLACE_AND_ROUTE)
        result = ImplementResult(
            target.name, target.part, target.flow.value, clock, {"fmax_mhz": fmax, "lut": luts},
            target.capacity, Resources(), Resources(), {}, None, self.fmax >= clock,
            None if missed else self.bitstream, 1, {}, {}, (), 1e6, missed,
        )  # fmt: skip
        atomic_write(out / RESULT, result.to_json())
        return result
