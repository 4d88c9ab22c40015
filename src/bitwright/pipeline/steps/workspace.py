# SPDX-License-Identifier: Apache-2.0
"""What the steps of one run share: the recipe, the data (loaded once), fresh models, the policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.progress import Progress, no_progress
from bitwright.base.trust import importable, module_folders
from bitwright.data import DataSplits, load_dataset
from bitwright.pipeline.steps.names import STEP_NAMES
from bitwright.pipeline.steps.shipped import check_unseen, shipped
from bitwright.quantize.policy import Policy
from bitwright.tasks.catalog import labels_of

if TYPE_CHECKING:
    from torch import nn

    from bitwright.models import ModelSpec, Pretrained
    from bitwright.models.output import Output
    from bitwright.pipeline.recipe_schema import Recipe
    from bitwright.tasks import Task
    from bitwright.train.teacher_outputs import TeacherOutputs


@dataclass
class Workspace:
    """One recipe at work.

    Attributes:
        recipe: what to do.
        progress: called during slow work.
        searching: a design that misses its rate is folded again.
    """

    recipe: Recipe
    progress: Progress = no_progress
    searching: bool = False

    @cached_property
    def data(self) -> DataSplits:
        """The data set, loaded when first needed."""
        kind = labels_of(self.recipe.task)
        kind = self._task.labels if kind is None else kind
        with importable(self.recipe.base_dir):
            return load_dataset(
                self.recipe.data, None, self.recipe.seed, labels=kind, progress=self.progress
            )

    @cached_property
    def task(self) -> Task:
        """What the network is for, with what it takes from the training data."""
        from bitwright.tasks import Task

        takes_nothing = type(self._task).fitted is Task.fitted
        return self._task if takes_nothing else self._task.fitted(self.data)

    @cached_property
    def _task(self) -> Task:
        """As the recipe names it."""
        from bitwright.tasks.factory import make_task

        with importable(self.recipe.base_dir):
            return make_task(self.recipe.task)

    @cached_property
    def output(self) -> Output:
        """What the network must give for an image."""
        return self.task.output(self.data)

    @property
    def num_classes(self) -> int | None:
        """What a model is told of the number of classes: of a vector its values."""
        is_vector = len(self.output.shape) == 1
        found: int | None = self.output.size if is_vector else self.data.num_classes
        return found

    @cached_property
    def quant(self) -> dict[str, Any]:
        """The section ``quant``: what the model's file says, if it does, then the recipe. Where
        neither speaks of the input, it takes the levels of the data as they are.
        """
        from bitwright.interop.model_files import formats_from_spec

        given: dict[str, Any] = {}
        if (levels := self.data.input_format) is not None:
            given = {"input": {"format": levels, "scale": "const", "value": self.data.scale}}
        if self.recipe.model.is_file:
            given |= formats_from_spec(self.recipe.model, self.num_classes, self.data.image_shape)
        return {**given, **self.recipe.quant}

    @cached_property
    def policy(self) -> Policy:
        """What becomes of each operand."""
        with importable(self.recipe.base_dir):
            return Policy.from_dict(self.quant)

    @property
    def module_folders(self) -> tuple[Path, ...]:
        """Where the user's own modules are looked for: beside the recipe, then where they stand."""
        return module_folders(self.recipe.base_dir)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of one input as torch models take it: (C, H, W), (C, L) or (F,)."""
        shape: tuple[int, ...] = self.data.sample_shape
        return shape

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
                outputs.of(self.data.train, str(entry.logits), self.output)
                return outputs
        return None

    def _built(self, spec: ModelSpec, seed: int) -> nn.Module:
        from bitwright.interop.model_files import model_from_spec

        check_unseen(spec, self.data)
        with importable(self.recipe.base_dir):
            return model_from_spec(
                spec,
                self.num_classes,
                self.data.image_shape,
                seed=seed,
                data=self.data.name,
                output=self.output,
            )
