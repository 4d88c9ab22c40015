# SPDX-License-Identifier: Apache-2.0
"""The constants of `cycles`, fitted to what Vailakis 2022 measured of three DenseNets.

Nine figures: of each network the latency of one thread, the best throughput of three cores, and the
throughput relative to one thread, which is their product. So six of them are independent; three
constants are fitted to them, by least squares of the logarithms of latency and throughput.
`calibration.json` has the networks' work and the constants, made by benchmarks/dpu_calibration.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.files import parse_json, parse_toml
from bitwright.papers.dpu.architecture import Architecture, load_architecture
from bitwright.papers.dpu.cycles import Timing, images_a_second, latency_ms
from bitwright.papers.dpu.work import Work, work_from_json

#: Threads that the published throughputs were best with: five to eight.
BEST_THREADS = 8
_HERE = "bitwright.papers.dpu"
_START = (0.1, 4000.0, 12.0)

Networks = Mapping[str, Sequence[Work]]


@dataclass(frozen=True)
class Residual:
    """A figure as printed and as the model has it."""

    network: str
    figure: str
    unit: str
    printed: float
    model: float

    @property
    def relative(self) -> float:
        """How far the model is off, as a share of the printed figure."""
        return self.model / self.printed - 1


@cache
def published() -> dict[str, Any]:
    """The tables of results: network -> platform -> figure; and ``watts`` of each platform."""
    text = files(_HERE).joinpath("published.toml").read_text(encoding="utf-8")
    return parse_toml(text)


@cache
def calibrated() -> Timing:
    """The fitted constants, as they come with the package."""
    return Timing(**_file()["timing"])


@cache
def known_networks() -> dict[str, tuple[Work, ...]]:
    """The work of the three modified DenseNets with 100 classes, by their names."""
    found = _file()["networks"]
    return {name: tuple(work_from_json(row) for row in rows) for name, rows in found.items()}


@cache
def _file() -> Any:
    return parse_json(files(_HERE).joinpath("calibration.json").read_text(encoding="utf-8"))


def measured_design() -> Architecture:
    """What the published figures were measured on."""
    return load_architecture("zcu102")


def residuals(timing: Timing, networks: Networks) -> tuple[Residual, ...]:
    """The nine figures, printed and by the model."""
    found = []
    for name, works in networks.items():
        printed = published()[name]["dpu"]
        latency = latency_ms(works, measured_design(), timing)
        rate = images_a_second(works, measured_design(), timing, BEST_THREADS)
        both = printed["latency"] * printed["throughput"] / 1e3
        found += [
            Residual(name, "latency", "ms", printed["latency"], latency),
            Residual(name, "throughput", "images/s", printed["throughput"], rate),
            Residual(name, "against one thread", "", both, latency * rate / 1e3),
        ]
    return tuple(found)


def calibrate(networks: Networks) -> Timing:
    """The constants of the least squared logarithms of latency and throughput."""
    from scipy.optimize import least_squares

    def timing(logarithms: NDArray[np.float64]) -> Timing:
        host, layer, memory = np.exp(logarithms)
        return Timing(host_ms=float(host), layer_cycles=float(layer), memory_gbytes=float(memory))

    def errors(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = residuals(timing(logarithms), networks)
        kept = [row for row in rows if row.unit]
        return np.array([np.log(row.model / row.printed) for row in kept])

    return timing(least_squares(errors, np.log(_START), x_scale=0.1).x)
