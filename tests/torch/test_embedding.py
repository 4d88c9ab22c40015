# SPDX-License-Identifier: Apache-2.0
"""Distillation of embeddings: pools, mixtures, training, stopping and going on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.papers.faces.embedding import (
    EmbeddingPool,
    EmbeddingTraining,
    distance,
    make_pool,
    train_embedding,
)
from bitwright.papers.faces.face_densenet import face_densenet
from bitwright.papers.faces.face_mixing import FaceJitter, FaceMixing, jitter_faces, mix_faces


class Teacher(nn.Module):
    """Embeddings that differ little from their mean, as those of real teachers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1:] == (3, 24, 24)
        means = nn.functional.adaptive_avg_pool2d(x[:, :1], 4).flatten(1)
        return 2 + 0.3 * means


def student(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    options = {"blocks": (1,), "growth": 8, "stem_width": 8}
    return face_densenet((16, 16, 3), embedding=16, **options)


def faces(count: int = 6, side: int = 24) -> np.ndarray:
    coarse = np.random.default_rng(0).random((count, 4, 4))
    return (np.kron(coarse, np.ones((side // 4, side // 4))) * 255).astype(np.uint8)


@pytest.fixture(scope="module")
def pool() -> EmbeddingPool:
    return make_pool(faces(), Teacher(), 256, side=24)


QUICK = EmbeddingTraining(
    epochs=4, batch=16, lr=1e-2, size=16, jitter=FaceJitter(0, 0, 0, 0, 0), direction=1.0
)


def test_pool_holds_the_faces_first_and_new_ones_behind(pool: EmbeddingPool):
    assert pool.faces.shape == (256, 24, 24)
    assert (pool.faces[:6] == faces()).all()
    assert len({face.tobytes() for face in pool.faces}) == 256
    again = make_pool(faces(), Teacher(), 256, side=24)
    assert (again.faces == pool.faces).all()
    assert (again.targets == pool.targets).all()
    other = make_pool(faces(), Teacher(), 256, side=24, seed=1)
    assert (other.faces[6:] != pool.faces[6:]).any()


def test_targets_are_what_the_teacher_says_of_the_stored_bytes(pool: EmbeddingPool):
    stored = torch.from_numpy(pool.faces[100:104])[:, None].float() / 255
    both = [Teacher()(side.expand(-1, 3, -1, -1)) for side in (stored, stored.flip(3))]
    mean = (both[0] + both[1]) / 2
    assert torch.allclose(torch.from_numpy(pool.targets[100:104]), mean, atol=1e-6)


def test_student_learns_more_than_the_mean(pool: EmbeddingPool):
    net = student()
    losses = train_embedding(net, pool, replace(QUICK, epochs=12))
    assert losses[-1] < 0.5 * losses[0]
    x = torch.from_numpy(pool.faces)[:, None].float() / 255
    small = nn.functional.interpolate(x, (16, 16), mode="bilinear").expand(-1, 3, -1, -1)
    wanted = torch.from_numpy(pool.targets)
    with torch.no_grad():
        error = distance(net(small), wanted)
    assert not net.training
    assert float(error) < 0.8 * float(distance(wanted.mean(0).expand_as(wanted), wanted))


def test_distance_and_its_square():
    found, wanted = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2, 2)
    assert float(distance(found, wanted)) == pytest.approx(2.5)
    assert float(distance(found, wanted, squared=True)) == pytest.approx(12.5)


def test_a_stopped_run_ends_with_the_same_weights(pool: EmbeddingPool, tmp_path: Path):
    config = replace(QUICK, per_epoch=64, epochs=3, early=1, early_size=12)
    straight, stopped = student(), student()
    losses = train_embedding(straight, pool, config)

    def stop(epoch: int, _: float) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    path = tmp_path / "c.pt"
    with pytest.raises(KeyboardInterrupt):
        train_embedding(stopped, pool, config, checkpoint=path, on_epoch=stop)
    half = torch.load(path, weights_only=True)
    assert len(half["losses"]) == 2
    for name, value in stopped.state_dict().items():
        assert torch.equal(value, half["model"][name])
    fresh = student(seed=5)
    assert train_embedding(fresh, pool, config, checkpoint=path) == losses
    for name, value in straight.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]), name
    with pytest.raises(DataError, match="was written with"):
        train_embedding(student(), pool, replace(config, lr=1e-3), checkpoint=path)


def test_what_cannot_be_learned(pool: EmbeddingPool):
    wide = face_densenet((16, 16, 3), embedding=17, blocks=(1,), growth=4)
    with pytest.raises(ModelError, match="gives 17 values, its teacher 16"):
        train_embedding(wide, pool, QUICK)
    with pytest.raises(ModelError, match="no dense layer"):
        train_embedding(nn.Conv2d(3, 16, 3), pool, QUICK)
    with pytest.raises(DataError, match="2 faces, but 3"):
        EmbeddingPool(np.zeros((2, 4, 4), np.uint8), np.zeros((3, 2), np.float32))
    with pytest.raises(DataError, match="no finite numbers"):
        EmbeddingPool(np.zeros((1, 4, 4), np.uint8), np.full((1, 2), np.nan, np.float32))
    with pytest.raises(DataError, match="pool of 3"):
        make_pool(faces(), Teacher(), 3, side=24)


@pytest.mark.parametrize(
    "settings", [{"epochs": 0}, {"batch": 1}, {"lr": 0.0}, {"per_epoch": 4}, {"direction": -1.0}]
)
def test_impossible_settings(settings: dict[str, float]):
    with pytest.raises(RecipeError, match="embedding"):
        EmbeddingTraining(**{"epochs": 1, **settings})  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"faces\.warp"):
        FaceMixing(warp=2.0)


def test_mixing_without_mixing_gives_faces_or_their_mirror_images():
    given = torch.rand(3, 1, 16, 16)
    none = FaceMixing(blend=0.0, warp=0.0, stretch=0.0, light=0.0)
    made = mix_faces(given, 20, none, torch.Generator().manual_seed(0))
    known = torch.cat([given, given.flip(3)])
    nearest = torch.cdist(made.flatten(1), known.flatten(1)).min(1).values
    assert float(nearest.max()) < 1e-4
    blended = mix_faces(given, 20, FaceMixing(blend=1.0), torch.Generator().manual_seed(0))
    assert 0 <= float(blended.min()) <= float(blended.max()) <= 1


def test_jitter_without_jitter_only_shrinks():
    given = torch.rand(2, 3, 16, 16)
    none = FaceJitter(0, 0, 0, 0, 0)
    same = jitter_faces(given, 16, none, torch.Generator().manual_seed(0))
    assert torch.allclose(same, given, atol=1e-5)
    assert jitter_faces(given, 8, FaceJitter(), torch.Generator()).shape == (2, 3, 8, 8)
