# SPDX-License-Identifier: Apache-2.0
"""Which level of precision every product of a network has, where rules make exceptions, and what
the ladder of a training run costs on a described device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.costs.devices import Device, load_device
from bitwright.low_precision.costs.model import Accelerator, CostTable
from bitwright.low_precision.costs.network import Network
from bitwright.low_precision.costs.roofline import forecast_costs
from bitwright.low_precision.ladder import FLOAT32, parse_level
from bitwright.low_precision.layer_rules import check_rules, named_layers, product_specs
from bitwright.quantize.spec import Product, QuantSpec


def levels_of_products(
    settings: LowPrecision, index: int, network: Network
) -> dict[tuple[str, str], str]:
    """(layer, product) -> level, at a level of the ladder.

    A product whose operands have different formats runs at that of the wider one.

    Raises:
        RecipeError: a rule of the settings matches no layer.
    """
    policy = settings.arithmetic(index)
    linear = {layer.layer: layer.kind == "linear" for layer in network.layers}
    if policy is None:
        return {(path, product.value): FLOAT32 for path in linear for product in Product}
    layers = named_layers(linear, network.paths)
    check_rules(policy, layers)
    return {
        (path, product.value): max(map(_level, specs[:2]), key=lambda n: parse_level(n).bits)
        for path, products in product_specs(policy, layers).items()
        for product, specs in products.items()
    }


def ladder_costs(
    network: Network,
    device: Device | Accelerator,
    settings: LowPrecision,
    steps: int,
    also: Sequence[str] = (),
) -> CostTable:
    """Costs of every level of a ladder, its exceptions included, and of float32, if the device
    computes in that.

    Args:
        steps: of an epoch.
        also: more levels, where the device has them.

    Raises:
        TargetError: the device cannot compute in one of the levels.
    """
    mixtures = {}
    for index, level in enumerate(settings.ladder):
        given = levels_of_products(settings, index, network)
        if set(given.values()) != {level}:
            mixtures[level] = given
    others = (level for given in mixtures.values() for level in given.values())
    levels = tuple(dict.fromkeys((FLOAT32, *also, *settings.ladder, *others)))
    if isinstance(device, Accelerator):
        extra = {each for each in (FLOAT32, *also) if not device.computes(each)}
        extra -= {each for each in settings.ladder if each != FLOAT32}
        table = device.costs(network, [each for each in levels if each not in extra], steps)
    else:
        window = getattr(settings.policy, "gradients", 0)
        table = forecast_costs(network, device, levels, steps, window=window)
    mixed = {level: table.mixture(level, given).levels[level] for level, given in mixtures.items()}
    return replace(table, levels={**table.levels, **mixed})


def device_costs(
    model: nn.Module,
    sample_shape: tuple[int, ...],
    settings: LowPrecision,
    batch_size: int,
    images: int,
    device: str | Path,
) -> CostTable:
    """`ladder_costs` of a training run on a described device, for its log.

    Args:
        model: plain float32 network, which takes images of ``sample_shape`` (C, H, W).
        batch_size: images a step, of ``images`` to train on.
        device: name, or a file.

    Raises:
        TargetError: there is no such device, or it cannot compute in a level of the ladder.
        ModelError: such an image does not pass.
        RecipeError: there are fewer images than one batch, or a rule matches no layer.
    """
    described = load_device(device, "low_precision.device")
    network = count_network(model, sample_shape, batch_size)
    return ladder_costs(network, described, settings, images // batch_size)


def _level(spec: QuantSpec | None) -> str:
    return FLOAT32 if spec is None else parse_level(spec.format.name).name
