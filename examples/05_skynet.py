# SPDX-License-Identifier: Apache-2.0
"""Lesson 5: a published detector, from its weights to exact integers.

SkyNet finds one object in a drone image. The weights and 16 images are published
(github.com/TomG008/SkyNet); name the folder that holds them as ``skynet`` with BITWRIGHT_DATA.
"""

import os
import sys
from pathlib import Path

import torch

from bitwright.data.detection import load_images, preprocess
from bitwright.data.detection_boxes import decode, iou, to_pixels, write_contest_results
from bitwright.ir.executor import Executor
from bitwright.lower import optimise
from bitwright.papers.skynet.weights import load_skynet_weights
from bitwright.quantize import Policy, apply

if __name__ == "__main__":
    folder = Path(os.environ.get("BITWRIGHT_DATA", ".")) / "skynet"
    if not (folder / "dac.weights").is_file():
        sys.exit(f"put dac.weights and images/ of TomG008/SkyNet into {folder}; see BITWRIGHT_DATA")
    network = load_skynet_weights(folder / "dac.weights")
    pictures = load_images(sorted((folder / "images").glob("*.jpg"))[:6])
    images = torch.from_numpy(preprocess([picture.image for picture in pictures], (160, 320)))

    # Float: one box an image, where the network is surest.
    with torch.no_grad():
        reference = decode(network(images).numpy())
    write_contest_results(Path("boxes"), [picture.name for picture in pictures], reference)

    # Eight bits, calibrated on four of the images; every operation is now one on integers.
    policy = Policy.from_dict(
        {
            "weight": "int8",
            "activation": {"format": "uint8", "scale": "max"},
            "input": {"format": "int8", "scale": "const", "value": 2 / 127},
        }
    )
    frozen = apply(network, policy, "freeze", images[:4])
    found = decode(frozen(images).detach().numpy())
    for picture, box, overlap in zip(
        pictures, to_pixels(found.boxes), iou(found.boxes, reference.boxes), strict=True
    ):
        print(
            f"{picture.name}: box {box.round().astype(int).tolist()}, IoU with float {overlap:.3f}"
        )

    # The integer graph, from which hardware is made, gives the same integers.
    graph = optimise(frozen.graph)
    levels = frozen.edges(images[:2])
    scores = Executor(graph).run({"x": levels["x"]})[graph.outputs[0]]
    print(f"{len(graph.nodes)} nodes; {scores.size} integers,", (scores == levels["scores"]).all())
