# SPDX-License-Identifier: Apache-2.0
"""The work of a study: the float networks of one seed, and the arms of one seed and width.

Each function is a job (see `jobs.run_jobs`): it gets JSON values and a folder of its own, where
it goes on from what an earlier attempt left.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitwright.base.files import atomic_write, regular_bytes
from bitwright.base.folders import remove_folder
from bitwright.explore.changes import recipe_of
from bitwright.pipeline.run_files import digest_of, read_record
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.train.config import Phases, TrainConfig

if TYPE_CHECKING:
    from torch import fx, nn

    from bitwright.train import Evaluation

BASELINE, PTQ, SS, SS_EQUAL, SS_TS, QKD = "baseline", "ptq", "ss", "ss_equal", "ss_ts", "qkd"
ARMS = {
    BASELINE: "float student",
    PTQ: "post-training quantization: calibrated, not trained",
    SS: "self-study: quantization-aware training with labels alone",
    SS_EQUAL: "self-study for as many epochs as the three phases have together",
    SS_TS: "self-study, then tutor-study with the teacher as it came",
    QKD: "self-study, co-study, then tutor-study with the teacher that studied along",
}
RIGHT = "right.npz"
_MOST_MARK = 1 << 10
#: What the process of a job imports, see `jobs.forks`.
PRELOAD = ("torch._dynamo", "bitwright.train.loop", "bitwright.quantize")


def train_float(arguments: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Train the float networks of one seed: the student, and the teacher if the recipe has one.

    Returns:
        What the later jobs depend on: the content of each step's folder.
    """
    from bitwright.pipeline.api import Pipeline

    recipe = recipe_of(arguments)
    pipeline = Pipeline(recipe, folder / "run")
    steps = ["teach", "train"] if recipe.teacher else ["train"]
    content = {}
    for name in steps:
        pipeline.step(name)
        record = read_record(folder / "run" / step_folder(name))
        assert record is not None
        content[name] = record.content
    return content


def train_arms(arguments: Mapping[str, Any], folder: Path) -> dict[str, dict[str, float]]:
    """Measure the wanted arms at the recipe's formats; the float networks are there already.

    Returns:
        For each arm the task's metric on training, validation and test images, and the epochs that
        it was trained in few bits. ``right.npz`` beside it says which test images each arm
        classified correctly, or the metric of each.
    """
    # What the float networks depend on is in the version: their content.
    recipe = arguments["recipe"]
    settings = [recipe["quant"], recipe["train"]["quantized"], recipe["seed"]]
    _forget_others(folder, digest_of([arguments["version"], *settings]))
    bench = _Bench.open(arguments, folder)
    found: dict[str, dict[str, float]] = {}
    right = {}
    for arm in arguments["arms"]:
        model, epochs = bench.trained(arm)
        parts = {
            name: _measured(bench.work, model, name)
            for name in ("train", "validation", "test")
            if len(getattr(bench.work.data, name))
        }
        found[arm] = {name: part.accuracy for name, part in parts.items()} | {"epochs": epochs}
        right[arm] = parts["test"].first.known
    np.savez_compressed(folder / RIGHT, **right)
    return found


def _forget_others(folder: Path, version: str) -> None:
    """Leave nothing in the folder that was trained by other code, from other float networks, or
    with other settings.
    """
    mark = folder / ".version"
    try:
        known = regular_bytes(mark, most=_MOST_MARK)
    except OSError:
        known = b""
    if known != version.encode():
        for place in folder.iterdir():
            if place.is_dir():
                remove_folder(place)
        atomic_write(mark, version)


@dataclass
class _Bench:
    """One student at work: every arm starts from copies of the same networks."""

    work: Workspace
    folder: Path
    phases: Phases
    base: nn.Module
    teacher: nn.Module
    calibrated: fx.GraphModule

    @classmethod
    def open(cls, arguments: Mapping[str, Any], folder: Path) -> _Bench:
        from bitwright.base.progress import no_progress
        from bitwright.pipeline.steps.quantize import calibrated
        from bitwright.pipeline.steps.teacher import taught
        from bitwright.pipeline.steps.train import trained_model

        recipe = recipe_of(arguments)
        work, run = Workspace(recipe), Path(arguments["run"])
        base = trained_model(work, run / step_folder("train"))
        teacher = taught(work, run / step_folder("teach")) if recipe.teacher else base
        phases = recipe.train.quantized
        assert phases is not None
        model = calibrated(work, copy.deepcopy(base), no_progress)
        return cls(work, folder, phases, base, teacher, model)

    def trained(self, arm: str) -> tuple[nn.Module, int]:
        """The network of an arm, as it is measured, and its epochs in few bits."""
        from bitwright.pipeline.steps.quantize import integer_model

        if arm == BASELINE:
            return self.base, 0
        model, epochs = self._quantized(arm)
        return integer_model(self.work, model), epochs

    def _quantized(self, arm: str) -> tuple[fx.GraphModule, int]:
        if arm == PTQ:
            return self.calibrated, 0
        if arm == SS_EQUAL:
            model = copy.deepcopy(self.calibrated)
            return model, self._study(arm, model, Phases(self_study=as_long(self.phases)))
        model, epochs = copy.deepcopy(self.calibrated), 0
        epochs += self._study(SS, model, Phases(self_study=self.phases.self_study))
        if arm == SS_TS:
            epochs += self._study(arm, model, Phases(tutor_study=self.phases.tutor_study))
        if arm == QKD:
            co_study, tutor_study = self.phases.co_study, self.phases.tutor_study
            epochs += self._study(arm, model, Phases(co_study=co_study, tutor_study=tutor_study))
        return model, epochs

    def _study(self, name: str, model: fx.GraphModule, phases: Phases) -> int:
        """Train in the folder of this name; what is there already is loaded."""
        from bitwright.train import study

        teacher = copy.deepcopy(self.teacher) if phases.needs_teacher else None
        study(
            model,
            self.work.data,
            phases,
            run_dir=self.folder / name,
            teacher=teacher,
            task=self.work.task,
        )
        return sum(config.epochs for _, config in phases.present)


def as_long(phases: Phases) -> TrainConfig:
    """Self-study for as many epochs as all phases have together."""
    assert phases.self_study is not None
    epochs = sum(config.epochs for _, config in phases.present)
    fields = phases.self_study.model_dump() | {"epochs": epochs}
    return TrainConfig.model_validate(fields)


def _measured(work: Workspace, model: nn.Module, part: str) -> Evaluation:
    from bitwright.train import evaluate

    return evaluate(model, getattr(work.data, part), task=work.task)
