# SPDX-License-Identifier: Apache-2.0
"""What training would cost on a described device: the roofline of every product.

An operation takes the longer of computing at the unit's rate and moving its tensors at the
memory's (Williams, Waterman and Patterson 2009), and never less than a launch. With peak rates
every time is a lower bound, that of products as much as that of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bitwright.base.figures import Source
from bitwright.low_precision.costs.devices import Choice, Device
from bitwright.low_precision.costs.model import Cost, CostTable, LevelCosts, PartCost
from bitwright.low_precision.costs.network import Network, TrainingProduct
from bitwright.low_precision.ladder import FLOAT32, Level, parse_level

_FLOAT_BYTES = 4
#: SGD with momentum reads weight, gradient and momentum, and writes weight and momentum.
_OPTIMIZER_PASSES = 5
#: Quantizing reads a tensor for its largest value and again to round it.
_READS = 2


def forecast_costs(
    network: Network, device: Device, levels: Sequence[str], steps: int, *, window: int = 4
) -> CostTable:
    """A table for a device, with nothing measured.

    Args:
        levels: of the ladder; float32 is added if it is not there.
        steps: of an epoch.
        window: gradients that a policy looks at after an epoch.

    Raises:
        TargetError: the device cannot compute in one of the levels.
    """
    machine = _Machine(device)
    names = dict.fromkeys([*(parse_level(level).name for level in levels), FLOAT32])
    rest = machine.moving(
        network.rest_bytes + _OPTIMIZER_PASSES * _FLOAT_BYTES * network.parameters,
        network.rest_operations + 1,
    )
    weights = sum(sum(layer.quantized()["weights"]) for layer in network.layers)
    policy = machine.moving(window * 2 * _FLOAT_BYTES * weights, window * len(network.layers))
    return CostTable(
        f"{network.name} on {device.name}",
        Source.MODEL,
        steps,
        rest,
        policy,
        {name: machine.level(network, parse_level(name)) for name in names},
        _notes(device),
    )


class _Machine:
    """Times and energies of one device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def moving(self, moved: float, operations: int) -> Cost:
        """Operations that only move numbers."""
        return self._cost(moved / self.device.memory.bytes_per_second, moved, 0.0, operations)

    def level(self, network: Network, level: Level) -> LevelCosts:
        choice = self.device.choice(level)
        few = level.name != FLOAT32
        small = level.bits / 8 if few else _FLOAT_BYTES
        products = network.products
        return LevelCosts(
            level.name,
            tuple(self._product(each, choice, small, _FLOAT_BYTES) for each in products),
            tuple(self._product(each, choice, small, small) for each in products) if few else None,
            tuple(self._quantize(network, small)) if few else (),
        )

    def _product(
        self, product: TrainingProduct, choice: Choice, operand: float, result: float
    ) -> PartCost:
        moved = operand * (product.left + product.right) + result * product.result
        seconds = max(product.macs / choice.rate, moved / self.device.memory.bytes_per_second)
        cost = self._cost(seconds, moved, product.macs * choice.joules, 1)
        return PartCost(product.layer, product.product, cost, choice.text)

    def _quantize(self, network: Network, small: float) -> Iterator[PartCost]:
        """Reading float32 for the scale and for rounding, writing the level."""
        moved = _READS * _FLOAT_BYTES + small
        for layer in network.layers:
            for part, counts in layer.quantized().items():
                cost = self.moving(sum(counts) * moved, _READS * len(counts))
                yield PartCost(layer.layer, part, cost)

    def _cost(self, seconds: float, moved: float, arithmetic: float, operations: int) -> Cost:
        device = self.device
        seconds += operations * device.overhead.launch_seconds
        joules = device.power.idle_watts * seconds
        joules += arithmetic + moved * device.memory.pj_per_byte * 1e-12
        return Cost(seconds, min(joules, device.power.full_watts * seconds))


def _notes(device: Device) -> tuple[str, ...]:
    return (
        "roofline of public peak figures: times are lower bounds",
        f"{device.name}: {device.description}",
        *(f"{unit.format}: {unit.source}" for unit in device.unit),
        f"memory: {device.memory.source}",
        f"power: {device.power.source}",
        f"overhead: {device.overhead.source}",
    )
