# SPDX-License-Identifier: Apache-2.0
"""One input through every level of a run: float, quantized, integers, graph, hardware graph, RTL.

The levels are taken as they lie in the run directory, changed or not, and nothing is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitwright.base.arrays import read_array
from bitwright.base.errors import DataError, RecipeError, RunError
from bitwright.base.nouns import noun_of
from bitwright.base.progress import Progress, no_progress
from bitwright.ir import random_feeds
from bitwright.pipeline.diff.results import DiffReport, Stage, StageResult
from bitwright.pipeline.recipe import Recipe, load_recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.workspace import Workspace

if TYPE_CHECKING:
    from torch import Tensor

_STEP_OF = {
    Stage.QUANTIZED: "quantize",
    Stage.INTEGERS: "quantize",
    Stage.GRAPH: "lower",
    Stage.HARDWARE: "map",
    Stage.RTL: "map",
}
_OF_PROGRAMS = (Stage.QUANTIZED, Stage.INTEGERS, Stage.GRAPH)
_PROGRAM = (
    "a program of the engine has no hardware graph: `simulate` compares every output of its RTL, "
    "and every instruction's cycles"
)


def diff_run(
    recipe: str | Path | Recipe,
    run_dir: str | Path,
    *,
    index: int = 0,
    file: str | Path | None = None,
    until: str = Stage.RTL,
    bound: float = 0.5,
    progress: Progress = no_progress,
) -> DiffReport:
    """One input through every level of a run, and the first value that differs.

    Args:
        index: which test image.
        file: an input instead: ``.npy`` with reals (C, H, W) or (H, W, C), or with uint8 pixels
            (H, W, C), scaled as the data set's.
        until: the last comparison, one of `Stage`; of a program of the engine the integer graph is
            the last one.
        bound: relative difference between float and quantized model from which it is named.

    Raises:
        RunError: a step has not been done.
        DataError: there is no such image, or the file is no such array.
        BitwrightError: what the steps themselves raise on what they read.
    """
    if until not in list(Stage):
        names = ", ".join(Stage)
        raise RecipeError(f"no comparison is called {until!r}", hint=f"one of {names}")
    work = Workspace(recipe if isinstance(recipe, Recipe) else load_recipe(recipe), progress)
    image, source = _image(work, index, None if file is None else Path(file))
    levels = _Levels(work, Path(run_dir), image, bound)
    wanted = tuple(Stage)[: tuple(Stage).index(Stage(until)) + 1]
    is_program = work.recipe.hardware.kind == "engine" and wanted[-1] not in _OF_PROGRAMS
    if is_program:
        wanted = _OF_PROGRAMS
    for stage in wanted:
        step = _STEP_OF[stage]
        if not (levels.folder(step) / "step.json").is_file():
            raise RunError(
                f"the step {step} has not been done",
                where=str(levels.folder(step)),
                hint=f"bitwright {step}, or compare less with --until",
            )
    results: list[StageResult] = []
    for stage in wanted:
        progress(f"comparing: {stage.value}", len(results), len(wanted))
        results.append(levels.compare(stage))
    progress("comparing", len(wanted), len(wanted))
    return DiffReport(source, tuple(results), levels.said(), _PROGRAM if is_program else "")


class _Levels:
    """The levels of one run, each made when first needed."""

    def __init__(self, work: Workspace, run_dir: Path, image: Tensor, bound: float) -> None:
        self.work, self.run_dir, self.image, self.bound = work, run_dir, image, bound
        self._kept: dict[str, Any] = {}

    def folder(self, step: str) -> Path:
        """Where a step's results lie."""
        return self.run_dir / step_folder(step)

    def said(self) -> dict[str, str]:
        """What the levels that were compared say of the input."""
        import torch

        from bitwright.pipeline.steps.lower import real_outputs
        from bitwright.quantize.integers.affine import SCORES

        task, test = self.work.task, self.work.data.test
        found: dict[str, str] = {}
        for name, level in (("float model", "float"), ("quantized model", "model")):
            if level in self._kept:
                with torch.no_grad():
                    output = self._kept[level].eval()(self.image.clone())
                found[name] = task.say_output(output, test)
        if "edges" in self._kept:
            scores = self._kept["edges"][SCORES]
            output = real_outputs(self._kept["graph"], scores, exact=task.gives_scores)
            found["integer graph"] = task.say_output(output, test)
        return found

    def compare(self, stage: Stage) -> StageResult:
        """One comparison; the earlier ones have been done."""
        return {
            Stage.QUANTIZED: self._quantized,
            Stage.INTEGERS: self._integers,
            Stage.GRAPH: self._graph,
            Stage.HARDWARE: self._hardware,
            Stage.RTL: self._rtl,
        }[stage]()

    def _quantized(self) -> StageResult:
        from bitwright.pipeline.diff.models import against_float, float_values, recorded
        from bitwright.pipeline.steps.quantize import quantized_model
        from bitwright.pipeline.steps.train import trained_model

        model = quantized_model(self.work, self.folder("quantize"))
        found = recorded(model, self.image)
        trained = trained_model(self.work, self.folder("train"))
        expected = float_values(trained, self.work.policy, self.image)
        self._kept |= {"float": trained, "model": model, "values": found}
        return against_float(expected, found, model, self.bound)

    def _integers(self) -> StageResult:
        from bitwright.pipeline.diff.models import against_training
        from bitwright.pipeline.steps.quantize import integer_model

        integers = self._kept["integers"] = integer_model(self.work, self._kept["model"])
        return against_training(self._kept["values"], integers, self._kept["model"], self.image)

    def _graph(self) -> StageResult:
        from bitwright.pipeline.diff.models import against_model
        from bitwright.pipeline.steps.lower import read_graph

        graph = self._kept["graph"] = read_graph(self.folder("lower"))
        result, self._kept["edges"] = against_model(self._kept["integers"], graph, self.image)
        return result

    def _hardware(self) -> StageResult:
        from bitwright.pipeline.diff.hardware import against_graph
        from bitwright.pipeline.steps.map import read_hardware

        graph, edges = self._kept["graph"], self._kept["edges"]
        hardware = self._kept["hardware"] = read_hardware(self.work, self.folder("map"))
        # Inputs that no image has, such as addresses, stay zero.
        feeds = random_feeds(hardware, 1, np.random.default_rng(0))
        feeds |= {edge: edges[edge] for edge in graph.inputs}
        found = self._kept["streams"] = hardware.run(feeds, edges=True)
        return against_graph(graph, hardware, edges, found)

    def _rtl(self) -> StageResult:
        from bitwright.pipeline.diff.hardware import against_rtl
        from bitwright.pipeline.steps.map import RTL

        return against_rtl(self._kept["hardware"], self.folder("map") / RTL, self._kept["streams"])


