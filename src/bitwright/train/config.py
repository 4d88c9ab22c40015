# SPDX-License-Identifier: Apache-2.0
"""What a recipe says about training. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from bitwright.base.described import Strict
from bitwright.low_precision.config import LowPrecision
from bitwright.train.incremental import Incremental

_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_GAMMA = 0.1  # of schedules that drop, where a recipe names none


class Distortion(Strict):
    """Random changes of colours, as Darknet trains detectors with (Redmon and Farhadi 2017).

    Attributes:
        hue: largest turn of the hue, either way, as a share of the circle.
        saturation, exposure: largest factor by which saturation and brightness are multiplied, or
            divided.
    """

    hue: Annotated[float, Field(ge=0.0, le=0.5)] = 0.1
    saturation: Annotated[float, Field(ge=1.0, le=10.0)] = 1.5
    exposure: Annotated[float, Field(ge=1.0, le=10.0)] = 1.5


class Augmentation(Strict):
    """Random changes to training images, drawn anew for each image and epoch, in this order. Boxes
    and maps of classes move along with what is on the image.

    Attributes:
        random_resized_crop: None, or the smallest share of an image's area, such as 0.08, that a
            window of random size, proportions (3:4 to 4:3) and place has, which is then resized
            (Szegedy et al. 2015). Of images in files (``data.stream``) it is cut out of the whole
            file.
        jitter: each edge of the image moves in or out by up to this share of the side, and what
            lies between them is resized to the image's size; zero comes in (as Darknet does).
        shift: largest move in pixels along each axis; what comes in is zero (pad and crop).
        flip: mirror left and right, for half of the images.
        rotate: largest turn in degrees, either way.
        zoom: largest change of size, as a share: 0.1 is 90 % to 110 %; done along with the turn.
        distort: other colours, of images with three channels (or one: then exposure alone) whose
            values lie in [0, 1]; ``{}`` takes the usual amounts.
    """

    random_resized_crop: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    jitter: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    shift: Annotated[int, Field(ge=0, le=64)] = 0
    flip: bool = False
    rotate: Annotated[float, Field(ge=0.0, le=180.0)] = 0.0
    zoom: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    distort: Distortion | None = None

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of the changes that are made."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))

    @property
    def moving(self) -> tuple[str, ...]:
        """Those that move what is on an image."""
        return tuple(name for name in self.asked if name != "distort")

    @property
    def is_none(self) -> bool:
        return not self.asked


class FeaturePair(Strict):
    """A layer of the student that learns from a layer of the teacher.

    Attributes:
        kind: how the two outputs are compared. ``hint``: the student's, through a 1 x 1
            convolution (or a matrix, for vectors) that is trained along and thrown away, against
            the teacher's (Romero et al. 2015, FitNets); ``attention``: where both look, whatever
            their channels mean (Zagoruyko and Komodakis 2017); ``embedding``: as they are, for
            outputs of the same shape.
        student, teacher: paths of the layers, as ``named_modules()`` gives them; a path of the
            float student holds for the quantized one too.
        weight: of this part beside the loss on labels and scores.
    """

    kind: Literal["hint", "attention", "embedding"]
    student: Annotated[str, Field(min_length=1)]
    teacher: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0


class Distillation(Strict):
    """Learning from a teacher's scores beside the labels (Hinton et al. 2015).

    Attributes:
        alpha: weight of the teacher's part of the loss; the labels get 1 - alpha. With 1 no label
            is looked at, so images without labels do.
        temperature: softens both score vectors.
        form: of the teacher's part: ``kl`` (divergence from the teacher's probabilities) or ``ce``
            (cross entropy with them). They differ by the entropy of the teacher's probabilities,
            which no weight of the student changes: their gradients are equal.
        reduction: ``batchmean`` sums over classes and averages over images, as the formula says;
            ``mean`` averages over both, as a widely used public implementation of Hinton's loss
            does, which makes the teacher's part smaller by the number of classes.
        outputs: ``fresh``: the teacher sees each batch as the student does. ``cached``: its scores
            are computed once, for the images as they are; refused together with augmentation,
            as the student then sees other images. ``cached_plain``: as ``cached``, and with
            augmentation the scores of the unchanged image hold for the changed one.
        features: layers that learn from layers, beside the scores.
    """

    alpha: _Share = 0.5
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 4.0
    form: Literal["kl", "ce"] = "kl"
    reduction: Literal["batchmean", "mean"] = "batchmean"
    outputs: Literal["fresh", "cached", "cached_plain"] = "fresh"
    features: tuple[FeaturePair, ...] = ()

    @property
    def is_cached(self) -> bool:
        return self.outputs != "fresh"

    @model_validator(mode="after")
    def _features_need_the_teacher(self) -> Distillation:
        if self.is_cached and self.features:
            raise ValueError(
                f"outputs: {self.outputs} keeps the teacher's scores alone; "
                "features need outputs: fresh"
            )
        return self


class PeerTraining(Strict):
    """How the second network of a co-study learns; what is None is as for the first one.

    Attributes:
        lr: highest learning rate; it follows the first network's schedule and warm-up.
        optimizer, momentum, nesterov, weight_decay: as in `TrainConfig`.
        distillation: how much it learns from the first network's scores; what these settings leave
            out has its default.
    """

    lr: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    optimizer: Literal["sgd", "asgd", "adam", "adamw"] | None = None
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    nesterov: bool | None = None
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    distillation: Distillation | None = None

    @model_validator(mode="after")
    def _scores_alone(self) -> PeerTraining:
        if self.distillation is not None and (
            self.distillation.features or self.distillation.is_cached
        ):
            raise ValueError("a peer learns from fresh scores alone: remove features and outputs")
        return self


class TrainConfig(Strict):
    """One training run.

    Attributes:
        epochs: passes over the training images; 0 trains nothing.
        batch_size: images a step; an incomplete last batch is left out.
        lr: highest learning rate.
        optimizer: ``sgd``, ``asgd`` (averaged SGD), ``adam`` or ``adamw``.
        momentum: of ``sgd``.
        nesterov: of ``sgd``: the gradient is taken ahead (Sutskever et al. 2013); without momentum
            there is nothing to look ahead along.
        weight_decay: pull towards zero: that share of the weight is added to its gradient
            (``adamw``: taken off the weight).
        weight_decay_on: ``weights`` of convolutions and matrices only, never batch norm, biases or
            scales; or ``all`` parameters.
        schedule: of the learning rate, see `train.schedule`: ``constant``; ``step`` (times
            ``gamma`` at each milestone, or every ``every`` epochs); ``time`` (1 / (1 + decay
            * epoch)); ``exponential`` (exp(-decay * epoch)); ``plateau`` (times ``gamma`` when
            the validation loss has not fallen for ``patience`` epochs); ``cosine``; ``onecycle``
            (linear up, cosine down to nothing).
        warmup: epochs of linear rise, batch by batch (share of the run for ``onecycle`` when 0 is
            0.3).
        milestones: for ``step``: below 1 a share of the run, from 1 on an epoch.
        every: for ``step``, instead of milestones: epochs from drop to drop.
        gamma: for ``step`` and ``plateau``, the factor at each drop; 0.1 if neither this nor
            ``divisor`` is given.
        divisor: the same said the other way round: 5 is a gamma of 1/5.
        decay: for ``time`` and ``exponential``, by epoch.
        patience: for ``plateau``.
        final_lr: for ``cosine``, where it ends, as a share of ``lr``.
        loss: on the labels: cross entropy (``ce``), ``squared_hinge`` (of scores against +1 and
            -1), or on the probabilities ``kld``, ``mse``, ``msle``, ``mae``; see `train.loss`.
        label_smoothing: share of the target spread over all classes.
        clip_norm: largest norm of the whole gradient; None does not clip.
        keep: which weights the run ends with: those of the epoch that was ``best`` on the
            validation images, or the ``last`` ones.
        augmentation: random changes to the training images.
        distillation: how much to learn from a teacher, when one is given.
        peer: in a co-study, what is different for the second network.
        incremental: bits that fall, or weights that are fixed portion by portion, while the student
            trains.
        low_precision: formats in which the products of training run, and who changes them
            meanwhile; its policy may also rule the learning rate, which is then ``constant``
            otherwise.
        ema: None, or the decay of a moving average of the weights, such as 0.999; the average is
            then what is validated and kept.
        freeze_norms: None, or the share of the run after which the statistics of batch norms stay
            as they are: they are what the network then trains with, as in use, instead of those of
            each batch; factor and offset are trained on (Krishnamoorthi 2018, section 3.2). 0: from
            the first step on, for quantization after a float training.
        precision: 32 bits; or ``bf16`` or ``16`` where that is safe (mixed precision).
        threads: CPU threads; None leaves it to torch. Small networks train fastest on one, and then
            give the same weights on machines with different numbers of cores.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``.
        devices: how many of them; each takes a share of every batch.
        seed: of everything random in the run.
    """

    epochs: Annotated[int, Field(ge=0, le=100_000)] = 10
    batch_size: Annotated[int, Field(ge=2, le=65_536)] = 64
    lr: Annotated[float, Field(gt=0.0, le=100.0)] = 1e-3
    optimizer: Literal["sgd", "asgd", "adam", "adamw"] = "adamw"
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    nesterov: bool = True
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    weight_decay_on: Literal["weights", "all"] = "weights"
    schedule: Literal[
        "constant", "step", "time", "exponential", "plateau", "cosine", "onecycle"
    ] = "cosine"
    warmup: Annotated[float, Field(ge=0.0)] = 0.0
    milestones: tuple[Annotated[float, Field(gt=0.0)], ...] = (0.5, 0.75)
    every: Annotated[int, Field(ge=1)] | None = None
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    divisor: Annotated[float, Field(ge=1.0, le=1e6)] | None = None
    decay: Annotated[float, Field(ge=0.0, le=100.0)] = 0.1
    patience: Annotated[int, Field(ge=0, le=10_000)] = 10
    final_lr: _Share = 0.0
    loss: Literal["ce", "squared_hinge", "kld", "mse", "msle", "mae"] = "ce"
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    clip_norm: Annotated[float, Field(gt=0.0)] | None = None
    keep: Literal["best", "last"] = "best"
    augmentation: Augmentation = Augmentation()
    distillation: Distillation | None = None
    peer: PeerTraining | None = None
    incremental: Incremental | None = None
    low_precision: LowPrecision | None = None
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    freeze_norms: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    precision: Literal["32", "bf16", "16"] = "32"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu"
    devices: Annotated[int, Field(ge=1, le=64)] = 1
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0

    @property
    def drop(self) -> float:
        """The factor at each drop of ``step`` and ``plateau``."""
        if self.divisor is not None:
            return 1 / self.divisor
        return _GAMMA if self.gamma is None else self.gamma

    @model_validator(mode="before")
    @classmethod
    def _rate_of_the_policy(cls, fields: Any) -> Any:
        """Where the precision policy rules the learning rate, the schedule is constant."""
        given = fields.get("low_precision") if isinstance(fields, Mapping) else None
        if given is None or "schedule" in fields:
            return fields
        try:
            settings = LowPrecision.model_validate(given)
        except ValidationError:
            return fields  # said again where the field itself is read
        return {**fields, "schedule": "constant"} if settings.policy.rules_rate else fields

    @field_validator("precision", mode="before")
    @classmethod
    def _bits_as_text(cls, value: Any) -> Any:
        return str(value) if type(value) is int else value

    @model_validator(mode="after")
    def _epochs_fit(self) -> TrainConfig:
        if self.gamma is not None and self.divisor is not None:
            raise ValueError("give gamma or divisor, not both: divisor 5 is gamma 0.2")
        late = [place for place in self.milestones if place >= 1 and place >= self.epochs > 0]
        if late:
            raise ValueError(
                f"the milestone at epoch {late[0]:g} is past the end of the run "
                f"({self.epochs} epochs): it would never be reached; milestones below 1 are shares "
                "of the run and go along with epochs"
            )
        if self.every is not None and self.every >= self.epochs > 0:
            raise ValueError(
                f"every: {self.every} epochs is past the end of the run ({self.epochs} epochs): "
                "the rate would never drop"
            )
        if self.epochs and self.warmup > self.epochs:
            raise ValueError(
                f"warmup ({self.warmup:g} epochs) is longer than the run ({self.epochs}): "
                "shorten warmup along with epochs"
            )
        if self.freeze_norms and self.epochs and not self.norms_frozen(self.epochs - 1):
            raise ValueError(
                f"freeze_norms: {self.freeze_norms:g} of {self.epochs} epochs is past the last "
                f"one's beginning; at most {1 - 1 / self.epochs:.3g} takes effect"
            )
        return self

    @model_validator(mode="after")
    def _networks_fit(self) -> TrainConfig:
        learned = self.distillation
        if learned and learned.outputs == "cached" and not self.augmentation.is_none:
            raise ValueError(
                "distillation.outputs: cached are the teacher's scores of the images as they are, "
                "but augmentation changes them; use outputs: fresh, or cached_plain if the scores "
                "of the unchanged images will do"
            )
        if self.devices > 1 and self.batch_size % self.devices:
            raise ValueError(
                f"batch_size ({self.batch_size}) must be a multiple of devices ({self.devices}): "
                "each takes an equal share of every batch"
            )
        if self.peer is not None and self.distillation is None:
            raise ValueError(
                "peer is for a co-study, whose networks learn from each other's scores: "
                "give distillation as well"
            )
        return self

    @model_validator(mode="after")
    def _low_precision_fits(self) -> TrainConfig:
        settings = self.low_precision
        if settings is None:
            return self
        settings.check_epochs(self.epochs)
        if settings.policy.rules_rate and self.schedule != "constant":
            raise ValueError(
                f"schedule: {self.schedule} and low_precision.policy: {settings.policy.kind} both "
                "rule the learning rate; leave schedule out (low_precision.lr_every and lr_divisor "
                "say how it falls)"
            )
        if self.incremental is not None:
            raise ValueError(
                "incremental changes a network with quantizers, low_precision how a plain one is "
                "trained: use one of the two"
            )
        return self

    @model_validator(mode="after")
    def _stages_fit(self) -> TrainConfig:
        if self.incremental is None:
            return self
        self.incremental.check_epochs(self.epochs)
        if self.incremental.portions and self.ema is not None:
            raise ValueError(
                "incremental.portions fixes weights, and ema would move them on average: "
                "use one of the two"
            )
        return self

    def norms_frozen(self, epoch: int) -> bool:
        """Whether the statistics of batch norms stay in an epoch, counted from 0."""
        return self.freeze_norms is not None and epoch >= self.freeze_norms * self.epochs - 1e-6

    @property
    def labels_unused(self) -> bool:
        """Whether everyone learns from scores alone, so that images without labels do."""
        everyone = [self] if self.peer is None else [self, self.for_peer()]
        learned = [each.distillation for each in everyone]
        return all(each is not None and each.alpha == 1 for each in learned)

    def for_peer(self) -> TrainConfig:
        """The settings of the second network of a co-study."""
        given = {} if self.peer is None else dict(self.peer)
        changed = {name: value for name, value in given.items() if value is not None}
        return self.model_copy(update={**changed, "peer": None, "incremental": None})


PHASES = ("self_study", "co_study", "tutor_study")


class Phases(Strict):
    """Training in few bits, phase by phase (quantization-aware knowledge distillation, Kim et al.
    2019); a phase that is None is left out. The settings of a `TrainConfig` stand for one phase.

    Attributes:
        self_study: the student learns from the labels alone.
        co_study: student and teacher learn at the same time, each from the other's scores too.
        tutor_study: the student learns from the scores of a teacher that learns no more.
    """

    self_study: TrainConfig | None = None
    co_study: TrainConfig | None = None
    tutor_study: TrainConfig | None = None

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
    def _fill_in(cls, fields: Any) -> Any:
        """Settings without the name of a phase are those of the only one, with a teacher if they
        say how to learn from one; phases with a teacher learn from its scores by default.
        """
        if not isinstance(fields, Mapping):
            return fields
        if fields and not any(name in fields for name in PHASES):
            taught = fields.get("distillation") is not None
            return {"tutor_study" if taught else "self_study": fields}
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
        for name, config in self.present[:-1]:
            if config.incremental is not None and config.incremental.portions:
                raise ValueError(
                    f"{name} would end with all weights fixed (incremental.portions), and the "
                    "phases behind it could not train them: put it into the last phase"
                )
        if self.self_study is not None and self.self_study.distillation is not None:
            raise ValueError("self_study has no teacher: its distillation belongs to tutor_study")
        for name, config in self.present:
            if name != "self_study" and config.distillation is None:
                raise ValueError(f"{name} needs distillation: it learns from scores")
            if name != "co_study" and config.peer is not None:
                raise ValueError(f"{name} trains one network: peer belongs to co_study")
        return self
