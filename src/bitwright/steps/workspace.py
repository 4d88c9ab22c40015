# SPDX-License-Identifier: Apache-2.0
"""What the steps of one run share: the recipe, the data (loaded once), fresh models, the policy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.data import DataSplits, load_dataset
from bitwright.quant.policy import Policy
from bitwright.recipe import Recipe
from bitwright.run import Progress, no_progress
from bitwright.steps.fingerprint import code_version, data_version, importable, model_version

if TYPE_CHECKING:
    from torch import nn

_COMMON = ("formats", "figures.py", "files.py", "run_files.py")
_CODE = {
    "train": ("data", "models", "train", "steps/train.py"),
    "quantize": ("quant", "train", "steps/quantize.py", "steps/train.py"),
    "lower": ("ir", "lower", "quant", "steps/lower.py"),
    "map": ("hw", "rtl", "ir", "build/targets", "build/target.py", "steps/map.py"),
    "simulate": ("sim", "ir", "hw", "tools", "steps/simulate.py"),
    "implement": ("build", "tools", "steps/implement.py"),
    "report": ("report", "ir", "build/energy.py", "build/energy.toml", "steps"),
}
STEP_NAMES = tuple(_CODE)


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
        """What becomes of each operand."""
        return Policy.from_dict(self.recipe.quant)

    @property
    def module_folders(self) -> tuple[Path, ...]:
        """Where the user's own modules are looked for: beside the recipe, then where they stand."""
        return (self.recipe.base_dir, Path.cwd())

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image, as torch models take it."""
        height, width, channels = self.data.image_shape
        return channels, height, width

    def fresh_model(self) -> nn.Module:
        """The float model with its first weights."""
        from bitwright.models import build_model

        with importable(self.module_folders):
            return build_model(
                self.recipe.model,
                self.data.num_classes,
                self.data.image_shape,
                seed=self.recipe.seed,
            )

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
            "data": [fields["data"] | {"path": None}, data_version(splits)],
            "model": [
                fields["model"] | {"weights": None},
                model_version(self.recipe.model, self.module_folders),
            ],
            "train.float": fields["train"]["float"],
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
