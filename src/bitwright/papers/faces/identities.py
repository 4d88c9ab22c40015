# SPDX-License-Identifier: Apache-2.0
"""A closed-set classifier behind an embedding network: known identities, top-1 accuracy.

Searches that score a network by the accuracy of labels need one. It is put behind the network, and
taken away again; the network itself is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.models.common import device_of
from bitwright.papers.faces.images import FaceSet
from bitwright.train.evaluation import run_batches

_BATCH = 50
HIDDEN = (100, 100)


@dataclass(frozen=True)
class IdentityTraining:
    """How the classifier learns: cross entropy and Adam on embeddings brought to unit spread."""

    epochs: int = 100
    batch: int = 30
    lr: float = 5e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or not self.lr > 0:
            raise RecipeError("epochs and batch from 1 on, lr above 0", where="identities")


class IdentityNetwork(nn.Module):
    """An embedding network with a classifier behind it."""

    def __init__(self, extractor: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, identities)."""
        scores: Tensor = self.classifier(self.extractor(x))
        return scores


def choose_faces(faces: FaceSet, people: int, each: int) -> FaceSet:
    """The first ``each`` faces of the first ``people`` people.

    Raises:
        DataError: there are fewer.
    """
    if not 1 <= people <= len(faces.people):
        raise DataError(
            f"{people} identities are asked for, there are {len(faces.people)}",
            where=faces.data.name,
        )
    some = faces.of(faces.people[:people])
    rows: list[int] = []
    for label, person in enumerate(some.people):
        own = np.flatnonzero(some.data.labels == label)
        if not 1 <= each <= len(own):
            raise DataError(
                f"{each} faces a person are asked for, {person} has {len(own)}",
                where=faces.data.name,
                hint="ask for fewer faces, or choose other people",
            )
        rows += own[:each].tolist()
    return some.take(rows)


def extract_features(extractor: nn.Module, faces: FaceSet) -> Tensor:
    """(N, D) float32 of an embedding network, in evaluation mode, for faces.

    Raises:
        ModelError: it gives no vector a face, or values that are no finite numbers.
    """
    features = run_batches(extractor, torch.from_numpy(faces.data.reals()), _BATCH)
    if features.ndim != 2 or not torch.isfinite(features).all():
        raise ModelError(
            f"features of shape {tuple(features.shape)}, expected finite ({len(faces)}, D)",
            where=type(extractor).__name__,
        )
    return features.to(torch.float32)


def train_identities(
    features: Tensor, labels: NDArray[np.int64], config: IdentityTraining | None = None
) -> nn.Sequential:
    """Train D - 100 - 100 - identities, with ReLU between, on embeddings (N, D) and labels (N,).

    The embeddings' means and spread are learned from first and then folded into the first layer,
    so the classifier takes embeddings as they are.
    """
    config = config or IdentityTraining()
    y = torch.from_numpy(labels)
    mean, spread = features.mean(0), features.std().clamp(min=torch.finfo(torch.float32).tiny)
    x = (features - mean) / spread
    generator = torch.Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = _perceptron((x.shape[1], *HIDDEN, int(y.max()) + 1))
    optimizer = torch.optim.Adam(model.parameters(), config.lr)
    steps = config.epochs * -(-len(x) // config.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(config.epochs):
        for rows in torch.randperm(len(x), generator=generator).split(config.batch):
            loss = functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    _fold_norm(model[0], mean, spread)
    model.eval()
    return model


def _perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _fold_norm(first: nn.Module, mean: Tensor, spread: Tensor) -> None:
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        first.weight /= spread
        first.bias -= first.weight @ mean


def append_identities(extractor: nn.Module, classifier: nn.Module) -> IdentityNetwork:
    """Both in one network; its attribute ``extractor`` is the network as it was."""
    network = IdentityNetwork(extractor, classifier.to(device_of(extractor)))
    network.eval()
    return network


def remove_identities(model: nn.Module) -> nn.Module:
    """The embedding network alone.

    Raises:
        ModelError: there is no classifier to remove.
    """
    if not isinstance(model, IdentityNetwork):
        raise ModelError("has no classifier of identities behind it", where=type(model).__name__)
    return model.extractor


def top1(model: nn.Module, faces: FaceSet) -> float:
    """Share of faces whose person is found, in evaluation mode."""
    found = extract_features(model, faces).argmax(1).numpy()
    return float((found == faces.data.labels).mean())
