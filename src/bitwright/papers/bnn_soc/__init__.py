# SPDX-License-Identifier: Apache-2.0
"""Binarized networks on an ARM and FPGA system with OpenCL, after a thesis of 2018.

The document's trainer, its kernels, its host and a model of its board; the kernels that serve
everybody are the core's (`ir.executor.xnor`).
"""

from __future__ import annotations

from bitwright.base.plugins import Plugin

_HERE = "bitwright.papers.bnn_soc"
PLUGIN = Plugin(commands={"bnn": f"{_HERE}.cli:add_commands", "kpi": f"{_HERE}.cli:add_kpi"})
