# SPDX-License-Identifier: Apache-2.0
"""What a search maximises: a number in 0 .. 1 for a model, larger is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from bitwright.base.errors import DataError
from bitwright.data import Dataset
from bitwright.train.evaluation import device_of, score_images
from bitwright.train.images import Images, on_device

if TYPE_CHECKING:
    from bitwright.papers.faces.pairs import FaceProtocol
    from bitwright.papers.faces.verification import Sweep

BATCH = 100


class Metric(Protocol):
    """A measure with a name for reports."""

    @property
    def name(self) -> str:
        """What it measures, in a word or two."""
        ...

    def __call__(self, model: nn.Module) -> float:
        """Measure a model in evaluation mode; it is left as it was."""
        ...


@dataclass
class Top1:
    """Share of images whose highest score is the label's.

    Attributes:
        dataset: the images; a validation split, so that the test images stay unseen.
        iterations: batches at most; None: all images.
        batch_size: images a batch.
        of_scores: that the network gives scores of classes.
    """

    dataset: Dataset
    iterations: int | None = None
    batch_size: int = BATCH
    name: str = "top-1 accuracy"
    of_scores: bool = True
    _kept: tuple[Images, Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.iterations is not None and self.iterations < 1:
            raise DataError(f"{self.iterations} iterations measure nothing", hint="1 or more")
        if not len(self.dataset):
            raise DataError("holds no image", where=self.dataset.name)

    def __call__(self, model: nn.Module) -> float:
        if self._kept is None:
            count = len(self.dataset)
            if self.iterations is not None:
                count = min(count, self.iterations * self.batch_size)
            self._kept = on_device(self.dataset.take(range(count)), "cpu")
        images, labels = self._kept
        place = device_of(model)
        scores = score_images(model, images.to(place), self.dataset.scale, self.batch_size)
        return float((scores.cpu().argmax(dim=1) == labels).float().mean())


@dataclass
class EmbeddingAgreement:
    """How near a network's vectors stay to the float ones: ``1 - ||y - y0|| / ||y0||``, at least 0.

    Norms are over all images together. It needs no labels and tells more than an accuracy does.

    Attributes:
        inputs: (N, C, H, W) reals.
        reference: (N, D) vectors of the float network.
    """

    inputs: Tensor
    reference: Tensor
    batch_size: int = BATCH
    name: str = "embedding agreement"

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor, batch_size: int = BATCH) -> EmbeddingAgreement:
        """With the vectors that a float model gives now."""
        return cls(inputs, run(model, inputs, batch_size), batch_size)

    def __call__(self, model: nn.Module) -> float:
        found = run(model, self.inputs, self.batch_size)
        error = (found - self.reference).norm() / self.reference.norm().clamp(min=1e-30)
        return max(0.0, 1.0 - float(error))


@dataclass
class Verification:
    """Accuracy of telling pairs of faces: that of `train.verification` on a protocol."""

    protocol: FaceProtocol
    sweep: Sweep | None = None
    name: str = "verification accuracy"

    def __call__(self, model: nn.Module) -> float:
        from bitwright.papers.faces.verification import verification_accuracy

        return verification_accuracy(model, self.protocol, self.sweep).accuracy


@dataclass
class Measured:
    """Any function of a model as a metric."""

    function: Callable[[nn.Module], float]
    name: str = "accuracy"

    def __call__(self, model: nn.Module) -> float:
        return float(self.function(model))


def run(model: nn.Module, inputs: Tensor, batch_size: int = BATCH) -> Tensor:
    """(N, ...) outputs of a model in evaluation mode, without gradients; its mode is restored."""
    modes = {module: module.training for module in model.modules()}
    place = device_of(model)
    model.eval()
    try:
        with torch.no_grad():
            parts = [model(batch.to(place)).to(inputs.device) for batch in inputs.split(batch_size)]
            return torch.cat(parts)
    finally:
        for module, mode in modes.items():
            module.training = mode
