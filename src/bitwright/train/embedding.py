# SPDX-License-Identifier: Apache-2.0
"""Distillation of embeddings: a student learns the vectors that a teacher gives to faces.

The teacher runs once over a pool of faces (it sees larger images than the student), the student
then many times over jittered copies of them. The loss is the Euclidean distance of the two vectors,
or its square. A run depends on its settings alone, so one that was stopped goes on as if it had not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import cos, pi
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.train.checkpoint import load_checkpoint, load_state, save_checkpoint
from bitwright.train.face_mixing import FaceJitter, FaceMixing, jitter_faces, mix_faces

OnEpoch = Callable[[int, float], None]
_FIELDS = ("epoch", "model", "optimizer", "losses", "settings")
_POOL_BATCH = 64
_TINY = 1e-12


@dataclass(frozen=True)
class EmbeddingTraining:
    """How a student regresses on embeddings.

    Attributes:
        epochs: of ``per_epoch`` faces each, drawn without repetition where the pool allows.
        per_epoch: a checkpoint follows every epoch; None takes the whole pool.
        lr: of AdamW, after a warm-up of ``warmup`` of all steps; falls along half a cosine.
        squared: compare by the squared distance; without by the distance.
        size: side of the student's images.
    """

    epochs: int
    per_epoch: int | None = None
    batch: int = 32
    lr: float = 2e-3
    warmup: float = 0.03
    weight_decay: float = 1e-2
    squared: bool = False
    size: int = 80
    jitter: FaceJitter = field(default_factory=FaceJitter)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 2 or self.size < 1:
            raise RecipeError("epochs and size from 1 on, batch from 2 on", where="embedding")
        if not self.lr > 0 or self.weight_decay < 0 or not 0 <= self.warmup < 1:
            raise RecipeError("lr, weight_decay or warmup out of range", where="embedding")
        if self.per_epoch is not None and self.per_epoch < self.batch:
            raise RecipeError("an epoch must hold at least one batch", where="embedding.per_epoch")


@dataclass(frozen=True, eq=False)
class EmbeddingPool:
    """Faces and what the teacher says about them.

    Attributes:
        faces: (N, S, S) grey or (N, S, S, 3) uint8; S is larger than the student's image.
        targets: (N, D) float32.
    """

    faces: NDArray[np.uint8]
    targets: NDArray[np.float32]

    def __post_init__(self) -> None:
        if len(self.faces) != len(self.targets) or not len(self.faces):
            raise DataError(
                f"{len(self.faces)} faces, but {len(self.targets)} embeddings", where="pool"
            )
        if not np.isfinite(self.targets).all():
            raise DataError("the teacher gave values that are no finite numbers", where="pool")

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, 3, S, S) reals in [0, 1] and their targets."""
        faces = torch.from_numpy(self.faces[rows.numpy()])
        planes = faces[:, None] if faces.ndim == 3 else faces.permute(0, 3, 1, 2)
        reals = planes.to(torch.float32) / 255
        return reals.expand(-1, 3, -1, -1), torch.from_numpy(self.targets[rows.numpy()])


def make_pool(
    faces: NDArray[np.uint8],
    teacher: nn.Module,
    count: int,
    *,
    side: int = 150,
    mixing: FaceMixing | None = None,
    seed: int = 0,
) -> EmbeddingPool:
    """Mix new faces out of aligned ones and let the teacher describe each.

    The faces given come first, as they are; what follows is mixed. The teacher's description of a
    face is the mean of those of the face and its mirror image.

    Args:
        faces: (N, S, S) or (N, S, S, 3) uint8, aligned alike.
        teacher: takes (N, 3, side, side) reals in [0, 1], gives (N, D).
        count: size of the pool.

    Raises:
        DataError: fewer than two faces, or the teacher gives no finite numbers.
    """
    if len(faces) < 2 or count < len(faces):
        raise DataError(f"a pool of {count} needs between 2 and {count} faces", where="pool")
    generator = torch.Generator().manual_seed(seed)
    mixing = mixing or FaceMixing()
    own = torch.from_numpy(faces)
    planes = own[:, None] if own.ndim == 3 else own.permute(0, 3, 1, 2)
    source = planes.to(torch.float32) / 255
    teacher.eval()
    made: list[NDArray[np.uint8]] = []
    targets: list[NDArray[np.float32]] = []
    batches = [*source.split(_POOL_BATCH)]
    left = count - len(faces)
    while left > 0 or batches:
        if batches:
            batch = batches.pop(0)
        else:
            batch = mix_faces(source, min(left, _POOL_BATCH), mixing, generator)
            left -= len(batch)
        bytes_ = (batch * 255).round().to(torch.uint8)
        described = _describe(teacher, bytes_.to(torch.float32) / 255, side)
        made.append(bytes_.permute(0, 2, 3, 1).squeeze(-1).numpy())
        targets.append(described.numpy())
    return EmbeddingPool(np.concatenate(made), np.concatenate(targets))


