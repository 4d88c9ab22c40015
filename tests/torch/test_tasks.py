# SPDX-License-Identifier: Apache-2.0
"""Tasks: metrics against plain formulas, losses, and training of each from end to end."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.base.trust import importable
from bitwright.data import DataSplits, load_dataset
from bitwright.data.labels import MapLabels
from bitwright.models import build_model
from bitwright.tasks import CLASSIFICATION, LossSettings, SoftSettings, Task, TaskSpec, make_task
from bitwright.tasks import metric as metric_module
from bitwright.tasks.catalog import TASKS, labels_of
from bitwright.tasks.classification import ACCURACY, TOP5
from bitwright.tasks.dense_map import MEAN_IOU, PIXELS
from bitwright.tasks.regression import determination
from bitwright.train import TrainConfig, evaluate, fit, read_metrics
from bitwright.train.records import EpochMetrics
from bitwright.train.teachers import Ensemble, check_teacher

ONE_EPOCH = TrainConfig(epochs=1, batch_size=16, lr=0.01, threads=1)
NETWORKS = {
    "detection": ("box_cnn", {"widths": (4, 4, 8)}),
    "dense_map": ("unet", {"widths": (4, 4)}),
    "regression": ("mnist_cnn", {"widths": (4, 4, 4)}),
    "embedding": ("mnist_cnn", {"widths": (4, 4, 4)}),
}


def data_for(task: Task, train: int = 48) -> DataSplits:
    keep = {"train": train, "validation": 24, "test": 24}
    return load_dataset({"name": "shapes", "keep": keep}, labels=task.labels)


def network_for(task: Task, splits: DataSplits) -> nn.Module:
    name, options = NETWORKS[task.name]
    output = task.output(splits)
    classes = output.size if len(output.shape) == 1 else splits.num_classes
    spec = {"name": name, "options": options}
    return build_model(spec, classes, splits.image_shape, output=output)


def test_the_catalog_says_of_each_task_what_the_task_says() -> None:
    for info in TASKS:
        task = make_task(info.name)
        assert (task.name, task.labels) == (info.name, labels_of(TaskSpec(name=info.name)))
    spec = TaskSpec(name="dense_map", options={"stride": 2})
    assert make_task(spec).labels == labels_of(spec) == MapLabels(2)


def test_accuracy_is_a_share_with_the_error_of_one() -> None:
    scores = torch.eye(4)[torch.arange(80) % 4]
    labels = (torch.arange(80) % 4).clone()
    labels[:4] = (labels[:4] + 1) % 4
    found = ACCURACY.measure(scores, labels)
    figure = found.figure()
    assert (figure.value, figure.count) == (0.95, 80)
    assert figure.error == pytest.approx(0.0248, abs=1e-4)
    assert found.known.dtype == bool and found.known.sum() == 76
    assert TOP5.measure(scores, labels).count == 0  # four classes: among five is no news
    assert len(CLASSIFICATION.measure(scores, labels)) == 1


def test_mean_overlap_is_that_of_all_pixels_with_the_error_of_the_jackknife(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.rand((12, 3, 5, 4), generator=generator)
    labels = torch.randint(-1, 3, (12, 5, 4), generator=generator)

    def naive(keep: list[int]) -> float:
        truth, guess = labels[keep].flatten(), outputs[keep].argmax(1).flatten()
        truth, guess = truth[truth >= 0], guess[truth >= 0]
        shares = []
        for number in range(3):
            both = ((truth == number) & (guess == number)).sum()
            either = ((truth == number) | (guess == number)).sum()
            shares.append(float(both / either))
        return float(np.mean(shares))

    every = list(range(12))
    without = np.array([naive([i for i in every if i != left]) for left in every])
    error = np.sqrt(11 / 12 * ((without - without.mean()) ** 2).sum())
    found, whole = MEAN_IOU.measure(outputs, labels), MEAN_IOU.sums(outputs, labels)
    assert found.value == pytest.approx(naive(every))
    assert found.summary.error == pytest.approx(error, rel=1e-3)
    with monkeypatch.context() as patched:
        patched.setattr(metric_module, "_MOST_BYTES", 100)  # of two images at a time
        few = MEAN_IOU.measure(outputs, labels)
        assert np.array_equal(few.each, found.each) and few.value == found.value
        assert torch.equal(MEAN_IOU.sums(outputs, labels), whole)
    in_parts = MEAN_IOU.sums(outputs[:5], labels[:5]) + MEAN_IOU.sums(outputs[5:], labels[5:])
    assert MEAN_IOU.value_of(in_parts) == pytest.approx(found.value)
    known = labels >= 0
    right = ((outputs.argmax(1) == labels) & known).flatten(1).sum(1) / known.flatten(1).sum(1)
    assert PIXELS.measure(outputs, labels).value == pytest.approx(float(right.mean()))


def test_determination_is_one_minus_the_unexplained_variance() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(40, 2)).astype(np.float32)
    guess = truth + generator.normal(scale=0.3, size=(40, 2)).astype(np.float32)
    task = make_task("regression")
    error, explained = task.measure(torch.from_numpy(guess), torch.from_numpy(truth))
    spread = ((truth - truth.mean(0)) ** 2).sum(0)
    assert explained.value == pytest.approx((1 - ((truth - guess) ** 2).sum(0) / spread).mean())
    assert error.value == pytest.approx(np.abs(truth - guess).mean(), rel=1e-6)
    assert not error.metric.larger_is_better and error.goodness == -error.value
    assert determination(np.array([0.0, 3.0, 9.0, 1.0])) == 0  # one image has no spread


def test_the_nearest_neighbour_is_another_image() -> None:
    task = make_task("embedding")
    vectors = torch.tensor([[1, 0.1], [1, 0], [0, 1], [0.1, 1.0], [1, 0.4]])
    labels = torch.tensor([0, 0, 1, 0, 2])
    (found,) = task.measure(vectors, labels)
    assert np.array_equal(found.each, [1, 1, np.nan, 0, np.nan], equal_nan=True)
    assert found.count == 3


def test_vectors_of_a_class_that_lie_together_cost_least() -> None:
    task = make_task("embedding")
    together = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    apart = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
    labels = torch.tensor([0, 0, 1, 1])
    low, high = (float(task.loss(v, labels, LossSettings())) for v in (together, apart))
    assert low == pytest.approx(float(torch.tensor(1 + 2 * np.exp(-10)).log()), rel=1e-3)
    assert high > 5
    alone = task.loss(together, torch.arange(4), LossSettings())
    assert float(alone) == 0  # nobody has a partner


def test_a_box_is_found_where_it_is() -> None:
    task = make_task(TaskSpec(name="detection", options={"anchors": [[1, 1], [2, 2]]}))
    outputs = torch.zeros((2, 10, 4, 4))
    outputs[:, 4::5] = -5
    outputs[0, 9, 1, 2] = 5  # the second anchor's confidence: centre (2.5, 1.5), 2 x 2 cells
    outputs[1, 4, 3, 0] = 5
    truth = torch.tensor(
        [
            [[0, 1.5 / 4, 0.5 / 4, 3.5 / 4, 2.5 / 4], [-1, 0, 0, 0, 0]],
            [[0, 0, 0.5, 0.5, 1], [2, 0, 0, 0.1, 0.1]],
        ]
    )
    overlap, found, covered = task.measure(outputs, truth)
    assert overlap.each.tolist() == pytest.approx([1, 0.25])
    assert found.each.tolist() == [1, 0]
    assert covered.each.tolist() == pytest.approx([1, 0.25])
    assert torch.allclose(task.answer(outputs)[0, 0, 1:], truth[0, 0, 1:])
    data = data_for(task).test
    assert task.say(truth[1].numpy(), data) == "box 0, 16, 16, 32; box 0, 0, 3, 3"
    assert task.say(truth[:0].numpy(), data) == "no box"


def test_nothing_to_find_is_no_value() -> None:
    task = make_task("detection")
    nothing = torch.full((1, 1, 5), -1.0)
    assert torch.isnan(task.metric.statistics(torch.zeros((1, 10, 2, 2)), nothing)).all()
    with pytest.raises(ModelError, match="no image has a value"):
        task.measure(torch.zeros((1, 10, 2, 2)), nothing)


def test_soft_losses_compare_scores_by_pixel_and_reals_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    mine, theirs = torch.rand((2, 2, 3, 4, 4), generator=generator)
    how = SoftSettings(2.0, "kl", "batchmean")
    rows = [x.permute(0, 2, 3, 1).reshape(-1, 3) for x in (mine, theirs)]
    dense = make_task("dense_map").soft_loss(mine, theirs, how)
    assert torch.equal(dense, CLASSIFICATION.soft_loss(*rows, how))
    real = make_task("regression").soft_loss(mine.flatten(1), theirs.flatten(1), how)
    assert float(real) == pytest.approx(
        float((mine - theirs).square().mean() / theirs.square().mean())
    )


def test_several_teachers_of_real_values_give_their_mean() -> None:
    members = [nn.Linear(3, 2), nn.Linear(3, 2)]
    x = torch.rand((4, 3))
    together = Ensemble(members, 4.0, make_task("regression"))(x)
    assert torch.allclose(together, (members[0](x) + members[1](x)) / 2)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("detection", {"label_smoothing": 0.1}, "for scores of classes, and detection has none"),
        ("detection", {"loss": "mae"}, "for scores of classes"),
        ("regression", {"augmentation": {"flip": True, "shift": 2}}, "shift, flip would move"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    tmp_path: Path, name: str, settings: dict[str, object], reason: str
) -> None:
    task = make_task(name)
    splits = data_for(task)
    config = TrainConfig.model_validate({"epochs": 1, **settings})
    with pytest.raises(RecipeError, match=reason):
        fit(network_for(task, splits), splits, config, run_dir=tmp_path, task=task)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_data_with_other_labels_is_refused(tmp_path: Path) -> None:
    digits = load_dataset({"name": "digits", "keep": {"train": 50}})
    model = build_model("digits_cnn", 10, digits.image_shape)
    for task in map(make_task, ("detection", "dense_map", "regression")):
        with pytest.raises(DataError, match=f"{task.labels.name} are wanted"):
            fit(model, digits, ONE_EPOCH, run_dir=tmp_path, task=task)
        with pytest.raises(DataError, match=f"{task.labels.name} are wanted"):
            evaluate(model, digits.test, task=task)


@pytest.mark.parametrize("name", ["detection", "dense_map", "regression", "embedding"])
def test_a_network_of_another_output_is_refused_in_words(name: str) -> None:
    task = make_task(name)
    splits = data_for(task)
    output = task.output(splits)
    with pytest.raises(ModelError, match=output.what) as caught:
        build_model("digits_cnn", 7, splits.image_shape, output=output)
    assert caught.value.hint == output.hint
    with pytest.raises(ModelError, match="but shapes has"):
        check_teacher(build_model("digits_cnn", 7, splits.image_shape), splits, task=task)


@pytest.mark.parametrize("name", NETWORKS)
def test_each_task_trains_resumes_and_is_measured(name: str, tmp_path: Path) -> None:
    task = make_task(name)
    splits = data_for(task)
    model = network_for(task, splits)
    first = copy.deepcopy(model)
    two = ONE_EPOCH.model_copy(update={"epochs": 2})
    whole = fit(model, splits, two, run_dir=tmp_path / "whole", task=task)
    stopped = []

    def stop(state: object) -> None:
        if getattr(state, "last", None) is not None:
            stopped.append(state)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(first, splits, two, run_dir=tmp_path / "parts", task=task, on_progress=stop)
    again = fit(first, splits, two, run_dir=tmp_path / "parts", task=task)
    assert again.resumed_from == 1
    for mine, theirs in zip(model.parameters(), first.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    better = max if task.metric.larger_is_better else min
    assert whole.validation_metric == better(e.validation_metric for e in whole.history)
    measured = evaluate(model, splits.validation, task=task)
    assert measured.first.value == pytest.approx(whole.validation_metric)
    assert len(measured.measured) == len(task.metrics)
    (row, _) = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert row == whole.history[0] and row.metric == task.metric.key
    shown = task.show(
        splits.test.images[0], splits.test.labels[0], measured.outputs[:1], splits.test
    )
    assert shown.label and shown.prediction and shown.picture.dtype == np.uint8
    assert task.name not in {"detection", "dense_map"} or shown.picture.ndim == 3


def test_a_checkpoint_of_another_task_is_refused(tmp_path: Path) -> None:
    splits = load_dataset({"name": "digits", "keep": {"train": 50}})
    model = build_model("digits_cnn", 10, splits.image_shape)
    fit(model, splits, ONE_EPOCH, run_dir=tmp_path)
    with pytest.raises(Exception, match="was written for the task 'classification"):
        fit(model, splits, ONE_EPOCH, run_dir=tmp_path, task=make_task("embedding"))


def test_records_bear_the_name_of_the_metric_and_older_ones_are_read() -> None:
    entry = EpochMetrics(1, 0.1, 2.0, 0.5, 2.1, 0.4, 3.0, metric="mean_IoU", others={"pixel": 0.7})
    record = entry.to_record()
    assert record["train_mean_IoU"] == 0.5 and record["validation_pixel"] == 0.7
    assert EpochMetrics.from_record(record) == entry
    old = {
        "epoch": 1, "lr": 0.1, "train_loss": 2.0, "train_accuracy": 0.5, "validation_loss": 2.1,
        "validation_accuracy": 0.4, "seconds": 3.0, "validation_top5": None, "precision": None,
    }  # fmt: skip
    read = EpochMetrics.from_record(old)
    assert (read.metric, read.validation_metric, read.validation_top5) == ("accuracy", 0.4, None)
    assert set(read.to_record()) == set(old) - {"validation_top5"}


OWN = """
import torch
from bitwright.data.labels import ValueLabels
from bitwright.models.output import Output
from bitwright.tasks import Metric, Task


