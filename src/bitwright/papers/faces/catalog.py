# SPDX-License-Identifier: Apache-2.0
"""The face networks in the list of models. No torch here."""

from __future__ import annotations

from bitwright.models.catalog import ModelInfo

_FACTORY = "bitwright.papers.faces.face_densenet:face_densenet"
_IMAGE = (80, 80, 3)

ANY = ModelInfo(
    "face_densenet",
    "any DenseNet that embeds faces; options: blocks, growth, embedding (Huang et al. 2017)",
    _FACTORY,
    image=_IMAGE,
)
DENSENET_10 = ModelInfo(
    "face_densenet10",
    "DenseNet 1.0: 80 x 80 faces to 128 values, 381 888 parameters",
    _FACTORY,
    image=_IMAGE,
)
DENSENET_20 = ModelInfo(
    "face_densenet20",
    "DenseNet 2.0: 80 x 80 faces to 128 values, 1 479 104 parameters",
    _FACTORY,
    {"blocks": (6, 12), "final_width": 256},
    _IMAGE,
)
