# SPDX-License-Identifier: Apache-2.0
"""An SDRAM chip's data sheet as parameters of the controller (``rtl/lib/sdram_*.sv``) and of its
model (``sim/sdram.h``).

The controller runs at half the chip's clock: a cycle has two clocks, rows are commanded in the
first, columns in the second. All times are rounded up to what that allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import ClassVar

from bitwright.base.errors import TargetError

#: Fields of the model's structure, of the port's parameters, in its order.
SDRAM_TIMES = ("Rcd", "Rp", "Ras", "Rfc", "Rrd", "Mrd", "Close", "Turn", "Refresh", "Delay",
               "ColumnWords")  # fmt: skip
#: Cycles of the pads' registers, both ways: a parameter of ``sdram_port``. Of an ECP5, three to the
#: pin (ODDRX1F) and two from it (IDDRX1F): Lattice's simulation library for ECP5U/M has three
#: registers in the one, and Amaranth's model of both (`io.DDRBuffer`) the same three, and two.
_DELAY = 5
_BURST = 4  # clocks of a column: one word of 64 bits
_CAS = 3
_TINY = 1e-9
#: Cycles from the last read to the first write: the chip lets go of the wires before we drive them.
_TURN = 5


@dataclass(frozen=True)
class SdramChip:
    """Times of a data sheet, in ns; of CAS latency 3.

    Attributes:
        row_bits, column_bits: of addresses; four banks of 16 bits a cell.
        rcd: activation to column (tRCD).
        rp: precharge to activation (tRP).
        ras, ras_most: activation to precharge (tRAS).
        rc: activation to activation of a bank (tRC).
        rfc: refresh to anything (tRFC).
        rrd: activation to activation of another bank (tRRD).
        wr: last word written to precharge (tWR, tDPL).
        mrd_clocks: mode register to anything (tMRD), in clocks.
        refresh: longest time for `refreshes` refreshes, in ms.
        power_up: rest behind power-up, in us.
        clock: shortest cycle of the clock (tCK).
        source: of the figures.
    """

    row_bits: int = 13
    column_bits: int = 9
    rcd: float = 21.0
    rp: float = 21.0
    ras: float = 45.0
    ras_most: float = 100_000.0
    rc: float = 67.5
    rfc: float = 67.5
    rrd: float = 15.0
    wr: float = 15.0
    mrd_clocks: int = 2
    refresh: float = 64.0
    refreshes: int = 8192
    power_up: float = 200.0
    clock: float = 7.5
    source: str = ""

    @property
    def size(self) -> int:
        """Bytes."""
        return 1 << (self.row_bits + self.column_bits + 3)

    @property
    def most_mhz(self) -> float:
        """Of the engine's clock, which is half of the chip's."""
        return 500 / self.clock

    def clocks(self, mhz: float) -> dict[str, int]:
        """Parameters of ``sdram_chip``, the rules in clocks of ``mhz``.

        Raises:
            TargetError: the chip is not that fast.
        """
        if mhz * self.clock > 1000 + _TINY:
            raise TargetError(
                f"the chip takes at most {1000 / self.clock:.0f} MHz at CAS latency {_CAS}, and "
                f"{mhz:g} MHz is twice the engine's clock",
                where="SDRAM",
                hint="choose a slower clock",
            )

        def up(nanoseconds: float) -> int:
            return ceil(nanoseconds * mhz / 1000 - _TINY)

        return {
            "RowWidth": self.row_bits,
            "ColWidth": self.column_bits,
            "Rcd": up(self.rcd),
            "Rp": up(self.rp),
            "Ras": up(self.ras),
            "RasMost": floor(self.ras_most * mhz / 1000),
            "Rc": up(self.rc),
            "Rfc": up(self.rfc),
            "Rrd": up(self.rrd),
            "Wr": up(self.wr),
            "Mrd": self.mrd_clocks,
            "PowerUp": up(1000 * self.power_up),
            "Delay": _DELAY,
            "Interval": ceil(self.refresh * 1e6 / self.refreshes * mhz / 1000),
        }

    def cycles(self, mhz: float) -> dict[str, int]:
        """Parameters of ``sdram_port`` that runs at ``mhz``, half the clock of the chip.

        Raises:
            TargetError: the chip is not that fast.
        """
        clocks = self.clocks(2 * mhz)
        half = {name: -(-clocks[name] // 2) for name in ("Rp", "Ras", "Rfc", "Rrd", "Mrd")}
        close = max(_BURST, _BURST - 1 + clocks["Wr"])
        # tRC holds by itself where a row is closed as late and opened as late as tRAS, tRP say.
        half["Ras"] = max(half["Ras"], -(-clocks["Rc"] // 2) - half["Rp"])
        return {
            "RowWidth": self.row_bits,
            "ColWidth": self.column_bits,
            "Rcd": max(1, -(-(clocks["Rcd"] - 1) // 2)),
            **half,
            "Close": max(-(-(close + 1) // 2), half["Ras"] - 2),
            "Turn": _TURN,
            "PowerUp": -(-clocks["PowerUp"] // 2) + 1,
            "Refresh": floor(self.refresh * 1e6 / self.refreshes * mhz / 1000),
            "Delay": _DELAY,
        }


#: Of the chips that the ULX3S is made with, the slowest figure of each kind: Alliance
#: AS4C16M16SA/AS4C32M16SB-7 (data sheet rev. 3.0, table 16: tRC, tRFC 63, tRCD, tRP 21, tRRD, tWR
#: 14, tRAS 42 to 120 000 ns, tMRD 14 ns, 7.8 us a refresh, 200 us at power-up, tCK 7 ns), Micron
#: MT48LC16M16A2-75 (tRFC 66, tRAS 44 to 120 000, tRCD, tRP 20, tRRD, tWR 15 ns, tCK 7.5 ns), ISSI
#: IS42S16160 and Winbond W9825G6KH-6 as LiteDRAM's modules.py (commit 01355ff) has them: tRFC 70
#: and tWR 20 ns of the first, margins included. 32 MiB: larger ones have more columns or rows.
ULX3S = SdramChip(rfc=70.0, wr=20.0, rc=70.0, source="slowest of the chips of the ULX3S")


@dataclass(frozen=True)
class SdramMemory:
    """An SDRAM behind the controller, as `bitwright.engine.timing.simulate` takes it: exact, since
    the console brings its refresh to the beginning of an interval before every start.

    Attributes:
        chip: its data sheet.
        mhz: clock of the engine.

    Raises:
        TargetError: the chip is not that fast.
    """

    chip: SdramChip = ULX3S
    mhz: float = 62.5

    def __post_init__(self) -> None:
        self.chip.cycles(self.mhz)

    base: ClassVar[int] = 0
    latency: ClassVar[int] = 0
    jitter: ClassVar[int] = 0
    beats_per_cycle: ClassVar[float] = 0.5
    stop: ClassVar[float] = 0.0
    go: ClassVar[float] = 1.0
    mixed: ClassVar[bool] = False

    @property
    def sdram(self) -> dict[str, int]:
        """Times of the controller."""
        return self.chip.cycles(self.mhz) | {"ColumnWords": self.chip.column_bits - 2}
