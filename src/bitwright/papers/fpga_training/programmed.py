# SPDX-License-Identifier: Apache-2.0
"""Training on Bitwright's own programmed engine as a device of cost tables: the exact cycles of the
programs of every product (specification 004, 2.4.11 for the use; `bitwright.engine.timing`).
"""

from __future__ import annotations

from collections.abc import Iterator

from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.sdram import SdramMemory
from bitwright.engine.timing import OutsideMemory
from bitwright.engine.training.products import digit_count, product_cycles
from bitwright.low_precision.costs.model import (
    Accelerator,
    Cost,
    LevelCosts,
    PartCost,
)
from bitwright.low_precision.costs.network import LayerWork, Network
from bitwright.low_precision.ladder import parse_level
from bitwright.quantize.spec import Product

_WIDEST = 16
_EIGHT = 8  # of results that leave rounded: any, it changes no cycle


class ProgrammedCosts(Accelerator):
    """The programmed engine.

    Args:
        config: of the engine.
        memory: behind its port (default: the SDRAM of a ULX3S, by its controller's model).
        mhz: clock of both.
    """

    formats = "integers of 2 to 16 bits"
    notes = (
        "cycles of the program of every product, by the timing model that tests hold to the RTL, "
        "one after the other; ideal: results of up to 8 bits leave rounded, else as exact sums of "
        "32",
        "what is no product, the host's transfers and energy are not counted; more than 8 bits are "
        "products of digits of 8",
    )

    def __init__(
        self,
        config: EngineConfig = ENGINES["e256"],
        memory: OutsideMemory | None = None,
        mhz: float = 62.5,
    ) -> None:
        self.config, self.mhz = config, mhz
        self.memory = SdramMemory(mhz=mhz) if memory is None else memory
        names = {known: name for name, known in ENGINES.items()}
        self.name = f"programmed-{names.get(config, config.name)} at {mhz:g} MHz"
        self._timed: dict[tuple[object, ...], int] = {}

    def computes(self, level: str) -> bool:
        found = parse_level(level).format
        return found is not None and found.is_integer and found.bits <= _WIDEST

    def products(self, network: Network, level: str) -> LevelCosts:
        bits = parse_level(level).bits
        raw = tuple(self._parts(network, bits, rounded=False))
        return LevelCosts(level, raw, tuple(self._parts(network, bits, rounded=True)))

    def _parts(self, network: Network, bits: int, *, rounded: bool) -> Iterator[PartCost]:
        pairs = digit_count(bits) ** 2
        for work in network.layers:
            for given in work.products:
                product = Product(given)
                one = rounded and pairs == 1 and product is not Product.GRAD_WEIGHT
                cycles = pairs * self._cycles(work, product, _EIGHT if one else None)
                cost = Cost(cycles / self.mhz / 1e6)
                yield PartCost(work.layer, given, cost, f"{pairs} x int8" if pairs > 1 else "int8")

    def _cycles(self, work: LayerWork, product: Product, shift: int | None) -> int:
        """Each shape is timed once."""
        key = (*work.shape, product, shift)
        if key not in self._timed:
            self._timed[key] = product_cycles(work, product, self.config, self.memory, shift)
        return self._timed[key]
