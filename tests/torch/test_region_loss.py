# SPDX-License-Identifier: Apache-2.0
"""The region loss against the same written as loops, and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bitwright.base.errors import DataError, ModelError
from bitwright.data.detection_boxes import ANCHORS, decode, iou
from bitwright.data.labels import UNKNOWN
from bitwright.tasks import region_loss
from bitwright.tasks.region_loss import RegionLoss, complete_iou

H, W = 4, 6


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


def by_loops(output: np.ndarray, truth: list[np.ndarray], variant: str) -> float:
    """One cell after another, with nothing shared but the overlap of two boxes."""
    coordinate, obj, empty, off, wrong = [], [], [], [], 0.0
    for image, boxes in zip(output, truth, strict=True):
        owner = {}
        for box in boxes:
            gx, gy = (box[0] + box[2]) / 2 * W, (box[1] + box[3]) / 2 * H
            gw, gh = (box[2] - box[0]) * W, (box[3] - box[1]) * H
            sizes = [
                min(gw, a) * min(gh, b) / (gw * gh + a * b - min(gw, a) * min(gh, b))
                for a, b in ANCHORS
            ]
            owner[int(np.argmax(sizes)), int(gy), int(gx)] = (gx, gy, gw, gh, box)
        for a in range(2):
            for y in range(H):
                for x in range(W):
                    t = image[5 * a : 5 * a + 5, y, x]
                    cx, cy = (sigmoid(t[0]) + x) / W, (sigmoid(t[1]) + y) / H
                    w, h = math.exp(t[2]) * ANCHORS[a][0] / W, math.exp(t[3]) * ANCHORS[a][1] / H
                    mine = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                    conf = sigmoid(t[4])
                    if (a, y, x) in owner:
                        gx, gy, gw, gh, box = owner[a, y, x]
                        error = (sigmoid(t[0]) - (gx - x)) ** 2 + (sigmoid(t[1]) - (gy - y)) ** 2
                        error += (t[2] - math.log(gw / ANCHORS[a][0])) ** 2
                        error += (t[3] - math.log(gh / ANCHORS[a][1])) ** 2
                        share = gw * gh / (W * H)
                        coordinate.append(error * (1 if variant == "summed" else 2 - share))
                        off.append(1 - complete(cx * W, cy * H, w * W, h * H, gx, gy, gw, gh))
                        obj.append((conf - (iou(mine, box) if variant == "summed" else 1)) ** 2)
                        wrong -= math.log(conf)
                    elif max((float(iou(mine, box)) for box in boxes), default=0) <= 0.6:
                        empty.append(conf**2)
                        wrong -= math.log(1 - conf)
    if variant == "counted":
        return float(np.mean(coordinate) + np.mean(off) + wrong / len(obj))
    if variant == "summed":
        return float(sum(coordinate) + 5 * sum(obj) + sum(empty)) / 2
    found = np.mean(coordinate or 0) + 5 * np.mean(obj or 0) + np.mean(empty)
    return float(found + (np.mean(off or 0) if variant == "overlap" else 0))


def complete(*sides: float) -> float:
    """CIoU as its paper prints it, of two boxes by centre, width and height."""
    x, y, w, h, gx, gy, gw, gh = sides
    mine = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    true = [gx - gw / 2, gy - gh / 2, gx + gw / 2, gy + gh / 2]
    overlap = float(iou(np.array(mine), np.array(true)))
    across = max(mine[2], true[2]) - min(mine[0], true[0])
    down = max(mine[3], true[3]) - min(mine[1], true[1])
    far = ((x - gx) ** 2 + (y - gy) ** 2) / (across**2 + down**2)
    v = 4 / math.pi**2 * (math.atan(gw / gh) - math.atan(w / h)) ** 2
    return overlap - far - (v * v / (1 - overlap + v) if v else 0)


def boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    low = rng.uniform(0, 0.6, (count, 2))
    return np.concatenate([low, low + rng.uniform(0.05, 0.4, (count, 2))], axis=1)


@pytest.mark.parametrize("variant", ["summed", "averaged", "overlap", "counted"])
@pytest.mark.parametrize("seed", range(6))
def test_the_loss_is_the_printed_one(variant: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    output = rng.normal(0, 0.7, (3, 10, H, W))
    truth = [boxes(rng, count) for count in (0, 1, 3)]
    loss = RegionLoss(variant=variant)
    found = loss(torch.from_numpy(output), [torch.from_numpy(t) for t in truth])
    assert found.item() == pytest.approx(by_loops(output, truth, variant), rel=1e-10)


def test_the_overlap_itself_is_trained() -> None:
    """It is 1 of equal boxes alone, and boxes apart are drawn together."""
    box = torch.tensor([2.0, 2.0, 1.0, 1.5])
    assert complete_iou(box, box).item() == pytest.approx(1)
    far = torch.tensor([4.0, 3.0, 1.0, 1.5], requires_grad=True)
    value = complete_iou(far, box)
    assert value.item() < 0
    value.backward()
    assert far.grad is not None
    assert (far.grad[:2] < 0).all()  # nearer is better


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reach", [1.0, 3.0])
def test_ranked_confidences_learn_how_good_their_boxes_are(seed: int, reach: float) -> None:
    """One box an image, cell after cell."""
    rng = np.random.default_rng(seed)
    output = rng.normal(0, 0.7, (2, 10, H, W))
    truth = [boxes(rng, 1) for _ in range(2)]
    terms: dict[str, list[float]] = {"box": [], "good": [], "empty": []}
    for image, (box,) in zip(output, truth, strict=True):
        gx, gy = (box[0] + box[2]) / 2 * W, (box[1] + box[3]) / 2 * H
        gw, gh = (box[2] - box[0]) * W, (box[3] - box[1]) * H
        mins = [min(gw, a) * min(gh, b) for a, b in ANCHORS]
        sizes = [m / (gw * gh + a * b - m) for m, (a, b) in zip(mins, ANCHORS, strict=True)]
        for a, (aw, ah) in enumerate(ANCHORS):
            for y in range(H):
                for x in range(W):
                    t = image[5 * a : 5 * a + 5, y, x]
                    cx = x + 0.5 + reach * (sigmoid(t[0]) - 0.5)
                    cy = y + 0.5 + reach * (sigmoid(t[1]) - 0.5)
                    w, h, conf = math.exp(t[2]) * aw, math.exp(t[3]) * ah, sigmoid(t[4])
                    grid = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
                    good = float(iou(np.array(grid) / (W, H, W, H), box))
                    far = max(abs(x + 0.5 - gx), abs(y + 0.5 - gy)) <= reach / 2
                    near = abs(x + 0.5 - gx) < gw / 2 and abs(y + 0.5 - gy) < gh / 2
                    own = (int(gx), int(gy)) == (x, y)
                    mine = a == int(np.argmax(sizes)) and (own or (reach > 1 and far and near))
                    if mine:
                        error = (cx - gx) ** 2 + (cy - gy) ** 2
                        error += (t[2] - math.log(gw / aw)) ** 2 + (t[3] - math.log(gh / ah)) ** 2
                        off = 1 - complete(cx, cy, w, h, gx, gy, gw, gh)
                        terms["box"].append(error * (2 - gw * gh / (W * H)) + off)
                    if mine or good > 0.3:
                        terms["good"].append((conf - good) ** 2)
                    else:
                        terms["empty"].append(conf**2)
    means = {key: np.mean(values or 0) for key, values in terms.items()}
    loss = RegionLoss(variant="ranked", reach=reach)
    found = loss(torch.from_numpy(output), [torch.from_numpy(t) for t in truth])
    expected = means["box"] + 5 * means["good"] + means["empty"]
    assert found.item() == pytest.approx(expected, rel=1e-10)


def test_of_two_true_boxes_the_nearer_one_has_the_neighbour() -> None:
    """Each keeps the cell of its own centre, however near the other is."""
    anchors = ((2.0, 2.0),)
    output = torch.zeros(1, 5, H, W, dtype=torch.float64, requires_grad=True)
    centres = torch.tensor([[1.5, 1.5], [3.4, 1.5]], dtype=torch.float64)
    corners = torch.cat([centres - 1, centres + 1], dim=1) / torch.tensor([W, H, W, H])
    RegionLoss(anchors, "overlap", reach=3)(output, [corners]).backward()
    pull = output.grad[0, 0, 1]  # of x: below zero is to the right
    assert pull[1] == pytest.approx(0, abs=1e-12)
    assert pull[2] < 0  # 0.9 from the second, 1 from the first
    assert pull[3] > 0 and pull[4] == 0  # the fifth's middle lies outside of the box


def test_boxes_that_overlap_enough_are_left_alone() -> None:
    """A prediction beside the assigned cell that fits the true box keeps its confidence."""
    truth = torch.tensor([[0.175, 0.30, 0.675, 0.80]], dtype=torch.float64)
    cx, cy, w, h = 0.425 * W, 0.55 * H, 0.5 * W, 0.5 * H
    output = torch.zeros(1, 10, H, W, dtype=torch.float64)
    neighbour = output[0, :5, int(cy), int(cx) - 1]
    neighbour[:4] = torch.tensor(
        [5.0, -1.4, math.log(w / ANCHORS[0][0]), math.log(h / ANCHORS[0][1])]
    )
    output.requires_grad_(True)
    RegionLoss()(output, [truth]).backward()
    assert output.grad[0, 4, int(cy), int(cx) - 1] == 0
    assert output.grad[0, 4, int(cy), int(cx) - 2] > 0


@pytest.mark.parametrize(
    ("variant", "reach"),
    [("summed", 1), ("averaged", 1), ("ranked", 1), ("ranked", 3), ("counted", 1), ("counted", 2)],
)
def test_descent_finds_the_box(variant: str, reach: float) -> None:
    torch.manual_seed(0)
    truth = torch.tensor([[0.2, 0.35, 0.45, 0.7]])
    output = torch.zeros(1, 10, H, W, requires_grad=True)
    optimizer = torch.optim.Adam([output], 0.1)
    loss = RegionLoss(variant=variant, reach=reach)
    for _ in range(300):
        optimizer.zero_grad()
        loss(output, [truth]).backward()
        optimizer.step()
    found = decode(output.detach().numpy(), reach=reach)
    assert iou(found.boxes, truth.numpy())[0] > 0.95
    assert found.confidence[0] > 0.9


def test_boxes_without_number_are_compared_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.rand((3, 40, 2), generator=generator) * 0.6
    high = low + 0.05 + torch.rand((3, 40, 2), generator=generator) * 0.3
    labels = torch.cat([torch.zeros(3, 40, 1), low, high], dim=2)
    labels[1, 7:, 0] = UNKNOWN
    found = []
    for pairs in (1 << 22, 1):
        monkeypatch.setattr(region_loss, "_PAIRS", pairs)
        output = torch.randn((3, 10, H, W), generator=torch.Generator().manual_seed(1))
        output.requires_grad_()
        loss = RegionLoss(variant="ranked")(output, labels)
        loss.backward()
        found.append((loss, output.grad))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_mistakes_are_explained() -> None:
    loss = RegionLoss()
    output = torch.zeros(1, 10, H, W)
    with pytest.raises(ModelError, match="unknown variant 'mean'"):
        RegionLoss(variant="mean")
    with pytest.raises(DataError, match=r"expected \(N, 10, H, W\)"):
        loss(torch.zeros(1, 12, H, W), [torch.zeros(0, 4)])
    with pytest.raises(DataError, match="1 images, but true boxes of 2"):
        loss(output, [torch.zeros(0, 4)] * 2)
    with pytest.raises(DataError, match=r"found \(4,\)"):
        loss(output, [torch.zeros(4)])
    for box in ([0.5, 0.5, 0.5, 0.6], [0.9, 0.1, 1.3, 0.2], [10, 10, 30, 30]):
        with pytest.raises(DataError, match="image 0: a true box is empty or has its centre"):
            loss(output, [torch.tensor([box])])
