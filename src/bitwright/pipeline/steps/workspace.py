# SPDX-License-Identifier: Apache-2.0
"""What the steps of one run share: the recipe, the data (loaded once), fresh models, the policy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.files import sha256_file
from bitwright.data import DataSplits, load_dataset
from bitwright.pipeline.recipe import Recipe, TeacherSection
from bitwright.pipeline.run import Progress, no_progress
from bitwright.pipeline.steps.fingerprint import (
    code_version,
    data_version,
    importable,
    model_version,
)
from bitwright.pipeline.steps.shipped import check_unseen, shipped
from bitwright.quantize.policy import Policy

if TYPE_CHECKING:
    from torch import nn

    from bitwright.models import ModelSpec, Pretrained
    from bitwright.train.teacher_outputs import TeacherOutputs

_COMMON = ("formats", "base/figures.py", "base/files.py", "pipeline/run_files.py")
_CODE = {
    "teach": (
        "data",
        "models",
        "low_precision",
        "train",
        "pipeline/steps/teach.py",
        "pipeline/steps/train.py",
    ),
    "train": (
        "data",
        "models",
        "low_precision",
        "train",
        "pipeline/steps/train.py",
        "pipeline/steps/shipped.py",
    ),
    "quantize": (
        "quantize",
        "low_precision",
        "train",
        "pipeline/steps/quantize.py",
        "pipeline/steps/train.py",
    ),
    "lower": ("ir", "lower", "quantize", "pipeline/steps/lower.py"),
    "map": ("hw", "rtl", "ir", "build/targets", "build/target.py", "pipeline/steps/map.py"),
    "simulate": ("sim", "ir", "hw", "base/tools", "pipeline/steps/simulate.py"),
    "implement": ("build", "base/tools", "pipeline/steps/implement.py"),
    "report": ("report", "ir", "build/energy.py", "build/energy.toml", "pipeline/steps"),
}
STEP_NAMES = tuple(_CODE)
"""All steps; the first one is there only where a recipe names a teacher, so it has number 0."""


def step_folder(name: str) -> str:
    """Name of a step's folder inside a run directory."""
    return f"{STEP_NAMES.index(name):02d}-{name}"


@dataclass
class Workspace:
    """One recipe at work.

    Attributes:
        recipe: what to do.
        progress: called during slow work.
    """

    recipe: Recipe
    progress: Progress = no_progress

    @cached_property
    def data(self) -> DataSplits:
        """The data set, loaded when first needed."""
        return load_dataset(self.recipe.data, None, self.recipe.seed, progress=self.progress)

    @cached_property
    def policy(self) -> Policy:
        """What becomes of each operand: as the model's file says, if it does, then the recipe."""
        from bitwright.interop.model_files import formats_from_spec

        given: dict[str, Any] = {}
        if self.recipe.model.is_file:
            given = formats_from_spec(self.recipe.model, self.data.image_shape)
        return Policy.from_dict({**given, **self.recipe.quant})

    @property
    def module_folders(self) -> tuple[Path, ...]:
        """Where the user's own modules are looked for: beside the recipe, then where they stand."""
        return (self.recipe.base_dir, Path.cwd())

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image, as torch models take it."""
        height, width, channels = self.data.image_shape
        return channels, height, width

    @cached_property
    def shipped(self) -> Pretrained | None:
        """The checkpoint that stands for the float training; None: it is trained here."""
        return shipped(self.recipe, self.data)

    @property
    def step_names(self) -> tuple[str, ...]:
        """The steps of this recipe, in order."""
        return STEP_NAMES if self.recipe.teacher else STEP_NAMES[1:]

    def fresh_model(self) -> nn.Module:
        """The float model with its first weights."""
        return self._built(self.recipe.model, self.recipe.seed)

    def fresh_teachers(self) -> tuple[nn.Module, ...]:
        """The teachers that the recipe names, with their first weights, or those that it gives."""
        return tuple(
            self._built(entry.model, self.recipe.seed if entry.train is None else entry.train.seed)
            for entry in self.recipe.teacher
            if entry.model is not None
        )

    def teacher_logits(self) -> TeacherOutputs | None:
        """The scores that the recipe names instead of a teacher, checked against the data."""
        from bitwright.train.teacher_outputs import read_outputs

        for entry in self.recipe.teacher:
            if entry.logits is not None:
                outputs = read_outputs(entry.logits)
                outputs.of(self.data.train, str(entry.logits))
                return outputs
        return None

    def _built(self, spec: ModelSpec, seed: int) -> nn.Module:
        from bitwright.interop.model_files import model_from_spec

        check_unseen(spec, self.data)
        with importable(self.module_folders):
            return model_from_spec(
                spec, self.data.num_classes, self.data.image_shape, seed=seed, data=self.data.name
            )

    def _version(self, spec: ModelSpec) -> str:
        """Hash of what a model is read from: the user's code, files, pretrained weights."""
        taken = check_unseen(spec, self.data)
        return taken.sha256 if taken else model_version(spec, self.module_folders)

    def _teacher_version(self, section: TeacherSection) -> str:
        if section.model is not None:
            return self._version(section.model)
        assert section.logits is not None
        return sha256_file(section.logits)

    def facts(self) -> dict[str, Any]:
        """Everything that steps depend on, by the names that `Step.facts` uses."""
        fields = self.recipe.resolved()
        hardware = fields["hardware"]
        folding = self.recipe.hardware.folding_config_file
        splits = self.data
        mapping = {key: value for key, value in hardware.items() if key != "folding_config_file"}
        return {
            "name": self.recipe.name,
            "seed": self.recipe.seed,
            "data": [_which_images(fields["data"]), data_version(splits)],
            "model": [fields["model"] | {"weights": None}, self._version(self.recipe.model)],
            "teacher": [
                fields["teacher"],
                [self._teacher_version(entry) for entry in self.recipe.teacher],
            ],
            "train.float": fields["train"]["float"],
            "pretrained": None if self.shipped is None else self.shipped.sha256,
            "train.quantized": fields["train"]["quantized"],
            "quant": fields["quant"],
            "hardware": [mapping, folding.read_text() if folding is not None else None],
            "simulate": fields["simulate"],
            "implement": fields["implement"],
            "report": fields["report"],
            "description": fields["description"],
            "python": list(sys.version_info[:2]),
            **{f"code:{name}": code_version(*_COMMON, *parts) for name, parts in _CODE.items()},
        }


def _which_images(data: dict[str, Any]) -> dict[str, Any]:
    """A recipe's section ``data`` without what says where and how fast images are read."""
    if data["stream"] is not None:
        data = data | {"stream": data["stream"] | {"threads": None, "ahead": None}}
    return data | {"path": None, "unlabelled": None}