def _describe(teacher: nn.Module, faces: Tensor, side: int) -> Tensor:
    with torch.no_grad():
        large = functional.interpolate(
            faces, (side, side), mode="bilinear", antialias=True, align_corners=False
        ).expand(-1, 3, -1, -1)
        both = torch.cat([large, large.flip(3)]).contiguous(memory_format=torch.channels_last)
        described = teacher(both)
    return (described[: len(faces)] + described[len(faces) :]) / 2


def distance(found: Tensor, wanted: Tensor, *, squared: bool = False) -> Tensor:
    """Mean Euclidean distance of vectors (N, D), or mean squared distance."""
    square = (found - wanted).square().sum(1)
    return square.mean() if squared else (square + _TINY).sqrt().mean()


def train_embedding(
    student: nn.Module,
    pool: EmbeddingPool,
    config: EmbeddingTraining,
    *,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> tuple[float, ...]:
    """Train a student in place on a pool; it is left in evaluation mode.

    Args:
        student: takes (N, 3, size, size) reals in [0, 1], gives (N, D) as the pool's targets.
        checkpoint: file to go on from, if it exists, and to write after every epoch; its field
            ``model`` is the state dict.
        on_epoch: called with the number of epochs done and the last epoch's mean loss, the student
            in evaluation mode.

    Returns:
        The mean loss of each epoch.

    Raises:
        DataError: the checkpoint is broken or was written with other settings.
        ModelError: the student's output does not fit, or the loss is not finite.
    """
    optimizer = torch.optim.AdamW(student.parameters(), config.lr, weight_decay=config.weight_decay)
    student.to(memory_format=torch.channels_last)
    losses = _resume(checkpoint, student, optimizer, config)
    for epoch in range(len(losses), config.epochs):
        student.train()
        with _seeded(config.seed, epoch) as generator:
            losses.append(_epoch(student, pool, config, optimizer, epoch, generator))
        student.eval()
        if checkpoint is not None:
            content = {
                "epoch": epoch + 1,
                "model": student.state_dict(),
                "optimizer": optimizer.state_dict(),
                "losses": losses,
                "settings": repr(config),
            }
            save_checkpoint(checkpoint, content)
        if on_epoch is not None:
            on_epoch(epoch + 1, losses[-1])
    student.eval()
    return tuple(losses)


@contextmanager
def _seeded(seed: int, epoch: int) -> Iterator[torch.Generator]:
    yield torch.Generator().manual_seed(seed * 1_000_003 + epoch)


def _epoch(
    student: nn.Module,
    pool: EmbeddingPool,
    config: EmbeddingTraining,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    generator: torch.Generator,
) -> float:
    count = config.per_epoch or len(pool.faces)
    rounds = -(-count // len(pool.faces))
    order = torch.cat([torch.randperm(len(pool.faces), generator=generator) for _ in range(rounds)])
    batches = order[: count - count % config.batch].split(config.batch)
    steps = config.epochs * len(batches)
    total = 0.0
    for number, rows in enumerate(batches):
        share = (epoch * len(batches) + number) / steps
        for group in optimizer.param_groups:
            group["lr"] = config.lr * _rate(share, config.warmup)
        faces, wanted = pool.batch(rows)
        images = jitter_faces(
            faces[:, :1] if _is_grey(pool) else faces, config.size, config.jitter, generator
        )
        found = student(images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last))
        if found.shape != wanted.shape:
            raise ModelError(
                f"the student gives {tuple(found.shape)}, its teacher {tuple(wanted.shape)}",
                where="embedding",
                hint="choose the student's embedding as wide as the teacher's",
            )
        loss = distance(found, wanted, squared=config.squared)
        if not torch.isfinite(loss.detach()):
            raise ModelError(
                f"the loss of epoch {epoch + 1} is {float(loss)}",
                where="embedding",
                hint="choose a smaller learning rate",
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / len(batches)


def _is_grey(pool: EmbeddingPool) -> bool:
    return pool.faces.ndim == 3


def _rate(share: float, warmup: float) -> float:
    if share < warmup:
        return max(share / warmup, 1e-3)
    return max((1 + cos(pi * (share - warmup) / (1 - warmup))) / 2, 1e-3)


def _resume(
    path: Path | None,
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: EmbeddingTraining,
) -> list[float]:
    if path is None or not path.is_file():
        return []
    content = load_checkpoint(path, fields=_FIELDS)
    if content["settings"] != repr(config):
        raise DataError(
            f"was written with {content['settings']}, now it is {config}",
            where=str(path),
            hint="delete it to begin anew, or use the settings it was written with",
        )
    load_state(student, content["model"], str(path))
    try:
        optimizer.load_state_dict(content["optimizer"])
    except (ValueError, KeyError) as error:
        raise DataError(f"belongs to another model: {error}", where=str(path)) from error
    return list(content["losses"])