class Counting(Task):
    name = "counting"
    labels = ValueLabels()
    learns_from_teachers = False
    metrics = (Metric("exact", lambda o, y: (o.round() == y).all(dim=1)),)

    def __init__(self, most: int = 9) -> None:
        self.most = most

    def output(self, data):
        return Output((data.num_classes,), "counts", "one output a count")

    def loss(self, outputs, labels, how):
        return (outputs - labels).abs().mean()

    def answer(self, outputs):
        return outputs.round()

    def say(self, label, data):
        return f"{label[0]:.0f} things"


def close(outputs, labels):
    return ((outputs - labels).abs() < 0.2).all(dim=1)


close.unit = "share"


def broken(outputs, labels):
    return outputs


def not_a_task():
    return 3
"""


def test_a_task_and_metrics_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "my_tasks.py").write_text(OWN)
    with importable(tmp_path):
        task = make_task(TaskSpec(name="my_tasks:Counting", options={"most": 3}))
        chosen = make_task(TaskSpec(name="regression", metric="my_tasks:close"))
        wrong = make_task(TaskSpec(name="regression", metric=("my_tasks:broken",)))
        with pytest.raises(ModelError, match=r"gives a int, not a bitwright\.tasks\.Task"):
            make_task("my_tasks:not_a_task")
        with pytest.raises(RecipeError, match="unexpected keyword argument 'least'"):
            make_task(TaskSpec(name="my_tasks:Counting", options={"least": 3}))
    splits = data_for(task)
    model = network_for(chosen, splits)
    result = fit(model, splits, ONE_EPOCH, run_dir=tmp_path / "a", task=task)
    assert result.history[0].metric == "exact"
    with pytest.raises(RecipeError, match="say nothing for counting"):
        learned = TrainConfig.model_validate({"epochs": 1, "distillation": {}})
        fit(model, splits, learned, run_dir=tmp_path / "b", task=task, teacher=model)
    assert [m.name for m in chosen.metrics] == ["close", "mean absolute error", "R2"]
    fitted = fit(model, splits, ONE_EPOCH, run_dir=tmp_path / "c", task=chosen)
    assert fitted.history[0].metric == "close"
    assert set(fitted.history[0].others) == {"mean_absolute_error", "R2"}
    with pytest.raises(ModelError, match=r"gives \(24, 3\) for 24 images"):
        evaluate(model, splits.test, task=wrong)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (TaskSpec(name="segmentation"), "unknown task 'segmentation'"),
        (TaskSpec(name="detection", options={"anchors": [[1, -1]]}), "anchors are"),
        (TaskSpec(name="detection", options={"anchors": 0}), "anchors are 0"),
        (TaskSpec(name="detection", options={"objects": "two"}), "unknown objects 'two'"),
        (TaskSpec(name="detection", options={"confidence": 2}), "confidence is 2"),
        (TaskSpec(name="detection", options={"merge": 1}), "merge is 1"),
        (TaskSpec(name="detection", options={"reach": 0.5}), "reach is 0.5"),
        (TaskSpec(name="detection", options={"reach": "far"}), "reach is 'far'"),
        (
            TaskSpec(name="detection", options={"ankers": []}),
            "unexpected keyword argument 'ankers'",
        ),
        (TaskSpec(name="dense_map", options={"stride": 0}), "stride is 0"),
        (TaskSpec(name="regression", options={"loss": "ce"}), "unknown loss 'ce'"),
        (TaskSpec(name="embedding", options={"size": 1}), "size is 1"),
        (TaskSpec(metric=("nonsense",)), "not of the form package.module:name"),
    ],
)
def test_wrong_tasks_are_refused_in_words(spec: TaskSpec, reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        make_task(spec)


def test_the_best_weights_are_those_of_the_smallest_error(tmp_path: Path) -> None:
    """Of a metric of which less is better the largest value must not win."""
    task = make_task("regression")
    splits = data_for(task)
    config = ONE_EPOCH.model_copy(update={"epochs": 4, "lr": 0.05, "schedule": "constant"})
    result = fit(network_for(task, splits), splits, config, run_dir=tmp_path, task=task)
    values = [entry.validation_metric for entry in result.history]
    assert result.kept_epoch == 1 + int(np.argmin(values))


def test_images_whose_values_are_not_known_learn_from_the_teacher_alone(tmp_path: Path) -> None:
    task = make_task("regression")
    splits = data_for(task)
    labels = splits.train.labels.copy()
    labels[::2] = np.nan
    some = replace(splits, train=replace(splits.train, labels=labels))
    teacher, student = network_for(task, splits), network_for(task, splits)
    with pytest.raises(RecipeError, match="24 training images have no label"):
        fit(student, some, ONE_EPOCH, run_dir=tmp_path / "a", task=task)
    taught = TrainConfig.model_validate({"epochs": 1, "distillation": {"alpha": 1}})
    result = fit(student, some, taught, run_dir=tmp_path / "b", teacher=teacher, task=task)
    assert np.isfinite(result.history[0].train_metric)
