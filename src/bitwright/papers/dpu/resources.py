# SPDX-License-Identifier: Apache-2.0
"""What a configured DPUCZDX8G takes of a device, and whether it fits.

The model is linear (Vailakis 2022, tables 6.4 to 6.9): a core is its size and what each option
adds; cores add up; the softmax unit is there once. Block RAMs are counted as `Resources` counts
those of this family, in halves of 36 kbit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from bitwright.base.errors import TargetError
from bitwright.base.figures import RESOURCE_WORDS, Resources, number
from bitwright.build.target import Target, load_target
from bitwright.papers.dpu.architecture import MOST_CORES, Architecture, Extra, Size, plain, sizes

_HALVES = 2  # of a block RAM of 36 kbit
#: The softmax unit, one for all cores (section 6.2).
SOFTMAX = Resources(lut=9580, ff=8019, bram=4 * _HALVES, dsp=12)
#: LeakyReLU adds between these; which size adds how much is not printed. The larger one is counted.
LEAKY_RELU = (347, 706)


@dataclass(frozen=True)
class Board:
    """Equal devices that work beside each other, each with a processor of its own.

    Attributes:
        target: the device, `build.target`.
        devices: how many there are.
    """

    name: str
    target: str
    devices: int = 1
    description: str = ""


BOARDS = (
    Board("zcu102", "xczu9eg", 1, "AMD ZCU102"),
    Board("ultra96", "xczu3eg", 1, "Avnet Ultra96"),
    Board("qfdb", "xczu9eg", 4, "FORTH Quad-FPGA Daughter Board"),
)


def find_board(name: str) -> Board:
    """A board of `BOARDS`, or one device of a target.

    Raises:
        TargetError: there is neither.
    """
    for board in BOARDS:
        if board.name == name.lower():
            return board
    try:
        return Board(name, load_target(name).name)
    except TargetError as error:
        names = ", ".join(board.name for board in BOARDS)
        raise TargetError(
            error.message, where=name, hint=f"boards: {names}; or a target"
        ) from error


def core_resources(architecture: Architecture) -> Resources:
    """One core with its options.

    Raises:
        TargetError: without double rate, of which nothing has been printed.
    """
    if not architecture.dsp_double_rate:
        raise TargetError(
            "the printed resources are those of DSP slices at double rate",
            where=f"{architecture.name}: dsp_double_rate",
            hint="set dsp_double_rate = true; cycles are known without it, resources are not",
        )
    size, options = sizes()[architecture.size], architecture.options
    high = options.ram_usage == "high"
    total = Resources(size.lut, size.ff, size.dsp, _HALVES * (size.high_ram if high else size.bram))
    for wanted, extra in _extras(size, architecture):
        total = total + extra * wanted
    return total


def _extras(size: Size, architecture: Architecture) -> Iterator[tuple[bool, Resources]]:
    options = architecture.options
    yield options.channel_augmentation, Resources(lut=size.channel_augmentation)
    yield options.depthwise, _resources(size.depthwise)
    yield options.average_pool, Resources(lut=size.average_pool)
    yield "leaky_relu" in options.relu, Resources(lut=LEAKY_RELU[1])
    low = _resources(size.low_dsp)
    yield options.dsp_usage == "low", Resources(low.lut, low.ff, -low.dsp, low.bram)


def _resources(extra: Extra) -> Resources:
    return Resources(extra.lut, extra.ff, extra.dsp, _HALVES * extra.bram)


def total_resources(architecture: Architecture) -> Resources:
    """All cores of one device, and the softmax unit."""
    cores = core_resources(architecture) * architecture.cores
    return cores + SOFTMAX if architecture.options.softmax else cores


@dataclass(frozen=True)
class Fit:
    """A processor on a device.

    Attributes:
        need, have: of one device.
        shares: of each kind, need divided by have.
        missing: what there is too little of, and by how much.
    """

    architecture: Architecture
    board: Board
    need: Resources
    have: Resources

    @property
    def shares(self) -> dict[str, float]:
        need, have = self.need.to_json(), self.have.to_json()
        return {kind: need[kind] / have[kind] for kind in need}

    @property
    def missing(self) -> dict[str, float]:
        return self.need.shortage(self.have)

    @property
    def fits(self) -> bool:
        return not self.missing

    @property
    def cores(self) -> int:
        """On all devices of the board."""
        return self.architecture.cores * self.board.devices


def fit(architecture: Architecture, board: Board) -> Fit:
    """How a processor lies on each device of a board; it need not fit.

    Raises:
        TargetError: the clock of its DSP slices is faster than the device's network carries.
    """
    target = load_target(board.target)
    _check_clock(architecture, target)
    return Fit(architecture, board, total_resources(architecture), target.capacity)


def _check_clock(architecture: Architecture, target: Target) -> None:
    fastest = architecture.clock_mhz * (2 if architecture.dsp_double_rate else 1)
    if target.clock is not None and fastest > target.clock.limit_mhz:
        raise TargetError(
            f"its DSP slices would run at {fastest:g} MHz, the clock network of {target.name} "
            f"carries {target.clock.limit_mhz:g} MHz",
            where=f"{architecture.name}: clock_mhz",
            hint=f"clock_mhz = {target.clock.limit_mhz / 2:g} or less",
        )


def require_fit(architecture: Architecture, board: Board) -> Fit:
    """The same of a processor that must fit.

    Raises:
        TargetError: it does not; says by how much, and which is the largest that does.
    """
    found = fit(architecture, board)
    if found.fits:
        return found
    lacks = ", ".join(
        f"{number(_shown(kind, amount))} {_words(kind)} too many "
        f"({number(_shown(kind, found.need.to_json()[kind]))} of "
        f"{number(_shown(kind, found.have.to_json()[kind]))})"
        for kind, amount in found.missing.items()
    )
    best = largest_fitting(architecture, board)
    hint = (
        f"none of the sizes fits {board.target}: take a larger device"
        if best is None
        else f"the largest that fits with these options: {best.cores} x {best.size}, "
        f"{best.gops:g} GOPS"
    )
    cores = f"{architecture.cores} x {architecture.size}"
    raise TargetError(f"{cores} does not fit {board.target}: {lacks}", where=board.name, hint=hint)


def _shown(kind: str, amount: float) -> float:
    return amount / _HALVES if kind == "bram" else amount


def _words(kind: str) -> str:
    return "block RAMs of 36 kbit" if kind == "bram" else RESOURCE_WORDS[kind]


def variants(architecture: Architecture, names: Iterable[str]) -> Iterator[Architecture]:
    """Every size of `names` and every number of cores, with the options and clock of one."""
    for name, cores in product(names, range(1, MOST_CORES + 1)):
        known = sizes()[name].parallelism.model_dump()
        fields = architecture.model_dump() | {"size": name, "parallelism": known, "cores": cores}
        yield Architecture.model_validate(fields | {"name": f"{cores}x{name}"})


def largest_fitting(architecture: Architecture, board: Board) -> Architecture | None:
    """Of all sizes and numbers of cores with these options the one with the highest peak that fits;
    of equal peaks the one of fewer LUTs. None: there is none.
    """
    found = [one for one in variants(architecture, sizes()) if fit(one, board).fits]
    return max(found, key=lambda a: (a.gops, -total_resources(a).lut), default=None)


def base_of(size: str) -> Resources:
    """A core of a size without options."""
    return core_resources(plain(size))
