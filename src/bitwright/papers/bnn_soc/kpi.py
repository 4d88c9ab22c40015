# SPDX-License-Identifier: Apache-2.0
"""The document's six KPIs (spec 2.19) of trained networks, on what is at hand and by the models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError, RunError, ToolError
from bitwright.base.figures import Measured, Source
from bitwright.explore.bench.power import metered
from bitwright.papers.bnn_soc.course import Samples
from bitwright.papers.bnn_soc.lines import own_lines
from bitwright.papers.bnn_soc.model import Model, judge
from bitwright.papers.bnn_soc.run_folder import Trained
from bitwright.papers.bnn_soc.soc import network_time, published, usage
from bitwright.report.svg import bars
from bitwright.report.table import Column, Kind, Table

#: Frames that are timed one by one, as the document does.
_FRAMES, _REPEATS = 1, 21
_SOC_WATTS = 2.5


@dataclass(frozen=True)
class Kpi:
    """One network on one platform.

    Attributes:
        accuracy: share of test images by the largest sum.
        kernel_ms: a frame, transfers apart; with its spread where it is measured.
        transfer_ms: of the same frame, to the device and back.
        logic: share of the FPGA's logic.
        training_minutes: of 60 000 cycles.
        energy_mj: a frame; a model, as the document measured none.
        source: of the time.
    """

    network: str
    platform: str
    accuracy: float | None
    kernel_ms: float | Measured
    transfer_ms: float | None
    logic: float | None
    training_minutes: float | None
    energy_mj: float | None
    source: Source


def _spread(values: Sequence[float]) -> Measured:
    """Median, and half the distance of the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return Measured(middle, (high - low) / 2)


def _timed(run: Callable[[], Any]) -> Measured:
    run()
    spent = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        spent.append((time.perf_counter() - start) * 1e3)
    return _spread(spent)


def cpu_kpi(trained: Trained, samples: Samples, accuracy: float) -> Kpi:
    """This processor: the products of one frame, layer by layer; nothing is transferred."""
    model, frame = trained.model, samples.test_images[:_FRAMES]
    with metered() as meter:
        layers = layer_times(model, frame)
    errors = sum(one.error or 0.0 for one in layers)
    kernel = Measured(sum(one.value for one in layers), errors)
    energy = None if meter.watts is None else meter.watts * kernel.value
    minutes = trained.seconds_of_60000 / 60
    row = (trained.name, "CPU", accuracy, kernel, None, None, minutes, energy)
    return Kpi(*row, Source.MEASUREMENT)


def opencl_kpi(trained: Trained, samples: Samples, wanted: str = "") -> Kpi:
    """An OpenCL device, weights resident: kernels by the device's clock, transfers apart.

    Raises:
        ToolError: there is no device.
        MismatchError: the device gives other sums than the CPU.
    """
    from bitwright.base.errors import MismatchError
    from bitwright.papers.bnn_soc.device import Device
    from bitwright.papers.bnn_soc.opencl_engine import opencl_products

    device, model = Device.open(wanted), trained.model
    product, frames = opencl_products(device, model), samples.test_images[:100]
    sums, expected = model.sums(frames, product), model.sums(frames)
    if model.settings.binary and not np.array_equal(sums, expected):
        raise MismatchError("the device gives other sums than the CPU", where=device.name)
    judged = judge(model, samples.test_images, samples.test_labels, product)
    kernels, walls = [], []
    for _ in range(_REPEATS):
        before, start = device.traffic.kernel_s, time.perf_counter()
        model.sums(frames[:_FRAMES], product)
        walls.append((time.perf_counter() - start) * 1e3)
        kernels.append((device.traffic.kernel_s - before) * 1e3)
    rest = statistics.median(walls) - statistics.median(kernels)
    return Kpi(
        trained.name, f"OpenCL, {device.name}", judged.argmax, _spread(kernels), rest, None, None,
        None, Source.MEASUREMENT,
    )  # fmt: skip


def soc_kpis(trained: Trained, accuracy: float) -> tuple[Kpi, ...]:
    """The board by its model: the ARM alone, and with the FPGA, by the kernel of the network."""
    model, found = trained.model, []
    kernel = "compressed" if model.settings.binary else "multiply"
    for place, words in (("arm", "ARM alone"), ("soc", "ARM and FPGA")):
        ms = sum(layer.ms for layer in network_time(model.settings.sizes, place, kernel))
        logic = usage(kernel).shares["alms"] if place == "soc" else None
        name, energy = f"DE0-Nano-SoC, {words}", ms * _SOC_WATTS
        row = (trained.name, name, accuracy, ms, None, logic, None, energy, Source.MODEL)
        found.append(Kpi(*row))
    return tuple(found)


