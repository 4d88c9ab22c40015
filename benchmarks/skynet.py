# SPDX-License-Identifier: Apache-2.0
"""The published SkyNet in few bits: boxes of the integer network against those of the float one.

    python benchmarks/skynet.py float  --data DATA                     # torch against float64
    python benchmarks/skynet.py ptq    --data DATA --bits 8            # calibration alone
    python benchmarks/skynet.py distil --data DATA --bits 4 --images raccoon --steps 400
    python benchmarks/skynet.py freeze --data DATA --bits 4 --out DIR  # integer graph and frames

DATA holds ``skynet/dac.weights``, ``skynet/images`` and ``raccoon-detection.zip`` (default: the
environment variable BITWRIGHT_DATA). The measure is the mean IoU between the boxes of the frozen
integer network and those of the float network, over the contest images on which the float network's
confidence exceeds 0.5. Calibration sees raccoon images only. Distillation has no labels; it goes on
from its checkpoint when it was stopped, and leaves the packed network (levels of weights, scales)
in ``--packed``, which ``freeze`` and ``ptq`` read if it is named. ``--write`` adds the figures to
docs/results/skynet.json.

Policy: every convolution's weights, one scale a channel, and every activation have ``--bits`` bits
(unsigned); the image has 8 (signed); the last convolution's accumulators are the output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitwright.data.detection import DetectionImage, load_images, load_voc, preprocess, resize
from bitwright.data.detection_boxes import Detections, decode, iou
from bitwright.interop.packed import load_packed, save_packed
from bitwright.models.skynet import SkyNet
from bitwright.papers.skynet.reference import evaluate_skynet
from bitwright.papers.skynet.weights import load_skynet_weights
from bitwright.quantize import IntegerModel, Policy, apply
from bitwright.train.regression import Regression, regress

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "skynet.json"
SIZE = (160, 320)
CONFIDENT = 0.5
CALIBRATION = 24
BATCH = 4
TRAINING_BATCH = 2
#: Layers whose outputs are compared: the ends of the six bundles.
FEATURES = tuple(f"model_p{p}.5" for p in ("1.0", "1.2", "1.4", "2.1", "2.2", "3.0"))

Pixels = NDArray[np.uint8]


def policy(bits: int, threshold_bits: int) -> Policy:
    """See the module's docstring."""
    weight = {"format": f"int{bits}", "scale": "learned" if bits < 8 else "max"}
    activation = {"format": f"uint{bits}", "scale": "learned" if bits < 8 else "max"}
    return Policy.from_dict(
        {
            "weight": weight,
            "activation": activation,
            # (x / 255 - 0.5) / 0.25 lies in -2 .. 2
            "input": {"format": "int8", "scale": "const", "value": 2 / 127},
            "rules": [{"position": "last", "role": "weight", "granularity": "per_channel"}],
            "threshold_bits": threshold_bits,
        }
    )


def contest_images(data: Path) -> tuple[DetectionImage, ...]:
    """The 16 images published with the weights, in the order of their numbers."""
    paths = sorted((data / "skynet" / "images").glob("*.jpg"), key=lambda p: int(p.stem))
    return load_images(paths)


def raccoons(data: Path) -> list[Pixels]:
    return [image.image for image in load_voc(data / "raccoon-detection.zip")]


def tensor(images: list[Pixels]) -> Tensor:
    return torch.from_numpy(preprocess(images, SIZE))


@torch.no_grad()
def boxes(model: nn.Module, images: Tensor) -> Detections:
    return decode(np.concatenate([model(part).numpy() for part in images.split(BATCH)]))


def calibrated(network: SkyNet, rules: Policy, images: Tensor) -> torch.fx.GraphModule:
    """Scales set from images, ready to train."""
    model = apply(network, rules, "calibrate", images[:1]).eval()
    with torch.no_grad():
        for part in images.split(BATCH):
            model(part)
    return apply(model, rules, "train").eval()


