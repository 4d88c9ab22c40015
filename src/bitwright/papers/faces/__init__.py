# SPDX-License-Identifier: Apache-2.0
"""Face recognition on few bits: data, embeddings, verification, and the matrix of formats."""

from __future__ import annotations

from bitwright.base.plugins import Plugin

_HERE = "bitwright.papers.faces"
PLUGIN = Plugin(
    metrics={"verification": f"{_HERE}.benchmark:verification"},
    benchmarks={"orl": f"{_HERE}.benchmark:orl"},
    models={
        "face_densenet": f"{_HERE}.catalog:ANY",
        "face_densenet10": f"{_HERE}.catalog:DENSENET_10",
        "face_densenet20": f"{_HERE}.catalog:DENSENET_20",
    },
    recipes={"face-matrix": "bitwright formats matrix"},
    schemas={"face-matrix": f"{_HERE}.recipe:FaceMatrixRecipe"},
    commands={"formats matrix": f"{_HERE}.cli:add_commands"},
)
