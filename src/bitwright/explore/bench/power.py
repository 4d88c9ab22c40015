# SPDX-License-Identifier: Apache-2.0
"""Power: measured where the machine counts its energy (RAPL), else constants that are stated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bitwright.base.errors import RecipeError

RAPL = Path("/sys/class/powercap")
#: Watts where nothing is measured: nominal, of the board or the package.
NOMINAL: Mapping[str, float] = {"cpu": 95.0, "gpu": 175.0, "dpu": 22.8}
_MICRO = 1e-6


@dataclass
class Meter:
    """What was drawn within `metered`; None if the machine does not show it."""

    watts: float | None = None
    domains: tuple[str, ...] = field(default_factory=tuple)


def counters(root: Path = RAPL) -> dict[str, Path]:
    """Energy counters of whole processor packages that may be read, by name."""
    found = {}
    for folder in sorted(root.glob("*-rapl:*")) if root.is_dir() else ():
        if folder.name.count(":") != 1:  # parts of a package are counted in it
            continue
        try:
            int((folder / "energy_uj").read_text())
        except (OSError, ValueError):
            continue  # not there, or for the administrator alone
        found[folder.name] = folder
    return found


@contextmanager
def metered(root: Path = RAPL) -> Iterator[Meter]:
    """Within, energy is counted; afterwards the meter holds the mean power of all packages."""
    meter, folders = Meter(), counters(root)
    before = {name: _energy(folder) for name, folder in folders.items()}
    start = time.perf_counter()
    yield meter
    seconds = time.perf_counter() - start
    if not folders or seconds <= 0:
        return
    joules = 0.0
    for name, folder in folders.items():
        spent = _energy(folder) - before[name]
        if spent < 0:  # the counter has begun anew
            spent += int((folder / "max_energy_range_uj").read_text())
        joules += spent * _MICRO
    if joules > 0:
        meter.watts, meter.domains = joules / seconds, tuple(folders)


def _energy(folder: Path) -> int:
    return int((folder / "energy_uj").read_text())


def parse_watts(text: str | None) -> dict[str, float]:
    """``cpu=95,gpu=175`` over the nominal constants.

    Raises:
        RecipeError: another form, or no positive number.
    """
    found = dict(NOMINAL)
    for part in (text or "").replace(" ", "").split(","):
        if not part:
            continue
        name, _, value = part.partition("=")
        try:
            watts = float(value)
        except ValueError:
            watts = 0.0
        if not name or not 0 < watts < 1e6:
            raise RecipeError(
                f"{part!r} is no power", where="--watts", hint="such as cpu=95,gpu=175"
            )
        found[name] = watts
    return found
