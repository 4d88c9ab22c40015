# SPDX-License-Identifier: Apache-2.0
"""Accelerators that train, of Vink 2023: Barista and FPGPT, their models and simulators."""

from __future__ import annotations

from bitwright.base.plugins import Plugin

PLUGIN = Plugin(
    engines={
        "barista": f"{__name__}.training:BaristaEngine",
        "fpgpt": f"{__name__}.training:FpgptEngine",
        "programmed": f"{__name__}.training:ProgrammedEngine",
    },
    devices={
        "fpgpt-u250": f"{__name__}.fpgpt.costs:FpgptCosts",
        "programmed-e256": f"{__name__}.programmed:ProgrammedCosts",
    },
)
