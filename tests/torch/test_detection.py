# SPDX-License-Identifier: Apache-2.0
"""Detectors of several things with classes: outputs, metrics, anchors, learning."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.data import DataSplits, load_dataset
from bitwright.models import build_model
from bitwright.tasks import Metric, SoftSettings, Task, TaskSpec, make_task
from bitwright.tasks.region_loss import RegionLoss
from bitwright.train import TrainConfig, evaluate, fit

ANCHORS = [[1, 1], [2, 2]]
MANY = {"anchors": ANCHORS, "objects": "several", "classes": True}


def detector(**options: object) -> Task:
    return make_task(TaskSpec(name="detection", options=options))


def shapes(task: Task, train: int = 64) -> DataSplits:
    keep = {"train": train, "validation": 24, "test": 24}
    return load_dataset({"name": "shapes", "keep": keep}, labels=task.labels)


def network(task: Task, splits: DataSplits) -> nn.Module:
    spec = {"name": "box_cnn", "options": {"widths": (8, 8, 16)}}
    return build_model(spec, None, splits.image_shape, output=task.output(splits))


def output_with(*things: tuple[int, int, int, int, float]) -> Tensor:
    """One image's output, 4 x 4 cells, three classes: (anchor, row, column, class, raw score)."""
    raw = torch.zeros((1, 16, 4, 4))
    raw[:, 4::8] = -9
    for anchor, row, column, kind, score in things:
        raw[0, 8 * anchor + 4, row, column] = score
        raw[0, 8 * anchor + 5 + kind, row, column] = 20
    return raw


def test_several_things_are_found_by_class() -> None:
    splits = shapes(detector())
    task = detector(**MANY).fitted(splits)
    assert task.output(splits).size == 16
    outputs = output_with((1, 1, 2, 2, 4.0), (0, 3, 0, 0, 2.0), (0, 0, 0, 1, -1.5))
    first = [2, 1.5 / 4, 0.5 / 4, 3.5 / 4, 2.5 / 4]
    second = [0, 0, 3 / 4, 1 / 4, 1]
    answer = task.answer(outputs)[0]
    assert answer.tolist() == [pytest.approx(first), pytest.approx(second)]  # the third is unsure
    assert task.say(answer.numpy(), splits.test) == "cross box 12, 4, 28, 20; disc box 0, 24, 8, 32"
    missed = [1, 0.6, 0.0, 0.9, 0.1]
    nothing = [-1, 0, 0, 0, 0]
    truth = torch.tensor([[first, second, missed], [first, nothing, nothing]])
    both = torch.cat([outputs, output_with((1, 1, 2, 1, 4.0))])  # there, but of another class
    precision, overlap, false = task.measure(both, truth)
    assert overlap.each.tolist() == pytest.approx([2 / 3, 0])
    assert false.each.tolist() == [0, 1]
    # discs 1; squares 0; crosses: one of two found, by the first box of their class.
    assert precision.value == pytest.approx((1 + 0 + 0.5) / 3)


def test_a_page_tells_and_draws_some_boxes_of_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = shapes(detector())
    task = detector(**MANY).fitted(splits)
    label = np.tile(np.array([[2, 0.25, 0.25, 0.5, 0.5]], np.float32), (3000, 1))
    label[5:10, 0] = -1
    said = task.say(label, splits.test)
    assert said.count("cross box") == 100 and said.endswith("; 2895 more")
    drawn: list[int] = []
    monkeypatch.setattr(
        "bitwright.tasks.detection.with_boxes",
        lambda picture, boxes: drawn.append(len(boxes)) or picture,
    )
    task.show(splits.test.images[0], label, output_with((1, 1, 2, 2, 4.0)), splits.test)
    assert drawn == [1001]


