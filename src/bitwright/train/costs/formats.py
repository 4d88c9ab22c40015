# SPDX-License-Identifier: Apache-2.0
"""Which level of precision every product of a network has, where rules make exceptions."""

from __future__ import annotations

from bitwright.quant.policy import Layer, QuantSpec
from bitwright.train.arithmetic.apply import OPERANDS
from bitwright.train.costs.network import Network
from bitwright.train.precision.config import LowPrecision
from bitwright.train.precision.ladder import FLOAT32, parse_level


def levels_of_products(
    settings: LowPrecision, index: int, network: Network
) -> dict[tuple[str, str], str]:
    """(layer, product) -> level, at a level of the ladder.

    A product whose operands have different formats runs at that of the wider one.
    """
    policy = settings.arithmetic(index)
    paths = list(dict.fromkeys(layer.layer for layer in network.layers))
    kinds = {layer.layer: layer.kind for layer in network.layers}
    found = {}
    for path in paths:
        kind = "Linear" if kinds[path] == "linear" else "Conv2d"
        named = Layer(path, kind, path == paths[0], path == paths[-1])
        for product, roles in OPERANDS.items():
            operands = roles[:2]
            specs = [
                None if policy is None else policy.resolve(named, role, product.value).spec
                for role in operands
            ]
            found[path, product.value] = max(map(_level, specs), key=lambda n: parse_level(n).bits)
    return found


def _level(spec: QuantSpec | None) -> str:
    return FLOAT32 if spec is None else parse_level(spec.format.name).name
