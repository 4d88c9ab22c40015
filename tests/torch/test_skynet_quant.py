# SPDX-License-Identifier: Apache-2.0
"""The published SkyNet in few bits: boxes of the exact integer network."""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import skynet as bench

from bitwright.ir.executor import Executor
from bitwright.lower import optimise
from bitwright.models.skynet import SkyNet
from bitwright.papers.skynet.weights import load_skynet_weights

pytest.importorskip("h5py")
ROOT = Path(__file__).resolve().parents[2]
PACKED = ROOT / "docs" / "results" / "skynet-w4a4.bwq"


@pytest.fixture(scope="module")
def network(data_dir: Path) -> SkyNet:
    needed = [data_dir / "skynet" / "dac.weights", data_dir / "raccoon-detection.zip"]
    absent = [path.name for path in needed if not path.is_file()]
    if absent:
        pytest.skip(f"no {absent[0]} in the test data")
    return load_skynet_weights(needed[0])


def arguments(data_dir: Path, bits: int, packed: Path | None, threshold_bits: int = 6) -> Namespace:
    return Namespace(
        command="ptq", data=data_dir, bits=bits, packed=packed, threshold_bits=threshold_bits
    )


@pytest.mark.long
def test_eight_bits_after_calibration(data_dir: Path, network: SkyNet) -> None:
    result = bench.run_ptq(arguments(data_dir, 8, None), network)
    assert result["images"] == 15
    assert result["mean_iou"] >= 0.90


@pytest.mark.parametrize("threshold_bits", [6, 1])
def test_four_bits_after_distillation(data_dir: Path, network: SkyNet, threshold_bits: int) -> None:
    """The kept network, frozen anew: figures as recorded, and the graph gives its integers."""
    known = json.loads((ROOT / "docs" / "results" / "skynet.json").read_text())["w4a4"]
    assert hashlib.sha256(PACKED.read_bytes()).hexdigest() == known["sha256"]
    args = arguments(data_dir, 4, PACKED, threshold_bits)
    frozen = bench.frozen_network(args, network)
    if threshold_bits > 1:  # the other variant rounds elsewhere, but is as exact
        result = bench.measure(frozen, network, data_dir)
        assert result["images"] == 15
        assert result["mean_iou"] >= 0.70
        assert result["mean_iou"] == pytest.approx(known["mean_iou"], abs=0.03)
    image = bench.tensor([bench.contest_images(data_dir)[0].image])
    graph = optimise(frozen.graph)
    levels = frozen.edges(image)
    found = Executor(graph, threads=1).run({"x": levels["x"]})[graph.outputs[0]]
    assert np.array_equal(found, levels["scores"])
    bits = {int(np.abs(node.params["weight"]).max()) for node in graph if node.op == "conv"}
    assert max(bits) <= 7
    kinds = {t.wire_bits for name, t in graph.types.items() if graph.producer(name) is not None
             and graph.producer(name).op in ("threshold", "requant")}  # fmt: skip
    assert kinds == {4}


def test_training_images_depend_on_the_step_alone() -> None:
    images = [np.full((40, 60, 3), value, np.uint8) for value in (10, 200)]
    crops = bench.Crops(images, seed=3)
    later = crops(5)
    assert torch.equal(bench.Crops(images, seed=3)(5), later)
    assert not torch.equal(crops(6), later)
    assert later.shape == (2, 3, 160, 320)


def test_the_loss_looks_where_the_teacher_is_sure() -> None:
    teacher = torch.full((1, 10, 2, 3), -6.0)
    teacher[0, 4, 0, 0] = 4.0
    near, far = teacher.clone(), teacher.clone()
    near[0, 0, 0, 0] += 1  # x of the sure box
    far[0, 0, 1, 2] += 1
    assert bench.box_loss(near, teacher) > 10 * bench.box_loss(far, teacher) > 0
    assert bench.box_loss(teacher, teacher) == 0
