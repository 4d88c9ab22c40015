# SPDX-License-Identifier: Apache-2.0
"""The model of the published DPU: its constants, and how far each of the nine figures is off.

    python benchmarks/dpu_calibration.py          fit anew, write the package's calibration.json
    python benchmarks/dpu_calibration.py --show   residuals of the constants that are there

The modified DenseNets are built with fresh weights (100 classes), quantized by the preset dpu and
compiled for the prebuilt design of the ZCU102: the work of each fused node follows from shapes
alone. Writes src/bitwright/papers/dpu/calibration.json and docs/results/dpu_calibration.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import asdict
from pathlib import Path

import torch

from bitwright.ir import Graph
from bitwright.models import build_model
from bitwright.papers.dpu.calibration import (
    Residual,
    calibrate,
    calibrated,
    known_networks,
    measured_design,
    residuals,
)
from bitwright.papers.dpu.compiler import compile_graph
from bitwright.papers.dpu.cycles import Timing, works_of
from bitwright.papers.dpu.work import Work
from bitwright.quantize import Policy, integerize
from bitwright.quantize.ptq.post_training import post_training_quantize

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "src/bitwright/papers/dpu/calibration.json"
PAGE = ROOT / "docs/results/dpu_calibration.md"
NETWORKS = ("densenet21", "densenet37", "densenet63")
_CLASSES, _SHAPE = 100, (32, 32, 3)


def integer_graph(name: str, form: str = "convolution_first", preset: str = "dpu") -> Graph:
    """A DenseNet of fresh weights in the engine's integers."""
    model = build_model({"name": name, "options": {"form": form}}, _CLASSES, _SHAPE).eval()
    policy = Policy.from_dict({"preset": preset})
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    converted, _ = post_training_quantize(model, policy, images, policy.methods)
    return integerize(converted.eval(), policy, (3, 32, 32), name).graph


def fit() -> None:
    networks: dict[str, tuple[Work, ...]] = {}
    for name in NETWORKS:
        networks[name] = works_of(compile_graph(integer_graph(name), measured_design()))
    timing = calibrate(networks)
    record = {
        "made_by": "python benchmarks/dpu_calibration.py",
        "date": datetime.date.today().isoformat(),
        "source": "Vailakis 2022, tables 7.1 to 7.3: latency and throughput of the DPU",
        "timing": {key: round(value, 6) for key, value in asdict(timing).items()},
        "networks": {name: [w.to_json() for w in works] for name, works in networks.items()},
    }
    DATA.write_text(json.dumps(record) + "\n")


def page(timing: Timing, rows: tuple[Residual, ...]) -> str:
    lines = [
        "# The model of the published DPU, calibrated",
        "",
        "`python benchmarks/dpu_calibration.py` fits three constants to the latencies and "
        "throughputs of Vailakis 2022, tables 7.1 to 7.3 (three cores B4096, 300 MHz, CIFAR-100). "
        "The third figure of each network is the product of the other two, so six figures are "
        "independent. A model, not a measurement: no load of this machine changes it.",
        "",
        f"Host part of an image {timing.host_ms:.4f} ms; {timing.layer_cycles:.0f} cycles a fused "
        f"node beside its work; memory of all cores {timing.memory_gbytes:.2f} GB/s; given, not "
        f"fitted: {timing.port_bytes:g} bytes a cycle and core.",
        "",
        "| network | figure | printed | model | off by |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        unit = f" {row.unit}" if row.unit else ""
        lines.append(
            f"| {row.network} | {row.figure} | {row.printed:.4g}{unit} | {row.model:.4g}{unit} | "
            f"{100 * row.relative:+.1f} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true")
    if not parser.parse_args().show:
        fit()
    timing = calibrated()
    text = page(timing, residuals(timing, known_networks()))
    PAGE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
