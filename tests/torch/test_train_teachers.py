# SPDX-License-Identifier: Apache-2.0
"""Learning from teachers: fresh and cached scores, ensembles, layers, and images without labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from bitwright.base.errors import BitwrightError, DataError, ModelError, RecipeError, RunError
from bitwright.data import Dataset, DataSplits
from bitwright.models import build_model
from bitwright.quantize import Policy, apply
from bitwright.train import Augmentation, Distillation, TrainConfig, evaluate, fit, load_checkpoint
from bitwright.train.config import FeaturePair
from bitwright.train.features import FeatureMatching
from bitwright.train.teacher_outputs import (
    OUTPUTS,
    TeacherOutputs,
    read_outputs,
    teacher_outputs,
    write_outputs,
)
from bitwright.train.teachers import Ensemble, soften

SHAPE = (8, 8, 1)


def part(name: str, count: int, first: int) -> Dataset:
    """Images whose class is their brightest column of four."""
    random = np.random.RandomState(first)
    images = random.randint(0, 100, (count, *SHAPE), dtype=np.int64)
    labels = random.randint(0, 4, count)
    for image, label in zip(images, labels, strict=True):
        image[:, 2 * label] += 60
    indices = np.arange(first, first + count)
    return Dataset(name, images.astype(np.uint8), labels, tuple("abcd"), 1 / 255, indices)


@pytest.fixture(scope="module")
def splits() -> DataSplits:
    parts = (
        part(f"bars/{n}", c, s) for n, c, s in (("train", 96, 0), ("v", 32, 96), ("t", 8, 128))
    )
    return DataSplits("bars", *parts, "made up")


def network(width: int = 8, seed: int = 0, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * width, classes),
    )


def config(epochs: int = 2, **learned: object) -> TrainConfig:
    return TrainConfig(
        epochs=epochs, batch_size=32, lr=1e-2, keep="last", distillation=Distillation(**learned)
    )


def same(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.fixture(scope="module")
def teacher(splits: DataSplits, tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    model = network(12, seed=5)
    plain = TrainConfig(epochs=8, batch_size=32, lr=1e-2)
    fit(model, splits, plain, run_dir=tmp_path_factory.mktemp("teacher"))
    assert evaluate(model, splits.validation).accuracy > 0.7
    return model


def test_cached_scores_are_found_by_the_image_whatever_its_place(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    """The lookup is by index: a table in another order of rows serves the same."""
    outputs = teacher_outputs(teacher, splits.train)
    turned = torch.randperm(len(outputs.indices))
    mixed = replace(outputs, scores=outputs.scores[turned], indices=outputs.indices[turned])
    assert torch.equal(mixed.of(splits.train), outputs.scores)
    models = []
    for name, source in (("fresh", teacher), ("cached", teacher), ("cached", mixed)):
        models.append(network())
        folder = tmp_path / f"{name}{len(models)}"
        how = config(outputs=name, alpha=0.8)
        fit(models[-1], splits, how, run_dir=folder, teacher=source)
    assert same(models[1], models[2])
    for fresh, cached in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(fresh, cached, atol=1e-5)
    assert (tmp_path / "cached2" / OUTPUTS).is_file()
    assert not (tmp_path / "fresh1" / OUTPUTS).exists()


def test_outputs_in_a_file_are_those_written(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    outputs = teacher_outputs(teacher, splits.train)
    write_outputs(tmp_path / "o.pt", outputs)
    read = read_outputs(tmp_path / "o.pt")
    assert torch.equal(read.scores, outputs.scores) and read.data == splits.train.digest()
    path = tmp_path / "o.pt"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match="no whole checkpoint"):
        read_outputs(path)
    broken = replace(outputs, scores=outputs.scores * float("nan"))
    write_outputs(path, broken)
    with pytest.raises(DataError, match="no finite numbers"):
        read_outputs(path)


def test_our_own_table_is_made_anew_for_another_teacher(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    how = config(1, outputs="cached")
    for number, mentor in enumerate((teacher, network(12, seed=9))):
        fit(network(), splits, how, run_dir=tmp_path, teacher=mentor, resume=False)
        kept = read_outputs(tmp_path / OUTPUTS)
        assert torch.equal(kept.scores, teacher_outputs(mentor, splits.train).scores), number
    (tmp_path / OUTPUTS).write_bytes(b"broken")
    fit(network(), splits, how, run_dir=tmp_path, teacher=mentor, resume=False)
    assert torch.equal(read_outputs(tmp_path / OUTPUTS).scores, kept.scores)


def test_an_ensemble_is_the_mean_of_softened_probabilities(splits: DataSplits) -> None:
    members = [network(4, seed) for seed in (1, 2, 3)]
    images = torch.from_numpy(splits.train.reals()[:5])
    scores = [member(images) for member in members]
    for temperature in (1.0, 6.0):
        mixed = soften(Ensemble(members), temperature)(images)
        mean = torch.stack([torch.softmax(s / temperature, 1) for s in scores]).mean(0)
        assert torch.allclose(torch.softmax(mixed / temperature, 1), mean, atol=1e-6)
    assert torch.allclose(Ensemble(members)(images).exp().sum(1), torch.ones(5))
    assert soften(members[0], 3.0) is members[0]
    with pytest.raises(ModelError, match="has no member"):
        Ensemble([])


def test_an_ensemble_teaches(splits: DataSplits, teacher: nn.Module, tmp_path: Path) -> None:
    """Of one network with itself it is that network: training goes the same way."""
    alone, twice = network(), network()
    fit(alone, splits, config(temperature=3.0), run_dir=tmp_path / "1", teacher=teacher)
    both = Ensemble([teacher, teacher])
    fit(twice, splits, config(temperature=3.0), run_dir=tmp_path / "2", teacher=both)
    for one, other in zip(alone.parameters(), twice.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_images_without_labels_teach_by_the_teacher_alone(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    nameless = replace(splits.train, labels=np.full(len(splits.train), -1))
    bare = replace(splits, train=nameless)
    models = network(), network()
    how = config(30, alpha=1.0)
    found = fit(models[0], bare, how, run_dir=tmp_path / "bare", teacher=teacher)
    fit(models[1], splits, how, run_dir=tmp_path / "all", teacher=teacher)
    assert same(*models)  # labels play no part
    assert evaluate(models[0], splits.validation).accuracy > 0.6
    agreed = evaluate(models[0], splits.train).predictions
    wanted = evaluate(teacher, splits.train).predictions
    assert found.history[-1].train_accuracy == pytest.approx((agreed == wanted).mean(), abs=0.15)
    for refused in (config(alpha=0.9), TrainConfig(epochs=1)):
        with pytest.raises(RecipeError, match="96 training images have no label"):
            fit(network(), bare, refused, run_dir=tmp_path / "no", teacher=teacher)
    assert not (tmp_path / "no").exists()
    assert len(bare.labelled().train) == 0 and bare.labelled().test is bare.test
    with pytest.raises(DataError, match="no label"):
        evaluate(models[0], nameless)


HINT = {"kind": "hint", "student": "0", "teacher": "0"}
ATTENTION = {"kind": "attention", "student": "2", "teacher": "2"}
EMBEDDING = {"kind": "embedding", "student": "4", "teacher": "4"}


@pytest.mark.parametrize("pair", [ATTENTION, EMBEDDING], ids=lambda pair: pair["kind"])
def test_a_layer_learns_from_a_layer(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path, pair: dict[str, object]
) -> None:
    """With a weight the layers come nearer than without."""
    images = torch.from_numpy(splits.train.reals())
    gaps = []
    for weight in (1e-6, 20.0):
        student = network(12)
        how = config(12, alpha=0.1, features=[{**pair, "weight": weight}])
        fit(student, splits, how, run_dir=tmp_path / str(weight), teacher=teacher)
        assert not any(part._forward_hooks for part in (*student.modules(), *teacher.modules()))
        matching = FeatureMatching([FeaturePair(**pair)], student, teacher, images)
        gaps.append(float(matching.loss()))
        matching.close()
    assert gaps[1] < 0.8 * gaps[0]


def test_a_hint_is_translated_and_the_translator_thrown_away(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    student = network(8)
    how = config(12, alpha=0.0, features=[{**HINT, "weight": 50.0}])
    found = fit(student, splits, how, run_dir=tmp_path, teacher=teacher).history
    assert found[-1].train_loss < 0.2 * found[0].train_loss
    assert set(student.state_dict()) == set(network().state_dict())
    assert not any(part._forward_hooks for part in (*student.modules(), *teacher.modules()))
    pairs = [FeaturePair(**HINT)]
    matching = FeatureMatching(pairs, student, teacher, torch.rand(2, 1, 8, 8))
    matching.close()
    assert matching.regressors[0].weight.shape == (12, 8, 1, 1)


def test_a_run_with_hints_resumes_to_the_bit(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    how = config(4, features=[HINT, ATTENTION]).model_copy(update={"ema": 0.9})
    whole, resumed = network(), network()
    fit(whole, splits, how, run_dir=tmp_path / "whole", teacher=teacher)

    def stop(now: object) -> None:
        if now.last is not None and now.last.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(network(), splits, how, run_dir=tmp_path / "p", teacher=teacher, on_progress=stop)
    done = fit(resumed, splits, how, run_dir=tmp_path / "p", teacher=teacher)
    assert done.resumed_from == 2 and same(whole, resumed)
    states = [load_checkpoint(tmp_path / n / "checkpoint.pt")["learners"] for n in ("whole", "p")]
    for name, value in states[0]["student"]["matching"].items():
        assert torch.equal(value, states[1]["student"]["matching"][name])
    assert any("regressors.0" in name for name in states[0]["student"]["matching"])


class Blocks(nn.Module):
    """Two blocks whose outputs a traced model does not compute in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.second = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        found: Tensor = self.second(self.first(x))
        return found


