# SPDX-License-Identifier: Apache-2.0
"""Where a detector of one thing an image loses: in the choice of the box, or in the box.

    python benchmarks/detector_cells.py RUN ... --write

RUN are run directories of `benchmarks/detector.py` as far as step ``train``, whose float network is
looked at, on training (without augmentation) and validation images; held-out ones have no part in
it. Of each image: the IoU of the most confident box; of the best of the boxes that the cell with
the true box's centre gives; of the best of all boxes; and how many cells lie between the two cells.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import command, keep, kept, machine, table
from torch import nn

from bitwright.data import Dataset
from bitwright.data.detection_boxes import decode, decode_all, iou
from bitwright.data.labels import UNKNOWN
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.train import WEIGHTS
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.tasks.detection import Detection

HEADS = (
    "run", "part", "images", "chosen", "centre's cell", "best", "chosen is the centre's cell",
    "its neighbour",
)  # fmt: skip
BATCH = 32


def outputs_of(model: nn.Module, data: Dataset) -> np.ndarray:
    images = torch.from_numpy(np.asarray(data.images).astype(np.float32) * np.float32(data.scale))
    with torch.no_grad():
        parts = [model(part.permute(0, 3, 1, 2)) for part in images.split(BATCH)]
    return torch.cat(parts).double().numpy()


def cells(outputs: np.ndarray, labels: np.ndarray, task: Detection) -> dict[str, float]:
    height, width = outputs.shape[2:]
    anchors, reach = task.anchors_of((height, width)), task.reach
    one, every = decode(outputs, anchors, reach), decode_all(outputs, anchors, reach=reach)
    rows = []
    for at, image in enumerate(labels):
        truth = image[image[:, 0] != UNKNOWN][:, 1:].astype(np.float64)
        if not len(truth):
            continue
        shared = iou(one.boxes[at], truth)
        box = truth[int(shared.argmax())]
        row, column = (int(c) for c in (box[[1, 0]] + box[[3, 2]]) / 2 * (height, width))
        grid = iou(every.boxes[at], box).reshape(len(anchors), height, width)
        apart = max(abs(int(one.row[at]) - row), abs(int(one.column[at]) - column))
        rows.append((shared.max(), grid[:, row, column].max(), grid.max(), apart))
    chosen, centre, best, apart = np.array(rows).T
    return {
        "images": len(rows),
        "chosen": float(chosen.mean()),
        "centre": float(centre.mean()),
        "best": float(best.mean()),
        "same": float((apart == 0).mean()),
        "next": float((apart == 1).mean()),
    }


def measure(run: Path) -> dict[str, Any]:
    work = Workspace(load_recipe(str(run / "recipe.yaml"), []))
    model = work.fresh_model()
    state = torch.load(run / step_folder("train") / WEIGHTS, weights_only=True)
    model.load_state_dict(state["model"])
    model.eval()
    found = {}
    for part in ("train", "validation"):
        data = getattr(work.data, part)
        if not len(data):
            continue
        outputs = outputs_of(model, data)
        found[part] = cells(outputs, data.labels, work.task)
    print(run.name, json.dumps(found), flush=True)
    return found


def page(found: dict[str, Any]) -> str:
    rows = [
        (
            name, part, str(row["images"]),
            *(f"{row[key]:.3f}" for key in ("chosen", "centre", "best")),
            *(f"{row[key]:.0%}" for key in ("same", "next")),
        )
        for name, parts in found["rows"].items()
        for part, row in parts.items()
    ]  # fmt: skip
    lines = [
        "# Where a detector loses",
        "",
        "Mean IoU of the most confident box, of the box of the cell with the true centre, and of",
        "the best of all boxes; float networks, images as they are. By",
        "`benchmarks/detector_cells.py`.",
        "",
        *table(HEADS, rows),
        "",
        *(f"* {line}" for line in found["made"]),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {run.name: measure(run) for run in args.runs}
    made = f"`{command({str(run): run.name for run in args.runs})}`; {machine('torch')}"
    if args.write:
        known = kept("detector_cells") or {"rows": {}, "made": []}  # of runs of another time
        lines = [line for line in known["made"] if line != made]
        keep("detector_cells", {"rows": known["rows"] | rows, "made": [*lines, made]}, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
