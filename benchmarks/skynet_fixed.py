# SPDX-License-Identifier: Apache-2.0
"""The published SkyNet in the fixed point of its FPGA version: boxes against those of the float
network, on the published contest images.

    python benchmarks/skynet_fixed.py --data DATA
    python benchmarks/skynet_fixed.py --rtl 2 --write    # its first bundles in RTL alone

DATA holds ``skynet/dac.weights`` and ``skynet/images`` (default: the environment variable
BITWRIGHT_DATA). There are no true boxes: the measure is the mean IoU between the boxes of the two
networks, over images on which the float network's confidence exceeds 0.5, and over all. The thesis
states 0.741 (float) and 0.727 (fixed point) against true boxes of its own validation set.

``--rtl``: so many bundles from the front as hardware blocks whose accumulators round and saturate,
on pieces of the images, every value against the emulation (steps of 16 input channels, where 32 do
not divide a layer's).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import command, keep, kept, machine, table

from bitwright.data.detection import load_images, preprocess
from bitwright.data.detection_boxes import decode, iou
from bitwright.formats import parse_format
from bitwright.hw import Folding, map_graph
from bitwright.hw.dataflow import analyse
from bitwright.models.skynet import folded_weights
from bitwright.papers.skynet.fixed_graph import HARDWARE, fixed_graph, levels_of
from bitwright.papers.skynet.fixed_point import FixedTypes, evaluate_fixed
from bitwright.papers.skynet.weights import load_skynet_weights
from bitwright.rtl.emit import emit
from bitwright.sim import Simulator

HEADS = ("case", "maps, weights, sums", "mean IoU, sure", "all", "smallest, sure")
CONFIDENT = 0.5
PIECE = (32, 64)
CASES = {
    "published: maps 9, weights 11, sums 12 bits": FixedTypes(),
    "weights of 4 bits, maps as published": FixedTypes(weights="fixed<4,1>"),
    "sums of 16 bits": FixedTypes(sums="fixed<16,6>"),
    "maps of 10 bits, to 8": FixedTypes(maps="fixed<10,4>", sums="fixed<13,5>"),
    "16 bits everywhere": FixedTypes("fixed<16,5>", "fixed<16,4>", "fixed<16,6>"),
}


def measure(data: Path, cases: int) -> dict[str, Any]:
    network = load_skynet_weights(data / "skynet" / "dac.weights")
    paths = sorted((data / "skynet" / "images").glob("*.jpg"), key=lambda p: int(p.stem))
    batch = preprocess([image.image for image in load_images(paths)])
    with torch.no_grad():
        parts = [network(part).numpy() for part in torch.from_numpy(batch).split(4)]
    wanted = decode(np.concatenate(parts))
    weights = {k: (w.numpy(), b.numpy()) for k, (w, b) in folded_weights(network).items()}
    sure = wanted.confidence > CONFIDENT
    rows = {}
    for name, types in list(CASES.items())[:cases]:
        outputs = [evaluate_fixed(weights, part, types) for part in np.array_split(batch, 8)]
        found = decode(np.concatenate(outputs))
        shared = iou(found.boxes, wanted.boxes)
        rows[name] = {
            "types": [types.maps, types.weights, types.sums],
            "mean_iou_sure": round(float(shared[sure].mean()), 4),
            "mean_iou_all": round(float(shared.mean()), 4),
            "smallest_sure": round(float(shared[sure].min()), 3),
        }
        print(name, rows[name], flush=True)
    return {
        "images": len(batch),
        "sure": int(sure.sum()),
        "rows": rows,
        "command": command({str(data): "DATA"}),
        "machine": machine("torch", "numpy"),
    }


def measure_rtl(data: Path, bundles: int, folder: Path) -> dict[str, Any]:
    """The first bundles in RTL, on pieces from the middle of two images."""
    network = load_skynet_weights(data / "skynet" / "dac.weights")
    weights = {k: (w.numpy(), b.numpy()) for k, (w, b) in folded_weights(network).items()}
    paths = sorted((data / "skynet" / "images").glob("*.jpg"), key=lambda p: int(p.stem))
    height, width = PIECE
    images = preprocess([image.image for image in load_images(paths[:2])])
    top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
    pieces = images[:, :, top : top + height, left : left + width]
    graph = fixed_graph(weights, (height, width, 3), HARDWARE, bundles)
    (out,) = graph.outputs
    levels = levels_of(pieces, HARDWARE.maps)
    wanted = graph.run({"image": levels}, edges=True)
    emulated = evaluate_fixed(weights, pieces, HARDWARE, bundles)
    hardware = map_graph(graph, Folding({}))
    emit(hardware, folder)
    simulator = Simulator.build(folder)
    result = simulator.run(simulator.pack({"s_axis_0": levels}), len(pieces))
    found = result.levels["m_axis_0"].reshape(wanted[out].shape)
    sums = [wanted[node.output] for node in graph if node.op == "conv_rounded"]
    ends = (parse_format(HARDWARE.sums).min_level, parse_format(HARDWARE.sums).max_level)
    return {
        "bundles": bundles,
        "piece": list(PIECE),
        "compared": int(found.size),
        "graph_differs": int((wanted[out] != levels_of(emulated, HARDWARE.maps)).sum()),
        "rtl_differs": int((found != wanted[out]).sum()),
        "predicted": analyse(hardware).interval,
        "simulated": int(np.diff(result.frame_ends())[-1]),
        "saturated": sum(int(np.isin(each, ends).sum()) for each in sums),
        "command": command({str(data): "DATA", str(folder): "OUT"}),
    }


def page(found: dict[str, Any]) -> str:
    rows = [
        (
            name,
            ", ".join(f"`{each}`" for each in row["types"]),
            f"{row['mean_iou_sure']:.3f}",
            f"{row['mean_iou_all']:.3f}",
            f"{row['smallest_sure']:.2f}",
        )
        for name, row in found["rows"].items()
    ]
    lines = [
        "# SkyNet in the fixed point of its FPGA version",
        "",
        f"Boxes against those of the float network on {found['images']} published contest images "
        f"(sure, confidence above 0.5: {found['sure']});",
        "there are no true boxes. The thesis states 0.741 float and 0.727 in fixed point against",
        "true boxes. By `benchmarks/skynet_fixed.py`, from `papers/skynet/fixed_point.py`.",
        "",
        *table(HEADS, rows),
        "",
        f"* `{found['command']}`; {found['machine']}",
    ]
    if "rtl" in found:
        rtl = found["rtl"]
        lines += [
            "",
            f"In RTL, the first {rtl['bundles']} bundles on two pieces of "
            f"{rtl['piece'][0]} x {rtl['piece'][1]} pixels: {rtl['compared']} values of maps,",
            f"{rtl['graph_differs']} differ between emulation and integer graph, "
            f"{rtl['rtl_differs']} between graph and RTL; {rtl['predicted']} cycles an image",
            f"predicted, {rtl['simulated']} simulated; {rtl['saturated']} sums end saturated.",
            "",
            f"* `{rtl['command']}`",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("BITWRIGHT_DATA"))
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/results")
    parser.add_argument("--rtl", type=int, help="so many bundles in RTL, and nothing else")
    parser.add_argument("--out", type=Path, default=Path("runs") / "skynet_fixed")
    args = parser.parse_args()
    if args.data is None:
        print("name the data folder with --data or BITWRIGHT_DATA", file=sys.stderr)
        return 2
    known = kept("skynet_fixed")
    if args.rtl:
        found = {**known, "rtl": measure_rtl(Path(args.data), args.rtl, args.out)}
        print(found["rtl"])
    else:
        found = {**known, **measure(Path(args.data), args.cases)}
    if args.write:
        keep("skynet_fixed", found, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