def test_paths_of_the_float_student_hold_for_the_quantized_one(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    images = torch.from_numpy(splits.train.reals()[:32])
    policy = Policy.uniform(weight="int4", activation="uint4", input="uint8")
    student = apply(Blocks(), policy, "train", images)
    names = set(student.state_dict())
    pairs = [{"kind": "hint", "student": "first", "teacher": "1"}, {**HINT, "student": "first.0"}]
    fit(student, splits, config(features=pairs), run_dir=tmp_path, teacher=teacher)
    assert set(student.state_dict()) == names
    assert len(apply(student, policy, "freeze")(images)) == 32


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ({**HINT, "student": "9"}, "no layer '9'"),
        ({**HINT, "teacher": "block.9"}, "no layer 'block.9'"),
        ({**HINT, "teacher": "2"}, "sizes do not fit"),
        ({**ATTENTION, "student": "4", "teacher": "4"}, "attention needs"),
        ({**EMBEDDING, "student": "0", "teacher": "0"}, "equal shapes"),
    ],
)
def test_layers_that_do_not_fit_are_refused_before_training(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path, pair: dict[str, object], reason: str
) -> None:
    student = network()
    with pytest.raises(ModelError, match=reason) as caught:
        fit(student, splits, config(features=[pair]), run_dir=tmp_path / "r", teacher=teacher)
    assert "distillation.features" in str(caught.value)
    assert same(student, network()) and not (tmp_path / "r").exists()
    assert not any(part._forward_hooks for part in (*student.modules(), *teacher.modules()))


