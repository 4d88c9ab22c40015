# SPDX-License-Identifier: Apache-2.0
"""What a recipe says about training. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Augmentation(BaseModel):
    """Random changes to training images, drawn anew for each image and epoch.

    Attributes:
        shift: largest move in pixels along each axis; what comes in is zero (pad and crop).
        flip: mirror left and right, for half of the images.
        rotate: largest turn in degrees.
        zoom: largest change of size, as a share: 0.1 is 90 % to 110 %.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    shift: Annotated[int, Field(ge=0, le=64)] = 0
    flip: bool = False
    rotate: Annotated[float, Field(ge=0.0, le=180.0)] = 0.0
    zoom: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    @property
    def is_none(self) -> bool:
        return not (self.shift or self.flip or self.rotate or self.zoom)


class Distillation(BaseModel):
    """Learning from a teacher's scores beside the labels (Hinton et al. 2015).

    Attributes:
        alpha: weight of the teacher's part of the loss; the labels get 1 - alpha.
        temperature: softens both score vectors.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha: _Share = 0.5
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 4.0


class TrainConfig(BaseModel):
    """One training run.

    Attributes:
        epochs: passes over the training images; 0 trains nothing.
        batch_size: images a step; an incomplete last batch is left out.
        lr: highest learning rate.
        optimizer: ``sgd`` (Nesterov momentum), ``adam`` or ``adamw``.
        momentum: of ``sgd``.
        weight_decay: on the weights of convolutions and matrices only, never on batch norm,
            biases or scales.
        schedule: of the learning rate, stepped every batch: ``constant``; ``step`` (times ``gamma``
            at each milestone); ``cosine``; ``onecycle`` (linear up, cosine down to nothing).
        warmup: epochs of linear rise before the schedule (share of the run for ``onecycle`` when
            0 is 0.3).
        milestones: for ``step``, shares of the run.
        gamma: for ``step``, the factor at each milestone.
        final_lr: for ``cosine``, where it ends, as a share of ``lr``.
        label_smoothing: share of the target spread over all classes.
        clip_norm: largest norm of the whole gradient; None does not clip.
        keep: which weights the run ends with: those of the epoch that was ``best`` on the
            validation images, or the ``last`` ones.
        augmentation: random changes to the training images.
        distillation: how much to learn from a teacher, when one is given.
        threads: CPU threads; None leaves it to torch. Small networks train fastest on one, and then
            give the same weights on machines with different numbers of cores.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``.
        seed: of everything random in the run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: Annotated[int, Field(ge=0, le=100_000)] = 10
    batch_size: Annotated[int, Field(ge=2, le=65_536)] = 64
    lr: Annotated[float, Field(gt=0.0, le=100.0)] = 1e-3
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    schedule: Literal["constant", "step", "cosine", "onecycle"] = "cosine"
    warmup: Annotated[float, Field(ge=0.0)] = 0.0
    milestones: tuple[_Share, ...] = (0.5, 0.75)
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    final_lr: _Share = 0.0
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    clip_norm: Annotated[float, Field(gt=0.0)] | None = None
    keep: Literal["best", "last"] = "best"
    augmentation: Augmentation = Augmentation()
    distillation: Distillation | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu"
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0

    @model_validator(mode="after")
    def _warmup_fits(self) -> TrainConfig:
        if self.epochs and self.warmup > self.epochs:
            raise ValueError(
                f"warmup ({self.warmup:g} epochs) is longer than the run ({self.epochs}): "
                "shorten warmup along with epochs"
            )
        return self
