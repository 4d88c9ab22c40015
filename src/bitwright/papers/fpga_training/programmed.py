# SPDX-License-Identifier: Apache-2.0
"""Training on Bitwright's own programmed engine as a device of cost tables: the exact cycles of the
programs of every product (specification 004, 2.4.11 for the use; `bitwright.engine.timing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bitwright.base.errors import TargetError
from bitwright.base.figures import Source
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.sdram import SdramMemory
from bitwright.engine.timing import OutsideMemory
from bitwright.engine.training.products import digit_count, product_cycles
from bitwright.low_precision.costs.model import (
    NOTHING,
    Accelerator,
    Cost,
    CostTable,
    LevelCosts,
    PartCost,
)
from bitwright.low_precision.costs.network import LayerWork, Network
from bitwright.low_precision.ladder import parse_level
from bitwright.quantize.spec import Product

_WIDEST = 16
_EIGHT = 8  # of results that leave rounded: any, it changes no cycle
_NOTES = (
    "cycles of the program of every product, by the timing model that tests hold to the RTL, one "
    "after the other; ideal: results of up to 8 bits leave rounded, else as exact sums of 32",
    "what is no product, the host's transfers and energy are not counted; more than 8 bits are "
    "products of digits of 8; there is no float32",
)


class ProgrammedCosts(Accelerator):
    """The programmed engine; integers of 2 to 16 bits.

    Args:
        config: of the engine.
        memory: behind its port (default: the SDRAM of a ULX3S, by its controller's model).
        mhz: clock of both.
    """

    def __init__(
        self,
        config: EngineConfig = ENGINES["e256"],
        memory: OutsideMemory | None = None,
        mhz: float = 62.5,
    ) -> None:
        self.config, self.mhz = config, mhz
        self.memory = SdramMemory(mhz=mhz) if memory is None else memory
        names = {known: name for name, known in ENGINES.items()}
        self.name = f"programmed-{names.get(config, config.name)}"

    def computes(self, level: str) -> bool:
        found = parse_level(level).format
        return found is not None and found.is_integer and found.bits <= _WIDEST

    def costs(self, network: Network, levels: Sequence[str], steps: int) -> CostTable:
        known = {}
        times = _Times(self)
        for level in levels:
            if not self.computes(level):
                raise TargetError(
                    f"{self.name} does not compute in {level}",
                    hint="it has integers of 2 to 16 bits: take a ladder, or a schedule, of these",
                )
            bits = parse_level(level).bits
            raw = tuple(times.parts(network, bits, rounded=False))
            rounded = tuple(times.parts(network, bits, rounded=True))
            known[level] = LevelCosts(level, raw, rounded)
        name = f"{network.name} on {self.name} at {self.mhz:g} MHz"
        return CostTable(name, Source.MODEL, steps, NOTHING, NOTHING, known, _NOTES)


class _Times:
    """Seconds of products, each shape timed once."""

    def __init__(self, device: ProgrammedCosts) -> None:
        self.device = device
        self.known: dict[tuple[object, ...], int] = {}

    def parts(self, network: Network, bits: int, *, rounded: bool) -> Iterator[PartCost]:
        pairs = digit_count(bits) ** 2
        for work in network.layers:
            for given in work.products:
                product = Product(given)
                one = rounded and pairs == 1 and product is not Product.GRAD_WEIGHT
                cycles = pairs * self._cycles(work, product, _EIGHT if one else None)
                cost = Cost(cycles / self.device.mhz / 1e6)
                yield PartCost(work.layer, given, cost, f"{pairs} x int8" if pairs > 1 else "int8")

    def _cycles(self, work: LayerWork, product: Product, shift: int | None) -> int:
        key = (*work.shape, product, shift)
        if key not in self.known:
            device = self.device
            self.known[key] = product_cycles(work, product, device.config, device.memory, shift)
        return self.known[key]