def test_an_output_that_is_overwritten_is_no_layer_to_learn_from(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    student = network()
    student[1] = nn.ReLU(inplace=True)
    with pytest.raises(ModelError, match="overwritten by the layer behind it"):
        fit(student, splits, config(features=[HINT]), run_dir=tmp_path / "r", teacher=teacher)


def refusals(splits: DataSplits, teacher: nn.Module) -> dict[str, tuple[object, TrainConfig, str]]:
    outputs = teacher_outputs(teacher, splits.train)
    other = replace(splits.train, images=splits.train.images[::-1].copy())
    wide = TeacherOutputs(torch.zeros(96, 7), outputs.indices, outputs.data, "x")
    return {
        "classes": (network(classes=7), config(), "gives 7 classes, but bars has 4"),
        "shape": (build_model("digits_cnn", 4, (28, 28, 1)), config(), "does not take images"),
        "channels": (nn.Conv2d(3, 4, 1), config(), "does not take images of 8 x 8 x 1"),
        "no scores": (nn.Identity(), config(), "but bars has 4 classes"),
        "data": (teacher_outputs(teacher, other), config(outputs="cached"), "another data set"),
        "table": (wide, config(outputs="cached"), "scores of 7 classes"),
        "not fresh": (outputs, config(), "which is not fresh"),
    }


@pytest.mark.parametrize(
    "case", ["classes", "shape", "channels", "no scores", "data", "table", "not fresh"]
)
def test_a_teacher_that_does_not_fit_is_refused_before_training(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path, case: str
) -> None:
    mentor, how, reason = refusals(splits, teacher)[case]
    with pytest.raises(BitwrightError, match=reason) as caught:
        fit(network(), splits, how, run_dir=tmp_path / "r", teacher=mentor)
    assert caught.value.where and caught.value.hint
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"distillation": {"alpha": 1.01}}, "less than or equal to 1"),
        ({"distillation": {"alpha": -0.1}}, "greater than or equal to 0"),
        ({"distillation": {"temperature": 0}}, "greater than 0"),
        ({"distillation": {"outputs": "cached", "features": [HINT]}}, "features need outputs"),
        ({"distillation": {"features": [{**HINT, "weight": 0}]}}, "greater than 0"),
        (
            {"distillation": {"outputs": "cached"}, "augmentation": {"flip": True}},
            "augmentation changes them",
        ),
        ({"batch_size": 30, "devices": 4}, "multiple of devices"),
        (
            {"distillation": {}, "peer": {"distillation": {"outputs": "cached"}}},
            "a peer learns from fresh scores alone",
        ),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        TrainConfig(**fields)


