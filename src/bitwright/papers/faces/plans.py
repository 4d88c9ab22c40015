# SPDX-License-Identifier: Apache-2.0
"""How this package makes each row of the face matrix: formats and methods. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bitwright.papers.faces.recipe import FaceMatrixRecipe


@dataclass(frozen=True)
class Plan:
    """Formats (a recipe's ``quant`` section) and methods of post-training quantization."""

    words: str
    policy: dict[str, Any]
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Contest:
    """Plans of which the one is taken that changes embeddings of calibration images the least.

    Attributes:
        plans: by a short name.
        methods: those that all are compared with.
    """

    plans: dict[str, Plan]
    methods: tuple[str, ...]


#: All formats of 8 bits with 2 .. 5 exponent bits.
MINIFLOATS = ("e5m2", "e4m3", "e3m4", "e2m5")


def _minifloat_plan(name: str, methods: tuple[str, ...]) -> Plan:
    return Plan(
        f"{name} weights and features",
        {
            "input": "uint8",
            "weight": {"format": name, "granularity": "per_channel", "scale": "mse"},
            "activation": {"format": name, "scale": "max"},
        },
        methods,
    )


def ours(recipe: FaceMatrixRecipe) -> dict[str, Plan | Contest]:
    """How this package makes each quantized row of the folded network."""
    clusters = recipe.clusters
    learned = ("fold", "calibrate", "gptq", "bias")
    even = ("fold", "equalize", "calibrate", "gptq", "bias")
    fitted = ("fold", "calibrate", "codebooks", "gptq", "bias")
    floats = {"input": None, "activation": None}

    def shared(scope: str, entries: int) -> dict[str, Any]:
        return {"format": f"cb{entries}", "scope": scope, "granularity": "per_tensor"}

    return {
        "minifloat": Contest(
            {name: _minifloat_plan(name, even) for name in MINIFLOATS},
            ("fold", "equalize", "calibrate"),
        ),
        "e4m3": _minifloat_plan("e4m3", even),
        "dfp": Plan(
            "8 bits throughout, one power of two a tensor",
            {
                "input": "uint8",
                "weight": {"format": "dfp8", "scale": "mse"},
                "activation": {"format": "dfp8", "scale": "mse"},
            },
            even,
        ),
        "pow2": Plan(
            f"2^k with {recipe.search.weight_exponent_bits} exponent bits, 8-bit features",
            {
                "input": "uint8",
                "weight": {
                    "format": f"po2_{1 + recipe.search.weight_exponent_bits}",
                    "granularity": "per_channel",
                },
                "activation": {"format": "dfp8", "scale": "mse"},
            },
            learned,
        ),
        "kmeans-network": Plan(
            f"one table of {clusters.network}; features float32",
            {**floats, "weight": shared("network", clusters.network)},
            even,
        ),
        "kmeans-group": Plan(
            f"a table of {clusters.group} a group; features float32",
            {**floats, "weight": shared("group", clusters.group)},
            even,
        ),
        "kmeans-layer": Plan(
            f"a table of {clusters.layer} int8 a layer, biases of 8 bits; features float32",
            {
                **floats,
                "bias": "int8",
                "weight": {"format": f"cb{clusters.layer}:int8", "granularity": "per_tensor"},
            },
            fitted,
        ),
        "hybrid": Plan(
            f"a table of {clusters.layer} e4m3 a layer; features e4m3",
            {
                "input": "uint8",
                "weight": {"format": f"cb{clusters.layer}:e4m3", "granularity": "per_tensor"},
                "activation": {"format": "e4m3", "scale": "max"},
            },
            fitted,
        ),
    }
