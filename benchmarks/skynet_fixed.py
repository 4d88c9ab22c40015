# SPDX-License-Identifier: Apache-2.0
"""The published SkyNet in the fixed point of its FPGA version: boxes against those of the float
network, on the published contest images.

    python benchmarks/skynet_fixed.py --data DATA

DATA holds ``skynet/dac.weights`` and ``skynet/images`` (default: the environment variable
BITWRIGHT_DATA). There are no true boxes: the measure is the mean IoU between the boxes of the two
networks, over images on which the float network's confidence exceeds 0.5, and over all. The thesis
states 0.741 (float) and 0.727 (fixed point) against true boxes of its own validation set.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bitwright.data.detection import load_images, preprocess
from bitwright.data.detection_boxes import decode, iou
from bitwright.models.skynet import folded_weights
from bitwright.papers.skynet.fixed_point import FixedTypes, evaluate_fixed
from bitwright.papers.skynet.weights import load_skynet_weights
from bitwright.pipeline.steps.baseline import cpu_name

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "skynet_fixed.json"
CONFIDENT = 0.5
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
    command = " ".join(["python benchmarks/skynet_fixed.py", *sys.argv[1:]])
    machine = f"{cpu_name()}, torch {torch.__version__}, numpy {np.__version__}"
    counts = {"images": len(batch), "sure": int(sure.sum())}
    return {**counts, "rows": rows, "command": command, "machine": machine}


def page(found: dict[str, Any]) -> str:
    lines = [
        "# SkyNet in the fixed point of its FPGA version",
        "",
        f"Boxes against those of the float network on {found['images']} published contest images "
        f"(sure, confidence above 0.5: {found['sure']});",
        "there are no true boxes. The thesis states 0.741 float and 0.727 in fixed point against",
        "true boxes. By `benchmarks/skynet_fixed.py`, from `papers/skynet/fixed_point.py`.",
        "",
        "| case | maps, weights, sums | mean IoU, sure | all | smallest, sure |",
        "|---|---|---|---|---|",
    ]
    for name, row in found["rows"].items():
        types = ", ".join(f"`{each}`" for each in row["types"])
        lines.append(
            f"| {name} | {types} | {row['mean_iou_sure']:.3f} | {row['mean_iou_all']:.3f} "
            f"| {row['smallest_sure']:.2f} |"
        )
    lines += ["", f"* `{found['command']}`; {found['machine']}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("BITWRIGHT_DATA"))
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/results")
    args = parser.parse_args()
    if args.data is None:
        print("name the data folder with --data or BITWRIGHT_DATA", file=sys.stderr)
        return 2
    found = measure(Path(args.data), args.cases)
    if args.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
