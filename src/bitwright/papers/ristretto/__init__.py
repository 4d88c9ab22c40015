# SPDX-License-Identifier: Apache-2.0
"""Ristretto (Gysel 2016): its search for bit widths, its layers, its files."""

from __future__ import annotations

from bitwright.base.plugins import Plugin

PLUGIN = Plugin(commands={"ristretto": f"{__name__}.cli:add_commands"})
