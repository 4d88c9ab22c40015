# SPDX-License-Identifier: Apache-2.0
"""Distillation of embeddings: a student learns the vectors that a teacher gives to faces.

The teacher runs once over a pool of faces (it sees larger images than the student), the student
then many times over jittered copies of them. The loss is the Euclidean distance of the two
vectors, or its square, and the angle between them.

Embeddings differ little from their mean, and so do the features in front of a last dense layer: a
plain regression learns the mean and then hardly anything. So vectors are compared after their mean
is taken off and their spread is one, and while training a batch norm stands in front of the last
dense layer; both go into that layer's weights afterwards. A run depends on its settings alone, so
one that was stopped goes on as if it had not.
"""

from __future__ import annotations

import copy
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

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.models.common import device_of
from bitwright.papers.faces.face_mixing import FaceJitter, FaceMixing, jitter_faces, mix_faces
from bitwright.train.checkpoint import resume, save_progress

OnEpoch = Callable[[int, float], None]
_POOL_BATCH = 64
_EPOCH_STRIDE = 1_000_003  # a prime, so that (seed, epoch) pairs do not meet
_TINY = 1e-12


@dataclass(frozen=True)
class EmbeddingTraining:
    """How a student regresses on embeddings.

    Attributes:
        epochs: of ``per_epoch`` faces each, drawn without repetition where the pool allows.
        per_epoch: a checkpoint follows every epoch; None takes the whole pool.
        lr: of AdamW, after a warm-up of ``warmup`` of all steps; falls along half a cosine.
        squared: compare by the squared distance; without by the distance.
        euclidean: weight of the distance. It draws the vectors of faces that the student is not
            sure of towards the mean; faces of two people are then near each other.
        direction: weight of ``1 - cosine`` of the angle between the vectors.
        length: weight of the squared difference of their lengths.
        size: side of the student's images.
        early, early_size: so many epochs at first see smaller images, which cost less; a network
            that ends in a global average takes them.
    """

    epochs: int
    per_epoch: int | None = None
    batch: int = 32
    lr: float = 2e-3
    warmup: float = 0.03
    weight_decay: float = 1e-2
    squared: bool = True
    euclidean: float = 0.25
    direction: float = 2.0
    length: float = 1.0
    size: int = 80
    early: int = 0
    early_size: int = 44
    jitter: FaceJitter = field(default_factory=FaceJitter)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 2 or min(self.size, self.early_size) < 1:
            raise RecipeError("epochs and size from 1 on, batch from 2 on", where="embedding")
        if not self.lr > 0 or not 0 <= self.warmup < 1:
            raise RecipeError("lr above 0, warmup in 0 .. 1", where="embedding")
        if min(self.weight_decay, self.euclidean, self.direction, self.length) < 0:
            raise RecipeError("a weight below zero", where="embedding")
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
        described = teacher(both.to(device_of(teacher))).cpu()
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
    student.to(memory_format=torch.channels_last)
    network = _Conditioned(student, pool).to(device_of(student))
    optimizer = torch.optim.AdamW(network.parameters(), config.lr, weight_decay=config.weight_decay)
    losses = resume(checkpoint, "training", network, optimizer, config, config.epochs)
    try:
        for epoch in range(len(losses), config.epochs):
            network.train()
            generator = torch.Generator().manual_seed(config.seed * _EPOCH_STRIDE + epoch)
            losses.append(_epoch(network, pool, config, optimizer, epoch, generator))
            network.eval()
            with network.whole():
                if checkpoint is not None:
                    save_progress(checkpoint, _state(network, student), optimizer, losses, config)
                if on_epoch is not None:
                    on_epoch(epoch + 1, losses[-1])
    finally:
        network.finish()
        student.eval()
    return tuple(losses)