def test_boxes_reach_merge_and_end_at_the_image() -> None:
    """Two cells see the same thing, one a little off; what is found is their mean."""
    outputs = output_with((1, 1, 1, 0, 4.0), (1, 1, 0, 0, 2.0))[
        :, [0, 1, 2, 3, 4, 8, 9, 10, 11, 12]
    ]
    raw = outputs.view(1, 2, 5, 4, 4)
    raw[0, 1, 0, 1, 0] = 2.0  # its centre lies in the other's cell
    reach, x = 3, 0.5 + 3 * (1 / (1 + np.exp(-2.0)) - 0.5)
    truth = torch.tensor([[[0, 0.125, 0.125, 0.625, 0.625]]])
    (alone, *_) = detector(anchors=ANCHORS, reach=reach).measure(outputs, truth)
    assert alone.value == pytest.approx(1)
    task = detector(anchors=ANCHORS, reach=reach, merge=0.7)
    scores = 1 / (1 + np.exp([-4.0, -2.0]))
    centre = np.average([1.5, x], weights=scores) / 4
    found = task.answer(outputs)[0, 0].tolist()
    assert found == pytest.approx([0, centre - 0.25, 0.125, centre + 0.25, 0.625])
    assert detector(anchors=ANCHORS, merge=0.7).answer(outputs)[0, 0, 1] == pytest.approx(0.125)
    assert {"reach", "merge"} < set(task.facts())
    raw[0, 1, 4] = -9
    raw[0, 1, 4, 0, 0] = 4
    assert task.answer(outputs)[0, 0, 1:3].tolist() == [0, 0]


def test_of_one_thing_with_classes_the_class_must_be_right() -> None:
    splits = shapes(detector())
    task = detector(anchors=ANCHORS, classes=True).fitted(splits)
    box = [1.5 / 4, 0.5 / 4, 3.5 / 4, 2.5 / 4]
    truth = torch.tensor([[[2, *box]], [[1, *box]]])
    outputs = output_with((1, 1, 2, 2, 4.0)).repeat(2, 1, 1, 1)
    overlap, *_ = task.measure(outputs, truth)
    assert overlap.each.tolist() == pytest.approx([1, 0])
    blind = detector(anchors=ANCHORS)
    overlap, *_ = blind.measure(outputs.view(2, 2, 8, 4, 4)[:, :, :5].reshape(2, 10, 4, 4), truth)
    assert overlap.each.tolist() == pytest.approx([1, 1])


def test_the_class_is_learned_where_the_box_is() -> None:
    box = torch.tensor([[[2, 0.4, 0.4, 0.6, 0.6]]])
    outputs = torch.randn((1, 16, 4, 4), generator=torch.Generator().manual_seed(0))
    outputs.requires_grad_()
    loss = RegionLoss(((1.0, 1.0), (2.0, 2.0)), classes=3)
    plain = RegionLoss(((1.0, 1.0), (2.0, 2.0)))
    scores = outputs.view(1, 2, 8, 4, 4)
    without = plain(scores[:, :, :5].reshape(1, 10, 4, 4), box)
    found = loss(outputs, box)
    expected = nn.functional.cross_entropy(scores[0, :1, 5:, 2, 2], torch.tensor([2]))
    assert (found - without).item() == pytest.approx(expected.item(), rel=1e-5)
    found.backward()
    moved = outputs.grad.view(1, 2, 8, 4, 4)[:, :, 5:].abs().sum(dim=2)
    assert moved[0, 0, 2, 2] > 0 and int((moved > 0).sum()) == 1
    with pytest.raises(DataError, match="has the class 2, of 2"):
        RegionLoss(((1.0, 1.0),), classes=2)(torch.zeros((1, 7, 4, 4)), box)


def test_a_teacher_is_followed_where_it_is_sure() -> None:
    task = detector(anchors=ANCHORS)
    taught = torch.zeros((2, 10, 4, 4))
    taught[:, 4::5] = -8
    taught[:, 4, 1, 1] = 5
    how = SoftSettings()

    def loss(change: dict[tuple[int, int, int], float]) -> float:
        own = taught.clone()
        for at, value in change.items():
            own[(slice(None), *at)] += value
        return float(task.soft_loss(own, taught, how))

    assert loss({}) == 0
    assert loss({(2, 1, 1): 1.0}) > 20 * loss({(2, 3, 3): 1.0}) > 0  # the width of a box
    assert loss({(4, 1, 1): -5.0}) > loss({(4, 3, 3): 1.0})


