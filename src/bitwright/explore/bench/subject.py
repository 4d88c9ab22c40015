# SPDX-License-Identifier: Apache-2.0
"""What a benchmark needs of a network: its integers, its float self if there is one, and images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import RunError
from bitwright.base.progress import Progress, no_progress
from bitwright.ir import Graph

if TYPE_CHECKING:
    from bitwright.pipeline.recipe import Recipe

#: Images that sweeps take turns through; their values change no time.
MOST_IMAGES = 1024


@dataclass(frozen=True)
class BenchSubject:
    """One network.

    Attributes:
        graph: its integers.
        levels: of images, (N, H, W, C), in the smallest type.
        model: the float network, a torch module; None: there is none.
        reals: the same images for it, (N, C, H, W) float32; None without it.
        labels: of the images, (N,); None where they are no classes.
    """

    name: str
    graph: Graph
    levels: NDArray[np.generic]
    model: Any = None
    reals: NDArray[np.float32] | None = None
    labels: NDArray[np.int64] | None = None


def subject_of_run(recipe: Recipe, run_dir: Path, progress: Progress = no_progress) -> BenchSubject:
    """The network of a run directory, with test images of its data set.

    Raises:
        RunError: its step quantize has not been done.
    """
    from bitwright.pipeline.steps.names import step_folder
    from bitwright.pipeline.steps.quantize import INTEGERS, read_integers
    from bitwright.pipeline.steps.train import trained_model
    from bitwright.pipeline.steps.workspace import Workspace

    folder = run_dir / step_folder("quantize")
    if not (folder / INTEGERS).is_file():
        raise RunError(
            "its step quantize has not been done",
            where=str(run_dir),
            hint=f"bitwright quantize {run_dir}",
        )
    import torch

    work = Workspace(recipe, progress)
    integers = read_integers(folder)
    test = work.data.test.take(np.arange(min(MOST_IMAGES, len(work.data.test))))
    reals = np.ascontiguousarray(test.reals(), np.float32)
    levels = integers.input_levels(torch.from_numpy(reals))
    layout = levels.permute(0, 2, 3, 1) if levels.dim() == 4 else levels
    return BenchSubject(
        recipe.name,
        integers.graph,
        smallest(layout.long().numpy()),
        trained_model(work, run_dir / step_folder("train")),
        reals,
        np.asarray(test.labels) if np.asarray(test.labels).ndim == 1 else None,
    )


def smallest(levels: NDArray[np.int64]) -> NDArray[np.generic]:
    """The same in the smallest type that holds them: what an application would hand over."""
    from bitwright.pipeline.steps.baseline import narrow

    return np.ascontiguousarray(narrow(levels))
