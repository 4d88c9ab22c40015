# SPDX-License-Identifier: Apache-2.0
"""SkyNet (Zhang et al. 2020): published weights, a reference in NumPy, the search."""

from __future__ import annotations

from bitwright.base.plugins import Plugin

PLUGIN = Plugin(
    commands={"skynet": f"{__name__}.cli:add_commands"},
    models={"bundle_net": f"{__name__}.search.candidate:INFO"},
)