def test_anchors_are_taken_from_the_training_boxes() -> None:
    task = detector(anchors=3)
    splits = shapes(task)
    with pytest.raises(RecipeError, match=r"has not seen[\s\S]*task.fitted"):
        task.answer(torch.zeros((1, 15, 4, 4)))
    assert task.facts() == {}
    fitted = task.fitted(splits)
    rows = splits.train.labels[:, 0]
    sizes = rows[:, 3:5] - rows[:, 1:3]
    pairs = np.array(fitted.anchors_of((4, 8))) / (8, 4)
    assert (np.diff(pairs.prod(axis=1)) > 0).all()
    assert (pairs >= sizes.min(axis=0)).all() and (pairs <= sizes.max(axis=0)).all()
    assert "x" in fitted.facts()["anchors"]
    output = fitted.output(splits)
    spec = {"name": "skynet", "options": {"num_outputs": 10, "width": 0.1}}
    with pytest.raises(ModelError, match=r"gives \(1, 10, 2, 2\)[\s\S]*for each of 3 anchors"):
        build_model(spec, None, (16, 16, 3), output=output)


def test_what_was_put_in_front_stays_in_front() -> None:
    task = detector(anchors=2)
    task.metrics = (Metric("mine", lambda outputs, labels: outputs[:, 0, 0, 0]), *task.metrics)
    fitted = task.fitted(shapes(task))
    assert [metric.name for metric in fitted.metrics][:2] == ["mine", "IoU"]
    assert fitted.metrics[1].of_each is not task.metrics[1].of_each  # it knows the anchors


@pytest.mark.parametrize("options", [{"anchors": 2}, {**MANY, "anchors": 2}])
def test_a_task_goes_to_other_processes(options: dict[str, object]) -> None:
    """Training on several devices sends it."""
    task = detector(**options)
    splits = shapes(task)
    task = task.fitted(splits)
    again = pickle.loads(pickle.dumps(task))
    labels = torch.from_numpy(splits.test.labels)
    channels = task.output(splits).size
    outputs = torch.randn((24, channels, 4, 4), generator=torch.Generator().manual_seed(0))
    for one, other in zip(
        task.measure(outputs, labels), again.measure(outputs, labels), strict=True
    ):
        assert (one.metric.name, one.value) == (other.metric.name, other.value)


@pytest.mark.long
def test_several_things_are_learned_with_augmentation_that_moves_them(tmp_path: Path) -> None:
    task = detector(anchors=2, objects="several", classes=True)
    splits = shapes(task, train=320)
    task = task.fitted(splits)
    model = network(task, splits)
    config = TrainConfig.model_validate(
        {
            "epochs": 16,
            "batch_size": 16,
            "lr": 0.02,
            "threads": 1,
            "augmentation": {"jitter": 0.1, "flip": True, "distort": {}},
        }
    )
    result = fit(model, splits, config, run_dir=tmp_path, task=task)
    losses = [entry.train_loss for entry in result.history]
    assert losses[-1] < losses[0] / 2
    measured = evaluate(model, splits.test, task=task)
    assert measured.first.metric.name == "AP50" and measured.first.value > 0.5
    assert measured.others["IoU"] > 0.5 and measured.others["false_boxes"] < 1


@pytest.mark.parametrize(
    ("options", "reach"),
    [({}, 1), ({"objects": "several"}, 2), ({"objects": "several", "variant": "averaged"}, 1),
     ({"objects": "several", "variant": "counted"}, 2), ({"objects": "several", "reach": 3}, 3)],
)  # fmt: skip
def test_the_reach_of_an_older_loss_is_one(options: dict[str, object], reach: float) -> None:
    """Recipes that name a loss mean what they meant before several things had one of their own."""
    assert detector(**options).reach == reach