class _Conditioned(nn.Module):
    """A student whose last dense layer is fed by a batch norm and gives standardised vectors."""

    def __init__(self, student: nn.Module, pool: EmbeddingPool) -> None:
        super().__init__()
        dense = [path for path, m in student.named_modules() if isinstance(m, nn.Linear)]
        if not dense:
            raise ModelError("has no dense layer at its end", where=type(student).__name__)
        self._parent, _, self._name = dense[-1].rpartition(".")
        target = student.get_submodule(dense[-1])
        assert isinstance(target, nn.Linear)
        self._kept = (target,)  # not a submodule: its numbers are made when training ends
        self.body = student
        self.norm = nn.BatchNorm1d(target.in_features, affine=False)
        self.head = copy.deepcopy(target)
        targets = torch.from_numpy(pool.targets)
        self.register_buffer("mean", targets.mean(0), persistent=False)
        spread = (targets - targets.mean(0)).square().sum(1).mean().sqrt()
        self.register_buffer("spread", spread.clamp(min=_TINY), persistent=False)
        if self.head.out_features != targets.shape[1]:
            made, wanted = self.head.out_features, targets.shape[1]
            raise ModelError(
                f"the student gives {made} values, its teacher {wanted}",
                where="embedding",
                hint="choose the student's embedding as wide as the teacher's",
            )
        if self.head.bias is None:
            raise ModelError("its last dense layer needs a bias", where=type(student).__name__)
        self._put(nn.Identity())
        with torch.no_grad():
            self.head.weight /= self.head.in_features**0.5
            self.head.bias.zero_()

    @property
    def folded(self) -> tuple[str, ...]:
        """Names of the state that is there only while the student is whole."""
        path = ".".join(part for part in ("body", self._parent, self._name) if part)
        return f"{path}.weight", f"{path}.bias"

    def _put(self, module: nn.Module) -> None:
        self.body.get_submodule(self._parent).add_module(self._name, module)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, D) vectors without their mean, of spread one."""
        found: Tensor = self.head(self.norm(self.body(x)))
        return found

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, the student is a plain network that gives real embeddings."""
        self.finish()
        try:
            yield
        finally:
            self._put(nn.Identity())

    def finish(self) -> None:
        """Fold everything into the student's last dense layer and put that back."""
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert isinstance(mean, Tensor) and isinstance(variance, Tensor)
        factor = (variance.double() + self.norm.eps).rsqrt()
        weight = self.head.weight.double() * factor
        bias = self.head.bias.double() - weight @ mean.double()
        (target,) = self._kept
        with torch.no_grad():
            target.weight.copy_(weight * self.spread)
            target.bias.copy_(bias * self.spread + self.mean)
        self._put(target)


def _epoch(
    network: _Conditioned,
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
    size = config.early_size if epoch < config.early else config.size
    total = 0.0
    for number, rows in enumerate(batches):
        share = (epoch * len(batches) + number) / steps
        for group in optimizer.param_groups:
            group["lr"] = config.lr * _rate(share, config.warmup)
        faces, targets = pool.batch(rows)
        planes = faces[:, :1] if pool.faces.ndim == 3 else faces
        images = jitter_faces(planes, size, config.jitter, generator)
        images = images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        place = network.mean.device
        wanted = (targets.to(place) - network.mean) / network.spread
        found = network(images.to(place))
        loss = _loss(found, wanted, config)
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


def _loss(found: Tensor, wanted: Tensor, config: EmbeddingTraining) -> Tensor:
    angle = functional.cosine_similarity(found, wanted).mean()
    lengths = (found.norm(dim=1) - wanted.norm(dim=1)).square().mean()
    apart = distance(found, wanted, squared=config.squared)
    return config.euclidean * apart + config.direction * (1 - angle) + config.length * lengths


def _rate(share: float, warmup: float) -> float:
    if share < warmup:
        return max(share / warmup, 1e-3)
    return max((1 + cos(pi * (share - warmup) / (1 - warmup))) / 2, 1e-3)


def _state(network: _Conditioned, student: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Inside `_Conditioned.whole`: ``model`` is the plain network's state."""
    training = {name: v for name, v in network.state_dict().items() if name not in network.folded}
    plain = {name: value.clone() for name, value in student.state_dict().items()}
    return {"model": plain, "training": training}
