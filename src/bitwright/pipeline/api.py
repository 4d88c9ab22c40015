# SPDX-License-Identifier: Apache-2.0
"""The whole path as a few functions: what the command line calls, and what Python users call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitwright.base.errors import RecipeError
from bitwright.base.nouns import noun_of
from bitwright.base.progress import Progress, no_progress
from bitwright.base.trust import importable
from bitwright.pipeline.designs.own import BuiltModel, build_model
from bitwright.pipeline.diff.levels import diff_run
from bitwright.pipeline.inspection.inspect import inspect_model
from bitwright.pipeline.recipe import Recipe, load_recipe
from bitwright.pipeline.recipe_paths import with_paths_of_its_folder
from bitwright.pipeline.replan import RECIPE, execute_for_rate, with_earlier_plan
from bitwright.pipeline.run import Outcome, Run, open_run
from bitwright.pipeline.run_files import named_from, run_place
from bitwright.pipeline.steps.facts import facts_of
from bitwright.pipeline.steps.names import STEP_NAMES
from bitwright.pipeline.steps.order import make_steps
from bitwright.pipeline.steps.results_hardware import EngineExplanation
from bitwright.pipeline.steps.summary import Summary, summarise, write_precision_page
from bitwright.pipeline.steps.versions import versions
from bitwright.pipeline.steps.workspace import Workspace


@dataclass
class Pipeline:
    """A recipe and the directory its results go to.

    ``Pipeline(load_recipe("digits"), Path("runs/digits")).build()`` is the whole job; a second call
    does nothing, and a changed recipe runs again only what depends on the change.

    Attributes:
        recipe: what to do.
        run_dir: where results go; resumed if it exists.
        progress: called as ``progress(what, done, total)`` during slow work.
        reuse: a folder of run directories; a step that one of them has finished in just the same
            way is taken from it instead of done again.
    """

    recipe: Recipe
    run_dir: Path
    progress: Progress = no_progress
    reuse: Path | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    def build(self, until: str = "report") -> Summary:
        """Run every step up to one; gives what the run directory then holds.

        Raises:
            BitwrightError: the recipe, the model, the data, a tool or the design is at fault.
        """
        _check_step(until)
        before = STEP_NAMES[: STEP_NAMES.index(until) + 1]
        there = Workspace(self.recipe).step_names
        return self._run([name for name in before if name in there])

    def step(self, name: str) -> Summary:
        """Run one step, and before it whatever it needs and is not there.

        Raises:
            BitwrightError: as `build`.
        """
        _check_step(name)
        if name not in Workspace(self.recipe).step_names:
            raise RecipeError(
                "the recipe names no teacher of its own",
                where="teacher",
                hint="add a section teacher with a model and its training",
            )
        return self._run(None, name)

    def pending(self) -> list[str]:
        """The steps that a full build would run now.

        Raises:
            BitwrightError: the data cannot be read, or the run is of another version.
        """
        with self._opened(self._workspace()) as run:
            return [step.name for step in run.steps if not run.is_fresh(step.name)]

    def _run(self, names: Sequence[str] | None, only: str = "") -> Summary:
        work = self._workspace()
        with importable(self.recipe.base_dir), self._opened(work) as run:
            chosen = run.closure(only) if names is None else list(names)
            if not run.is_fresh(chosen[-1]):
                from bitwright.pipeline.steps.preflight import preflight

                preflight(work, run, chosen)
            self.outcomes = execute_for_rate(work, run, chosen)
            write_precision_page(run, self.recipe.name)
            return summarise(run)

    def _workspace(self) -> Workspace:
        """The recipe at work; with the clock that an earlier call in this directory reached."""
        return Workspace(with_earlier_plan(self.recipe, self.run_dir), self.progress)

    def _opened(self, work: Workspace) -> AbstractContextManager[Run]:
        notes = {
            "recipe_dir": named_from(self.run_dir, self.recipe.base_dir),
            "seed": self.recipe.seed,
            "versions": versions(),
        }
        return open_run(
            self.run_dir,
            make_steps(work),
            facts_of(work),
            files={RECIPE: with_paths_of_its_folder(work.recipe).to_yaml()},
            notes=notes,
            progress=self.progress,
            reuse=self.reuse,
        )


def build_recipe(
    recipe: str | Path | Recipe,
    run_dir: str | Path | None = None,
    *,
    until: str = "report",
    progress: Progress = no_progress,
) -> Summary:
    """The whole job of a recipe, by name, path or value; resumes what is there.

    Raises:
        BitwrightError: the recipe, the model, the data, a tool or the design is at fault.
    """
    loaded = _loaded(recipe)
    folder = Path(run_dir) if run_dir is not None else run_place(loaded.name)
    return Pipeline(loaded, folder, progress).build(until)


def explain_recipe(recipe: str | Path | Recipe) -> list[dict[str, str]]:
    """What every operand of every layer becomes, and by which rule; nothing is trained.

    Raises:
        BitwrightError: the model cannot be converted, or the policy does not fit it.
    """
    from bitwright.pipeline.steps.quantize import explain as explain_operands

    work = Workspace(_loaded(recipe))
    return [row.model_dump() for row in explain_operands(work, work.fresh_model())]


def explain_engine(
    recipe: str | Path | Recipe, *, progress: Progress = no_progress
) -> EngineExplanation | None:
    """How each layer is mapped to the programmed engine of a recipe, or what is not; nothing is
    trained. None: the recipe's hardware is none.

    Raises:
        BitwrightError: as `estimate_recipe`, but for what has no mapping, which is told.
    """
    from bitwright.pipeline.steps.preflight import explain_program

    work = Workspace(_loaded(recipe), progress)
    return explain_program(work) if work.recipe.hardware.kind == "engine" else None


def estimate_recipe(
    recipe: str | Path | Recipe, *, progress: Progress = no_progress
) -> dict[str, Any]:
    """Cycles, resources and rates by the models alone, for untrained weights.

    Raises:
        BitwrightError: as `build`; a design that does not fit its target, too.
    """
    from bitwright.pipeline.steps.preflight import dry_run
    from bitwright.pipeline.steps.rates import rate_rows
    from bitwright.pipeline.steps.results_hardware import EngineResult
    from bitwright.pipeline.steps.results_run import Results

    work = Workspace(_loaded(recipe), progress)
    mapped, noun = dry_run(work), noun_of(work.data.train.noun)
    found = (
        Results(engine=mapped, inputs=noun)
        if isinstance(mapped, EngineResult)
        else Results(map=mapped, inputs=noun)
    )
    rates = [row.model_dump(mode="json") for row in rate_rows(found)]
    return mapped.model_dump(mode="json") | {"rates": rates}


def _loaded(recipe: str | Path | Recipe) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else load_recipe(recipe)


def _check_step(name: str) -> None:
    if name not in STEP_NAMES:
        raise RecipeError(f"unknown step {name!r}", hint=f"steps: {', '.join(STEP_NAMES)}")


__all__ = [
    "STEP_NAMES",
    "BuiltModel",
    "Pipeline",
    "Summary",
    "build_model",
    "build_recipe",
    "diff_run",
    "estimate_recipe",
    "explain_engine",
    "explain_recipe",
    "inspect_model",
    "load_recipe",
    "versions",
]