class Crops:
    """Unlabelled training images: crops, half of them four to a picture, mirrored at random.

    Four to a picture give the small objects that the detector was trained for. A step's images
    depend on its number alone.
    """

    def __init__(self, images: list[Pixels], seed: int) -> None:
        self.images, self.seed = images, seed

    def __call__(self, step: int) -> Tensor:
        rng = np.random.default_rng((self.seed, step))
        return tensor([self._picture(rng) for _ in range(TRAINING_BATCH)])

    def _picture(self, rng: np.random.Generator) -> Pixels:
        if rng.random() < 0.5:
            return resize(self._crop(rng), SIZE)
        half = (SIZE[0] // 2, SIZE[1] // 2)
        parts = [resize(self._crop(rng), half) for _ in range(4)]
        return np.concatenate([np.concatenate(parts[:2], 1), np.concatenate(parts[2:], 1)], 0)

    def _crop(self, rng: np.random.Generator) -> Pixels:
        image = self.images[rng.integers(len(self.images))]
        share = rng.uniform(0.4, 1)
        height, width = (max(16, int(side * share)) for side in image.shape[:2])
        top = rng.integers(max(1, image.shape[0] - height + 1))
        left = rng.integers(max(1, image.shape[1] - width + 1))
        part = image[top : top + height, left : left + width]
        return np.ascontiguousarray(part[:, ::-1] if rng.random() < 0.5 else part)


def box_loss(found: Tensor, wanted: Tensor) -> Tensor:
    """Squared errors of the raw numbers, weighted by how confident the teacher is of a box.

    A box far from any object never wins, so what it looks like does not matter.
    """
    shape = (len(found), 2, 5, *found.shape[2:])
    f, w = found.view(shape), wanted.view(shape)
    trust = torch.sigmoid(w[:, :, 4])
    errors = (f - w).square()
    box = (errors[:, :, :4].mean(2) * (trust + 0.02)).sum() / (trust + 0.02).sum()
    confidence = (errors[:, :, 4] * (trust + 0.05)).sum() / (trust + 0.05).sum()
    return box + 0.5 * confidence


def measure(model: nn.Module, network: SkyNet, data: Path) -> dict[str, Any]:
    """Overlap with the float boxes on the contest images."""
    images = tensor([image.image for image in contest_images(data)])
    reference, found = boxes(network, images), boxes(model, images)
    kept = reference.confidence > CONFIDENT
    overlap = iou(found.boxes, reference.boxes)[kept]
    return {
        "images": int(kept.sum()),
        "mean_iou": round(float(overlap.mean()), 4),
        "iou": [round(float(v), 3) for v in overlap],
        "confidence": [round(float(v), 3) for v in found.confidence[kept]],
        "float_confidence": [round(float(v), 3) for v in reference.confidence[kept]],
    }


def run_float(args: argparse.Namespace, network: SkyNet) -> dict[str, Any]:
    batch = preprocess([image.image for image in contest_images(args.data)], SIZE)
    with torch.no_grad():
        found = decode(network(torch.from_numpy(batch)).numpy())
    expected = decode(evaluate_skynet(network.state_dict(), batch))
    same = [
        bool((getattr(found, f) == getattr(expected, f)).all()) for f in ("anchor", "row", "column")
    ]
    return {
        "images": len(batch),
        "same_cells": all(same),
        "smallest_iou_with_float64": float(iou(found.boxes, expected.boxes).min()),
        "largest_edge_difference": float(np.abs(found.boxes - expected.boxes).max()),
    }


def trained(args: argparse.Namespace, network: SkyNet) -> torch.fx.GraphModule:
    """The quantized network: packed if there is such a file, else calibrated."""
    rules = policy(args.bits, args.threshold_bits)
    if args.packed is None or args.command == "distil":
        return calibrated(network, rules, tensor(raccoons(args.data)[:CALIBRATION]))
    model = apply(network, rules, "train", torch.zeros(1, 3, *SIZE)).eval()
    load_packed(args.packed, model)
    return model


def frozen_network(args: argparse.Namespace, network: SkyNet) -> IntegerModel:
    model = trained(args, network)
    frozen: IntegerModel = apply(model, policy(args.bits, args.threshold_bits), "freeze")
    return frozen


def run_ptq(args: argparse.Namespace, network: SkyNet) -> dict[str, Any]:
    return measure(frozen_network(args, network), network, args.data)


def run_distil(args: argparse.Namespace, network: SkyNet) -> dict[str, Any]:
    model = trained(args, network)
    images = raccoons(args.data)
    if args.images == "all":  # as many draws of contest images as of raccoons
        contest = [image.image for image in contest_images(args.data)]
        images += contest * (len(images) // len(contest))
    start = time.monotonic()

    def report(done: int, loss: float) -> None:
        if done % 10 == 0:
            print(f"step {done}: loss {loss:.4f}, {time.monotonic() - start:.0f} s", flush=True)

    config = Regression(args.steps, lr=args.lr, features=FEATURES)
    losses = regress(
        model,
        network,
        Crops(images, args.seed),
        config,
        loss=box_loss,
        checkpoint=args.checkpoint,
        on_step=report,
    )
    rules = policy(args.bits, args.threshold_bits)
    result = measure(apply(model, rules, "freeze"), network, args.data)
    if args.packed is not None:
        save_packed(args.packed, model)
        result["packed_bytes"] = args.packed.stat().st_size
        result["sha256"] = hashlib.sha256(args.packed.read_bytes()).hexdigest()
    result |= {
        "training_images": "200 raccoon images"
        + (" and the 16 contest images" if args.images == "all" else ", no contest image"),
        "steps": args.steps,
        "loss": [round(float(np.mean(part)), 4) for part in (losses[:20], losses[-20:])],
        "seconds": round(time.monotonic() - start),
    }
    return result


def run_freeze(args: argparse.Namespace, network: SkyNet) -> dict[str, Any]:
    from bitwright.ir import save_graph
    from bitwright.lower import optimise
    from bitwright.lower.compare import compare_edges

    frozen = frozen_network(args, network)
    size = tuple(args.size)
    graph = optimise(replace(frozen.graph, name=f"skynet_w{args.bits}a{args.bits}"))
    images = torch.from_numpy(
        preprocess([image.image for image in contest_images(args.data)[: args.frames]], size)
    )
    comparison = compare_edges(graph, frozen.edges(images))
    comparison.require()
    args.out.mkdir(parents=True, exist_ok=True)
    save_graph(graph, args.out / "graph.bwg")
    levels = frozen.edges(images)
    frames = {name: levels[name] for name in ("x", "scores") if name in levels}
    np.savez_compressed(args.out / "frames.npz", **frames)
    return {
        "graph": str(args.out / "graph.bwg"),
        "digest": graph.digest,
        "nodes": len(graph.nodes),
        "compared_values": comparison.values,
    }


COMMANDS = {"float": run_float, "ptq": run_ptq, "distil": run_distil, "freeze": run_freeze}


def write(key: str, result: dict[str, Any], command: str) -> None:
    """Keep a figure with the command that measured it."""
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    known[key] = {"command": command, **result}
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    RESULTS.with_suffix(".md").write_text(page(known))


def page(known: dict[str, Any]) -> str:
    """The figures as a table."""
    lines = [
        "# SkyNet in few bits",
        "",
        "Boxes of the frozen integer network against those of the float network, on the contest",
        "images on which the float network's confidence exceeds 0.5. By `benchmarks/skynet.py`.",
        "",
        "| | mean IoU | smallest | images | trained on | command |",
        "|---|---|---|---|---|---|",
    ]
    for key, row in sorted(known.items()):
        if "mean_iou" not in row:
            continue
        trained_on = row.get("training_images", "not trained; calibrated on 24 raccoon images")
        lines.append(
            f"| {key} | {row['mean_iou']:.3f} | {min(row['iou']):.2f} | {row['images']} "
            f"| {trained_on} | `{row['command']}` |"
        )
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("command", choices=sorted(COMMANDS))
    made.add_argument("--data", type=Path, default=os.environ.get("BITWRIGHT_DATA"))
    made.add_argument("--bits", type=int, default=4, choices=range(2, 9))
    made.add_argument("--threshold-bits", type=int, default=6, help="1: requant everywhere")
    made.add_argument("--packed", type=Path, help="file of the packed network")
    made.add_argument("--checkpoint", type=Path, help="distil: file to go on from")
    made.add_argument("--images", choices=("raccoon", "all"), default="raccoon")
    made.add_argument("--steps", type=int, default=400)
    made.add_argument("--lr", type=float, default=1.5e-3)
    made.add_argument("--seed", type=int, default=7)
    made.add_argument("--size", type=int, nargs=2, default=SIZE, metavar=("H", "W"))
    made.add_argument("--frames", type=int, default=2, help="freeze: contest images to keep")
    made.add_argument("--out", type=Path, default=Path("skynet"))
    made.add_argument("--write", metavar="KEY", help="keep the figures under this key")
    return made


def main() -> int:
    args = parser().parse_args()
    if args.command == "distil" and args.packed is None:
        print("name the file to write with --packed", file=sys.stderr)
        return 2
    if args.data is None:
        print("name the data folder with --data or BITWRIGHT_DATA", file=sys.stderr)
        return 2
    torch.manual_seed(args.seed)
    network = load_skynet_weights(Path(args.data) / "skynet" / "dac.weights")
    args.data = Path(args.data)
    result = COMMANDS[args.command](args, network)
    print(json.dumps(result, indent=1))
    if args.write:
        words = [word for word in sys.argv[1:] if word not in ("--write", args.write)]
        write(args.write, result, " ".join(["python benchmarks/skynet.py", *words]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