def hardware_kpi(trained: Trained, design: Path, accuracy: float) -> Kpi:
    """A streaming design of the network (`bitwright bnn lower`) that has been simulated: one
    frame's cycles of the simulated RTL at the clock that was asked for, LUTs by the model.

    Raises:
        DataError: the design is of another network.
        RunError: it is no design, or has not been simulated here: what came with a folder of
            somebody else counts for nothing.
    """
    from bitwright.lower import optimise
    from bitwright.papers.bnn_soc.graph import binary_graph
    from bitwright.pipeline.designs.folder import open_design
    from bitwright.pipeline.designs.steps import MAP, done_here, proof_of
    from bitwright.pipeline.steps.results import load_result
    from bitwright.pipeline.steps.results_hardware import MapResult

    opened = open_design(design)
    if opened.graph.digest != optimise(binary_graph(trained.model)).digest:
        raise DataError(
            f"is not a design of {trained.name}",
            where=str(design),
            hint=f"bitwright bnn lower {trained.name} --out DIR; bitwright simulate DIR",
        )
    folder, simulated = done_here(opened, MAP), proof_of(opened)
    if folder is None or simulated is None:
        raise RunError(
            "has not been simulated here, for its settings as they are",
            where=str(design),
            hint=f"bitwright simulate {design}",
        )
    mapped = load_result(MapResult, folder)
    ms = simulated.latency / mapped.rate_clock_mhz * 1e-3
    there = mapped.capacity.lut
    logic = mapped.resources.lut / there if there else None
    name = f"{mapped.target}, streaming RTL"
    row = (trained.name, name, accuracy, ms, None, logic, None, None)
    return Kpi(*row, Source.SIMULATION)


def kpis_of(
    trained: Trained, samples: Samples, device: str | None = "", designs: Sequence[Path] = ()
) -> tuple[Kpi, ...]:
    """All platforms of one network; without an OpenCL device its row is left out.

    Args:
        device: part of an OpenCL device's name; None: none is asked for.
        designs: design folders of this network; see `hardware_kpi`.
    """
    model = trained.model
    judged = judge(model, samples.test_images, samples.test_labels)
    found = [cpu_kpi(trained, samples, judged.argmax)]
    if device is not None:
        try:
            found.append(opencl_kpi(trained, samples, device))
        except ToolError:
            if device:
                raise
    found += [hardware_kpi(trained, design, judged.argmax) for design in designs]
    return (*found, *soc_kpis(trained, judged.argmax))


def kpi_table(found: Sequence[Kpi]) -> Table:
    """The KPIs as one table."""
    columns = (
        Column("network", "network"),
        Column("platform", "platform"),
        Column("accuracy", "accuracy", Kind.SHARE),
        Column("kernel_ms", "kernels", Kind.NUMBER, "ms a frame", about="transfers apart"),
        Column("transfer_ms", "transfers", Kind.NUMBER, "ms", about="and the host's own work"),
        Column("logic", "logic used", Kind.SHARE, about="the board's ALMs as printed; else LUTs"),
        Column("training_minutes", "training", Kind.NUMBER, "min", about="of 60 000 cycles"),
        Column(
            "energy_mj", "energy", Kind.NUMBER, "mJ a frame",
            about="of the CPU by its counter, where it may be read; of the board "
            f"{_SOC_WATTS} W, assumed, times the kernels' time: the document measured none",
        ),
        Column("source", "time by"),
    )  # fmt: skip
    rows = tuple({c.key: _cell(getattr(one, c.key)) for c in columns} for one in found)
    return Table("KPIs", columns, rows, (f"Lines of code: {_lines()}.",))


def _cell(value: Any) -> Any:
    return str(value) if isinstance(value, Source) else value


def _lines() -> str:
    own = own_lines()
    kernels = own.get("OpenCL", 0)
    shown = ", ".join(f"{language} {count}" for language, count in sorted(own.items()))
    printed = published()["lines"]
    return (
        f"{shown} ({sum(own.values()) / max(kernels, 1):.0f} a line of kernels); the document's "
        f"host and kernels {printed['OpenCL, host and kernels']}, kernels "
        f"{printed['OpenCL, kernels']}"
    )


def kpi_charts(found: Sequence[Kpi]) -> dict[str, str]:
    """SVG pictures by file name: accuracy, time and logic as bars."""
    charts = {}
    for key, title, shown in (
        ("accuracy", "accuracy", "{:.2%}"),
        ("kernel_ms", "kernels, ms a frame", "{:.3g}"),
        ("logic", "logic of the FPGA", "{:.0%}"),
    ):
        rows = []
        for one in found:
            value = getattr(one, key)
            value = value.value if isinstance(value, Measured) else value
            if value is not None:
                rows.append((f"{one.network}, {one.platform}", value, shown.format(value)))
        charts[f"{key}.svg"] = str(bars(title, rows, titled=True))
    return charts


def layer_times(model: Model, frame: NDArray[np.uint8]) -> list[Measured]:
    """Milliseconds of each layer's product of one frame on this processor, with their spread."""
    product = model.cpu()
    seen: list[NDArray[Any]] = []

    def noted(layer: int, x: NDArray[Any]) -> NDArray[Any]:
        seen.append(x)
        return product(layer, x)

    model.sums(frame, noted)
    return [_timed(lambda i=i, x=x: product(i, x)) for i, x in enumerate(seen)]