def test_plain_scores_may_serve_changed_images_if_asked(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path
) -> None:
    how = config(1, outputs="cached_plain").model_copy(
        update={"augmentation": Augmentation(shift=1, flip=True)}
    )
    fit(network(), splits, how, run_dir=tmp_path, teacher=teacher)
    assert (tmp_path / OUTPUTS).is_file()


def test_a_peer_has_no_cached_scores_and_takes_the_images(
    splits: DataSplits, tmp_path: Path
) -> None:
    for peer, how, reason in (
        (network(), config(outputs="cached"), "cannot be computed beforehand"),
        (network(classes=3), config(), "gives 3 classes"),
    ):
        with pytest.raises(BitwrightError, match=reason):
            fit(network(), splits, how, run_dir=tmp_path / "r", peer=peer)
    assert not (tmp_path / "r").exists()


def test_layers_learn_from_those_of_a_peer_too(splits: DataSplits, tmp_path: Path) -> None:
    student, peer = network(), network(12, seed=5)
    how = config(features=[HINT, ATTENTION])
    fit(student, splits, how, run_dir=tmp_path, peer=peer)
    assert not same(student, network()) and not same(peer, network(12, seed=5))
    learners = load_checkpoint(tmp_path / "checkpoint.pt")["learners"]
    assert "matching" in learners["student"] and "matching" not in learners["peer"]
    assert not any(part._forward_hooks for part in (*student.modules(), *peer.modules()))


def test_a_teacher_of_no_weight_is_not_asked(splits: DataSplits, tmp_path: Path) -> None:
    class Silent(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Silent.calls += 1
            return torch.zeros(len(x), 4)

    models = network(), network()
    plain = config(alpha=0.0).model_copy(update={"distillation": None})
    fit(models[0], splits, plain, run_dir=tmp_path / "1")
    fit(models[1], splits, config(alpha=0.0), run_dir=tmp_path / "2", teacher=Silent())
    assert same(*models) and Silent.calls == 1  # the check before training


@pytest.mark.parametrize("outputs", ["fresh", "cached"])
def test_a_run_goes_on_with_its_own_teacher_alone(
    splits: DataSplits, teacher: nn.Module, tmp_path: Path, outputs: str
) -> None:
    how = {"config": config(1, outputs=outputs), "run_dir": tmp_path}
    fit(network(), splits, teacher=teacher, **how)
    assert fit(network(), splits, teacher=teacher, **how).resumed_from == 1
    with pytest.raises(RunError, match="another teacher"):
        fit(network(), splits, teacher=network(12, seed=77), **how)
