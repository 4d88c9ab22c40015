# SPDX-License-Identifier: Apache-2.0
"""The sections of a recipe, and what must hold between them.

What configures a part of the package is checked by that part: data sets (`data.spec`), models
(`models.catalog`), policies (`quantize.policy`), training (`train.config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from bitwright.base.errors import RecipeError
from bitwright.data.spec import DatasetSpec
from bitwright.low_precision.config import AS_TRAINED, formats_as_trained
from bitwright.models.catalog import ModelSpec
from bitwright.pipeline.recipe_hardware import Count, HardwareSection, Section, described_by
from bitwright.quantize.presets import without_preset
from bitwright.tasks.catalog import TaskSpec
from bitwright.train.config import Phases, TrainConfig


def name_alone(value: Any) -> Any:
    """A section that is given as a name alone."""
    return {"name": value} if isinstance(value, str) else value


class TrainSection(Section):
    """Training in floating point, then training of the quantized model.

    Attributes:
        float_: settings of the float phase (key ``float``).
        quantized: settings of training in few bits, of one phase or phase by phase; None means
            post-training quantization only.
        pretrained: take the float network that comes with the package, where it is the result of
            just this training (model, data, seed and settings); else it is trained here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    float_: TrainConfig = Field(default=TrainConfig(), alias="float")
    quantized: Phases | None = None
    pretrained: bool = False

    @model_validator(mode="after")
    def _one_network(self) -> TrainSection:
        if self.float_.peer is not None:
            raise ValueError("float trains one network: peer belongs to quantized.co_study")
        if self.float_.incremental is not None:
            raise ValueError("float has no bits to lower: incremental belongs to quantized")
        if self.quantized and any(phase.low_precision for _, phase in self.quantized.present):
            raise ValueError("quantizers have formats of their own: low_precision belongs to float")
        return self


class TeacherSection(Section):
    """A float model whose scores the student learns, or the scores alone.

    Attributes:
        model: which one, and the weights it starts from.
        train: how it is trained first; None takes the weights as they are.
        logits: instead of a model: file of the scores of the training images, computed elsewhere
            (`train.teacher_outputs.write_outputs`).
    """

    model: Annotated[ModelSpec | None, BeforeValidator(name_alone)] = None
    train: TrainConfig | None = None
    logits: Path | None = None

    @model_validator(mode="after")
    def _knows_something(self) -> TeacherSection:
        if (self.model is None) == (self.logits is None):
            raise ValueError("give either model or logits")
        if self.model is None:
            if self.train is not None:
                raise ValueError("logits are no network that could be trained: remove train")
            return self
        if self.train is None and self.model.weights is None and not self.model.files:
            raise ValueError("has neither weights nor training: give model.weights or train")
        if self.train is not None and self.train.distillation is not None:
            raise ValueError("a teacher has no teacher of its own: remove train.distillation")
        if self.train is not None and self.train.incremental is not None:
            raise ValueError("a teacher has no bits to lower: remove train.incremental")
        return self


#: Of simulations: hours of them, in a settings file of a few bytes.
Images = Annotated[Count, Field(le=1_000_000)]


class SimulateSection(Section):
    """How much of the proof to run.

    Attributes:
        images: held-out images to simulate, or ``all``.
        stall_images: how many of them again with random stalls on both sides.
        stall_probability: chance of a stall in a cycle, on each side.
    """

    images: Images | Literal["all"] = "all"
    stall_images: Images = Field(
        default=20, validation_alias=AliasChoices("stall_images", "stalls")
    )
    stall_probability: Annotated[float, Field(ge=0.01, le=0.99)] = 0.5


class ImplementSection(Section):
    """How hard to try.

    Attributes:
        seeds: placement seeds to try; the fastest result that meets the clock is kept.
        board: name or TOML file of the board that the bitstream is for; None: the target's own.
        timeout_s: longest time that one tool may take, in seconds.
    """

    seeds: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    board: str | None = None
    timeout_s: Annotated[float, Field(gt=0, le=24 * 3600)] = 1200.0

    def facts(self) -> dict[str, Any]:
        """What a placement depends on, for keys: with what a board's own file says for its name.

        Raises:
            DataError: that file cannot be read.
        """
        fields = self.model_dump(mode="json")
        return fields | {"board": self.board and described_by(self.board)}


