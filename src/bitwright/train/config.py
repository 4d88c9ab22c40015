# SPDX-License-Identifier: Apache-2.0
"""What a recipe says about training. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

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


class PeerTraining(BaseModel):
    """How the second network of a co-study learns; what is None is as for the first one.

    Attributes:
        lr: highest learning rate; it follows the first network's schedule and warm-up.
        optimizer, momentum, weight_decay: as in `TrainConfig`.
        distillation: how much it learns from the first network's scores.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    distillation: Distillation | None = None


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
        peer: in a co-study, what is different for the second network.
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
    peer: PeerTraining | None = None
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

    @model_validator(mode="after")
    def _peer_learns_from_scores(self) -> TrainConfig:
        if self.peer is not None and self.distillation is None:
            raise ValueError(
                "peer is for a co-study, whose networks learn from each other's scores: "
                "give distillation as well"
            )
        return self

    def for_peer(self) -> TrainConfig:
        """The settings of the second network of a co-study."""
        given = {} if self.peer is None else dict(self.peer)
        changed = {name: value for name, value in given.items() if value is not None}
        return self.model_copy(update={**changed, "peer": None})


PHASES = ("self_study", "co_study", "tutor_study")


class Phases(BaseModel):
    """Training in few bits, phase by phase (quantization-aware knowledge distillation, Kim et al.
    2019); a phase that is None is left out.

    Attributes:
        self_study: the student learns from the labels alone.
        co_study: student and teacher learn at the same time, each from the other's scores too.
        tutor_study: the student learns from the scores of a teacher that learns no more.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    self_study: TrainConfig | None = None
    co_study: TrainConfig | None = None
    tutor_study: TrainConfig | None = None

    @classmethod
    def of(cls, config: TrainConfig) -> Phases:
        """One phase: with a teacher if the settings say how to learn from one."""
        if config.distillation is None:
            return cls(self_study=config)
        return cls(tutor_study=config)

    @property
    def present(self) -> tuple[tuple[str, TrainConfig], ...]:
        """Names and settings of the phases that there are, in order."""
        found = ((name, getattr(self, name)) for name in PHASES)
        return tuple((name, config) for name, config in found if config is not None)

    @property
    def needs_teacher(self) -> bool:
        return self.co_study is not None or self.tutor_study is not None

    @model_validator(mode="before")
    @classmethod
    def _distil_by_default(cls, fields: Any) -> Any:
        """The phases with a teacher learn from its scores, by the default settings if need be."""
        if not isinstance(fields, Mapping):
            return fields
        return {
            name: {"distillation": {}, **phase}
            if name in PHASES[1:] and isinstance(phase, Mapping)
            else phase
            for name, phase in fields.items()
        }

    @model_validator(mode="after")
    def _roles_fit(self) -> Phases:
        if not self.present:
            raise ValueError(f"names no phase; give at least one of {', '.join(PHASES)}")
        if self.self_study is not None and self.self_study.distillation is not None:
            raise ValueError("self_study has no teacher: its distillation belongs to tutor_study")
        for name, config in self.present:
            if name != "self_study" and config.distillation is None:
                raise ValueError(f"{name} needs distillation: it learns from scores")
            if name != "co_study" and config.peer is not None:
                raise ValueError(f"{name} trains one network: peer belongs to co_study")
        return self
