# SPDX-License-Identifier: Apache-2.0
"""The DPUCZDX8G of Vailakis 2022: its sizes and resources, what of a network it runs, its time.

The published processor is closed: what is here is a model of what has been printed about it, kept
apart from the engine that this package builds.
"""

from __future__ import annotations

from bitwright.base.plugins import Plugin

_HERE = "bitwright.papers.dpu"
PLUGIN = Plugin(
    commands={"dpu": f"{_HERE}.cli:add_commands"},
    platforms={"dpu": f"{_HERE}.platform:dpu_platform"},
    presets={
        "dpu": f"{_HERE}.presets:DPU",
        "affine8": f"{_HERE}.presets:AFFINE_8",
        "affine4": f"{_HERE}.presets:AFFINE_4",
    },
)
