# SPDX-License-Identifier: Apache-2.0
"""Whole networks on hardware: graph, cycles and LUTs, each predicted figure against a found one.

    python benchmarks/networks.py resnet20 densenet21 mobilenet [--frames 2] [--no-synthesis]
    python benchmarks/networks.py fifo          depths of all FIFOs: time, and beats simulated
    python benchmarks/networks.py skynet-fit    whole SkyNet within the memory of an ECP5-85

A network is quantized to four bits after training (8-bit images, batch norms with statistics of
real images; weights are not trained, which changes no circuit: labels mean nothing here). It is
folded for the stated interval, its RTL is compared with the integer graph on CIFAR-10 images, all
outputs, and synthesised by Yosys for the ECP5. Writes docs/results/networks.json and networks.md,
fifo.json and fifo.md, skynet_fit.json; rows of networks that were not named are kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import TargetError
from bitwright.base.figures import Resources
from bitwright.build.target import list_targets
from bitwright.build.yosys import synthesise
from bitwright.data.folders import Decoding, decode_image
from bitwright.data.listing import list_images, opened
from bitwright.hw import (
    Folding,
    MapOptions,
    RateGoal,
    analyse,
    folding_of,
    graph_resources,
    map_graph,
    search_folding,
)
from bitwright.hw.fifos import fifo_depths
from bitwright.hw.mapping import apply_folding, convert_widths
from bitwright.hw.template import template
from bitwright.hw.tokens import check_tokens
from bitwright.ir import Graph
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.rtl.emit import emit
from bitwright.sim import Simulator, no_stalls, random_stalls

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
DATA = Path(os.environ.get("BITWRIGHT_DATA", ROOT.parent / "shared" / "data"))
FAMILY = "ecp5"
CLOCK = 100e6
DEVICE = Resources(lut=83_640, ff=83_640, dsp=156, bram=208)  # LFE5U-85F

# Network -> (model of the zoo, largest interval in cycles).
NETWORKS: dict[str, tuple[dict[str, Any], int]] = {
    "resnet20": ({"name": "resnet20"}, 400_000),
    "densenet21": ({"name": "densenet21", "options": {"form": "convolution_first"}}, 400_000),
    "mobilenet": ({"name": "mobilenet_cifar", "options": {"width": 0.25}}, 200_000),
}


def cifar_images(count: int) -> np.ndarray:
    """``(N, H, W, 3)`` bytes, spread over the classes."""
    listing = list_images(DATA / "cifar10-jpg.zip")
    with opened(listing) as read:
        names = listing.names[:: len(listing.names) // count][:count]
        return np.stack([decode_image(read(name), Decoding(), name) for name in names])


def quantized(
    spec: dict[str, Any], images: np.ndarray, classes: int | None, seed: int = 0
) -> Graph:
    """A network of the zoo in four bits as an integer graph."""
    import torch
    from torch import nn

    from bitwright.lower import optimise
    from bitwright.models import build_model
    from bitwright.quantize import Policy, apply

    torch.manual_seed(seed)
    model = build_model(spec, classes, images.shape[1:])
    x = torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32)) / 255
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain average
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    model.train()
    with torch.no_grad():
        for part in x.split(32):
            model(part)
    policy = Policy.uniform("int4", "uint4", "uint8")
    frozen = apply(model.eval(), policy, "freeze", x[:16])
    return optimise(replace(frozen.graph, name=str(spec["name"])))


def simulated(graph: Graph, folder: Path, frames: int) -> dict[str, Any]:
    """RTL against the integer graph on real images, with and without stalls; cycles."""
    feeds = {"x": cifar_images(frames).astype(np.int64)}
    expected = graph.run(feeds)
    simulator = Simulator.build(folder, frames=frames)
    row: dict[str, Any] = {"frames": frames, "compared_values": 0, "differences": 0}
    for stalls in (no_stalls(), random_stalls(0.3, seed=1)):
        beats = simulator.pack({"s_axis_0": feeds["x"]})
        result = simulator.run(beats, frames, stalls)
        for number, edge in enumerate(graph.outputs):
            wanted = expected[edge].ravel()
            got = result.levels[f"m_axis_{number}"].ravel()
            row["compared_values"] += int(wanted.size)
            row["differences"] += int((got != wanted).sum())
        if not row.get("interval"):
            ends = result.frame_ends()
            row |= {"interval": int(ends[-1] - ends[-2]), "latency": int(result.latency)}
    return row


def measure(name: str, frames: int, synthesis: bool) -> dict[str, Any]:
    """Lower, fold, simulate and synthesise one network."""
    spec, most = NETWORKS[name]
    graph = quantized(spec, cifar_images(64), 10)
    start = time.perf_counter()
    folding = search_folding(graph, RateGoal(CLOCK / most, CLOCK), family=FAMILY)
    searched = time.perf_counter() - start
    start = time.perf_counter()
    hardware = map_graph(graph, folding, MapOptions(FAMILY))
    mapped = time.perf_counter() - start
    flow, beats = analyse(hardware), check_tokens(hardware)
    predicted = graph_resources(hardware, FAMILY)
    row: dict[str, Any] = {
        "network": name,
        "nodes": len(hardware.nodes),
        "predicted": {
            "interval": flow.interval,
            "latency": flow.latency,
            "bottleneck": flow.bottleneck,
            **predicted.to_json(),
        },
        "beats": {"interval": beats.interval, "latency": beats.latency},
        "seconds": {"search": round(searched, 1), "mapping": round(mapped, 1)},
        "folding": folding_of(hardware).to_json(),
    }
    print(name, {k: v for k, v in row.items() if k != "folding"}, flush=True)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "rtl")
        emit(hardware, folder)
        row["simulated"] = simulated(graph, folder, frames)
        print(name, row["simulated"], flush=True)
        if synthesis:
            target = next(t for t in list_targets() if t.family == FAMILY)
            result = synthesise(folder, target, Path(work, "out"), timeout=3600)
            row["synthesis"] = {
                **result.resources.to_json(),
                "tool": result.tool,
                "seconds": round(result.seconds),
                "lut_error": round(predicted.lut / result.resources.lut - 1, 4),
            }
            print(name, row["synthesis"], flush=True)
    return row


def fifo_times() -> list[dict[str, Any]]:
    """Seconds that the FIFO depths of ResNet-20 and whole SkyNet take, and the simulated beats."""
    from tests.hw_networks import resnet, skynet

    rows = []
    for name, graph, most in (
        ("ResNet-20, 32 x 32", resnet(), 200_000),
        ("SkyNet, 160 x 320", skynet(requant=True), 1_000_000),
    ):
        folding = search_folding(graph, RateGoal(CLOCK / most, CLOCK), family=FAMILY)
        bare = convert_widths(apply_folding(template(graph), folding, MapOptions(FAMILY)))
        start = time.perf_counter()
        depths = fifo_depths(bare)
        sized = time.perf_counter() - start
        hardware = map_graph(graph, folding, MapOptions(FAMILY))
        start = time.perf_counter()
        beats = check_tokens(hardware)
        rows.append({
            "network": name,
            "fifos": len(depths),
            "deepest": max(depths.values()),
            "seconds_sizing": round(sized, 1),
            "seconds_beats": round(time.perf_counter() - start, 1),
            "cycles_simulated": beats.cycles,
            "interval_predicted": analyse(hardware).interval,
            "interval_beats": beats.interval,
            "latency_predicted": analyse(hardware).latency,
            "latency_beats": beats.latency,
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def skynet_fit() -> list[dict[str, Any]]:
    """Whole SkyNet (160 x 320, 4 bit, requantization) within an ECP5-85, at several intervals."""
    from tests.hw_networks import skynet

    graph, rows = skynet(requant=True), []
    for most in (500_000, 1_000_000, 2_000_000, 4_000_000):
        row: dict[str, Any] = {"most_cycles": most}
        start = time.perf_counter()
        try:
            folding = search_folding(
                graph, RateGoal(CLOCK / most, CLOCK, limit=DEVICE), family=FAMILY
            )
        except TargetError as error:
            row |= {"fits": False, "why": str(error)}
        else:
            row |= {"fits": True, **fitted(graph, folding)}
        row["seconds"] = round(time.perf_counter() - start, 1)
        print({k: v for k, v in row.items() if k != "folding"}, flush=True)
        rows.append(row)
    return rows


def fitted(graph: Graph, folding: Folding) -> dict[str, Any]:
    """What a folding takes and how fast it is."""
    hardware = map_graph(graph, folding, MapOptions(FAMILY))
    used = graph_resources(hardware, FAMILY)
    return {
        "interval": analyse(hardware).interval,
        "frames_a_second": round(CLOCK / analyse(hardware).interval, 1),
        **{key: round(value) for key, value in used.to_json().items()},
        "folding": folding_of(hardware).to_json(),
    }


def machine() -> dict[str, object]:
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def network_table(rows: list[dict[str, Any]]) -> str:
    """The Markdown table of all networks."""
    head = (
        "| network | cycles a frame, predicted | RTL | latency, predicted (at least) | RTL | "
        "values compared | differences | LUT, predicted | synthesis | error | BRAM | "
        "FF, predicted | synthesis |\n|" + "---|" * 13 + "\n"
    )
    lines = []
    for row in rows:
        p, s, y = row["predicted"], row["simulated"], row.get("synthesis")
        found = (
            [f"{y['lut']:.0f}", f"{y['lut_error']:+.1%}", f"{y['bram']:.0f}"] if y else ["-"] * 3
        )
        cells = [
            row["network"], p["interval"], s["interval"], p["latency"], s["latency"],
            s["compared_values"], s["differences"], f"{p['lut']:.0f}", *found, f"{p['ff']:.0f}",
            f"{y['ff']:.0f}" if y else "-",
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return head + "".join(lines)


def write_networks(rows: list[dict[str, Any]]) -> None:
    path = RESULTS / "networks.json"
    old = json.loads(path.read_text())["networks"] if path.is_file() else []
    named = {row["network"] for row in rows}
    rows = [row for row in old if row["network"] not in named] + rows
    rows.sort(key=lambda row: str(row["network"]))
    command = "python benchmarks/networks.py " + " ".join(NETWORKS)
    table = {"command": command, "machine": machine(), "networks": rows}
    path.write_text(json.dumps(table, indent=1) + "\n")
    tools = sorted({row["synthesis"]["tool"] for row in rows if "synthesis" in row})
    text = (
        "# Networks\n\nFour-bit networks of the zoo, quantized after training, on CIFAR-10 images; "
        f"ECP5, `{command}`. RTL in Verilator equals the integer graph on every output, with and "
        f"without stalls. Synthesis: {', '.join(tools) or '-'}. {json.dumps(machine())}\n\n"
        + network_table(rows)
        + "".join(f"\n{row['network']}: {row['note']}.\n" for row in rows if row.get("note"))
    )
    (RESULTS / "networks.md").write_text(text)


def write_fifo(rows: list[dict[str, Any]]) -> None:
    command = "python benchmarks/networks.py fifo"
    table = {"command": command, "machine": machine(), "networks": rows}
    (RESULTS / "fifo.json").write_text(json.dumps(table, indent=1) + "\n")
    head = (
        "| network | FIFOs | deepest (beats) | sizing (s) | cycles a frame, predicted | beats "
        "simulated | latency, predicted (at least) | beats simulated | cycles simulated | in (s) |"
        "\n|" + "---|" * 10 + "\n"
    )
    keys = (
        "network", "fifos", "deepest", "seconds_sizing", "interval_predicted", "interval_beats",
        "latency_predicted", "latency_beats", "cycles_simulated", "seconds_beats",
    )  # fmt: skip
    lines = ["| " + " | ".join(str(row[key]) for key in keys) + " |\n" for row in rows]
    text = (
        "# Depths of FIFOs\n\nHow long it takes to find the depth of every FIFO, and what the "
        f"simulation of beats (`hw.tokens`) then says. `{command}`, random weights (depths do not "
        f"depend on them). {json.dumps(machine())}\n\n{head}" + "".join(lines)
    )
    (RESULTS / "fifo.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=[*NETWORKS, "fifo", "skynet-fit"])
    parser.add_argument("--frames", type=int, default=3, help="images simulated (at least 2)")
    parser.add_argument("--no-synthesis", action="store_true")
    given = parser.parse_args()
    rows = []
    for name in given.what:
        if name == "fifo":
            write_fifo(fifo_times())
        elif name == "skynet-fit":
            table = {
                "command": "python benchmarks/networks.py skynet-fit",
                "machine": machine(),
                "device": {"name": "LFE5U-85F", **DEVICE.to_json()},
                "source": "model",
                "rows": skynet_fit(),
            }
            (RESULTS / "skynet_fit.json").write_text(json.dumps(table, indent=1) + "\n")
        else:
            rows.append(measure(name, given.frames, not given.no_synthesis))
            write_networks(rows)


if __name__ == "__main__":
    main()