class ReportSection(Section):
    """What the page shows.

    Attributes:
        sample_images: held-out images drawn with their predictions.
        cpu_threads: threads of the CPU baseline.
    """

    sample_images: Annotated[int, Field(ge=0, le=200, strict=True)] = 24
    cpu_threads: Annotated[int, Field(ge=1, le=256, strict=True)] = 1


class Recipe(Section):
    """Everything a run needs; see the commented ``recipes/digits.yaml``.

    Attributes:
        name: of the run: its results go to ``runs/NAME``.
        description: one line for ``bitwright list recipes`` and the report.
        seed: of everything random, unless a section has its own.
        data: what is learned and measured on; a name alone has the defaults.
        model: the network; a name alone has the defaults.
        task: what the network is for: what labels are, what it must give, loss and metrics; a name
            alone has the defaults.
        quant: the policy: which operand of which layer gets which format; the name of a preset; or
            ``as_trained``: the lowest level of ``train.float.low_precision``.
        teacher: who teaches, a section or a list of them; several are an ensemble, none is the
            student's own float self.
        train: how it is trained.
        hardware: what it is built for.
        simulate: how much of the proof is run.
        implement: how hard place and route tries.
        report: what the page shows.
        base_dir: folder of the recipe file: relative paths and the user's own modules start here.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    data: Annotated[DatasetSpec, BeforeValidator(name_alone)]
    model: Annotated[ModelSpec, BeforeValidator(name_alone)]
    task: Annotated[TaskSpec, BeforeValidator(name_alone)] = TaskSpec()
    quant: dict[str, Any] = Field(default_factory=dict)
    teacher: tuple[TeacherSection, ...] = ()
    train: TrainSection = TrainSection()
    hardware: HardwareSection = HardwareSection()
    simulate: SimulateSection = SimulateSection()
    implement: ImplementSection = ImplementSection()
    report: ReportSection = ReportSection()
    base_dir: Path = Field(default=Path(), exclude=True)

    @field_validator("teacher", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        if value is None:
            return ()
        return [value] if isinstance(value, Mapping) else value

    @model_validator(mode="before")
    @classmethod
    def _formats_of_training(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or fields.get("quant") != AS_TRAINED:
            return fields
        low = TrainSection.model_validate(fields.get("train") or {}).float_.low_precision
        if low is None:
            raise ValueError(f"quant: {AS_TRAINED} needs train.float.low_precision")
        return {**fields, "quant": formats_as_trained(low)}

    @field_validator("quant", mode="before")
    @classmethod
    def _preset_written_out(cls, value: Any) -> Any:
        try:
            return without_preset(value)
        except RecipeError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error

    @model_validator(mode="after")
    def _float_teacher(self) -> Recipe:
        if self.train.float_.distillation is not None and not self.teacher:
            raise ValueError(
                "train.float.distillation asks for a teacher, and there is no section teacher"
            )
        return self

    @model_validator(mode="after")
    def _logits_serve(self) -> Recipe:
        if all(entry.logits is None for entry in self.teacher):
            return self
        if len(self.teacher) > 1:
            raise ValueError("teacher.logits stand for the only teacher, not for one of several")
        study = self.train.quantized
        if study is not None and study.co_study is not None:
            raise ValueError("co_study trains the teacher, and teacher.logits are none")
        for config in (self.train.float_, study.tutor_study if study is not None else None):
            learned = config.distillation if config is not None else None
            if learned is not None and not learned.is_cached:
                raise ValueError(
                    "teacher.logits are the scores of the images as they are: "
                    "set distillation.outputs to cached"
                )
        return self

    def resolved(self) -> dict[str, Any]:
        """The recipe with every default filled in, as plain YAML values."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        """The resolved recipe as a YAML file."""
        return yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True)
