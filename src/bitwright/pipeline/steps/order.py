# SPDX-License-Identifier: Apache-2.0
"""Which step there is, what it needs, and what it depends on."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from bitwright.pipeline.context import StepContext
from bitwright.pipeline.run import Step
from bitwright.pipeline.steps.names import STEP_NAMES
from bitwright.pipeline.steps.workspace import Workspace

_NEEDS: dict[str, tuple[str, ...]] = {
    "teach": (),
    "train": (),
    "quantize": ("train",),
    "lower": ("quantize",),
    "map": ("lower",),
    "simulate": ("lower", "map"),
    "implement": ("lower", "map"),
    "report": ("train", "quantize", "lower", "map"),
}
_USES: dict[str, tuple[str, ...]] = {"report": ("teach", "simulate", "implement")}
_FACTS: dict[str, tuple[str, ...]] = {
    "teach": ("seed", "data", "task", "teacher"),
    "train": ("seed", "data", "task", "model", "train.float", "pretrained"),
    "quantize": ("quant", "train.quantized", "seed"),
    "lower": ("name",),
    "map": ("hardware",),
    "simulate": ("simulate", "seed"),
    "implement": ("implement", "hardware"),
    "report": ("report", "description", "simulate", "implement"),
}
_KEEPS_PARTIAL = frozenset({"teach", "train", "quantize"})
#: RTL may ask a simulator for anything, and a page a browser.
_IS_RUN = frozenset({"map", "report"})


def make_steps(work: Workspace) -> tuple[Step, ...]:
    """The pipeline of one recipe, in order."""
    names = work.step_names
    return tuple(
        Step(
            name=name,
            needs=(*_taught(work, name), *_NEEDS[name]),
            facts=(*_FACTS[name], f"code:{name}"),
            function=_function(name, work),
            uses=tuple(other for other in _USES.get(name, ()) if other in names),
            keeps_partial=name in _KEEPS_PARTIAL,
            number=STEP_NAMES.index(name),
            is_run=name in _IS_RUN,
        )
        for name in names
    )


def _taught(work: Workspace, name: str) -> tuple[str, ...]:
    """The step of the teacher, for a step that learns from one of its own."""
    train = work.recipe.train
    learns = {
        "train": train.float_.distillation is not None,
        "quantize": train.quantized is not None and train.quantized.needs_teacher,
    }
    return ("teach",) if work.recipe.teacher and learns.get(name) else ()


def _function(name: str, work: Workspace) -> Callable[[StepContext], None]:
    """The step's function, imported when it runs: torch and tools are slow to load."""

    def run(context: StepContext) -> None:
        function: Callable[[Workspace, StepContext], None] = getattr(
            import_module(f"bitwright.pipeline.steps.{name}"), name
        )
        function(work, context)

    return run