def _image(work: Workspace, index: int, file: Path | None) -> tuple[Tensor, str]:
    """The input ``(1, C, H, W)`` and what it is."""
    import torch

    if file is None:
        test = work.data.test
        if not 0 <= index < len(test):
            raise DataError(
                f"no test {noun_of(test.noun).one} {index}",
                where=test.name,
                hint=f"0 to {len(test) - 1} are there",
            )
        return torch.from_numpy(
            test.take(np.array([index])).reals()
        ), f"test {noun_of(test.noun).one} {index}"
    return torch.from_numpy(_array(work, file)[None]), str(file)


def _array(work: Workspace, file: Path) -> Any:
    """Reals (C, H, W) of a file."""
    try:
        array = read_array(file, "biuf")
    except DataError as error:
        said = f"is no .npy file of numbers: {error.message}"
        raise DataError(said, where=str(file), hint="write it with numpy.save") from error
    wanted = work.sample_shape
    moved = (*wanted[1:], wanted[0])
    axes = "CHW" if len(wanted) == 3 else "CL"
    forms = f"{wanted} ({', '.join(axes)}) or {moved} ({', '.join(axes[1:] + axes[0])})"
    if not np.issubdtype(array.dtype, np.number) or array.shape not in (wanted, moved):
        raise DataError(
            f"holds {array.dtype} of shape {array.shape}",
            where=str(file),
            hint=f"save one {noun_of(work.data.test.noun).one} of shape "
            f"{forms if len(wanted) > 1 else wanted}",
        )
    scale = work.data.test.scale if array.dtype == np.uint8 else 1.0
    reals = array.astype(np.float32) * np.float32(scale)
    if not np.isfinite(reals).all():
        raise DataError("holds NaN or infinity", where=str(file))
    return np.ascontiguousarray(reals if array.shape == wanted else np.moveaxis(reals, -1, 0))
