# SPDX-License-Identifier: Apache-2.0
"""Runs whose design misses the rate that is asked for: map, simulate and implement once more.

What a run has found out about the clock stands in its recipe, as ``hardware.rate_clock_mhz``: the
next call begins there, and whoever repeats the run's recipe gets its design at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bitwright.base.errors import RecipeError
from bitwright.base.files import atomic_write, regular_bytes
from bitwright.pipeline.recipe import Recipe
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.recipe_paths import with_paths_of_its_folder
from bitwright.pipeline.recipe_yaml import MOST_BYTES, parse_document
from bitwright.pipeline.run import Outcome, Run
from bitwright.pipeline.steps.facts import facts_of
from bitwright.pipeline.steps.planning import (
    MOST_SEARCHES,
    first_that_is_kept,
    searched_again,
    searching_words,
)
from bitwright.pipeline.steps.results_run import Results
from bitwright.pipeline.steps.workspace import Workspace

RECIPE = "recipe.yaml"
_LAST = "implement"  # the step that tells which clock is reached


def with_earlier_plan(recipe: Recipe, run_dir: Path) -> Recipe:
    """The recipe with the clock that an earlier call of the same recipe found in this directory."""
    if recipe.hardware.target_fps is None or recipe.hardware.rate_clock_mhz is not None:
        return recipe
    try:
        text = regular_bytes(run_dir / RECIPE, most=MOST_BYTES).decode()
        before = parse_document(text, RECIPE).value
        clock = before["hardware"]["rate_clock_mhz"]
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        return recipe
    if not isinstance(clock, float) or not clock > 0:
        return recipe
    planned = _planned(recipe, recipe.hardware.model_copy(update={"rate_clock_mhz": clock}))
    now = parse_document(with_paths_of_its_folder(planned).to_yaml(), RECIPE).value
    return planned if now == before else recipe


def execute_for_rate(work: Workspace, run: Run, names: Sequence[str]) -> list[Outcome]:
    """Run these steps; where the placed design misses ``hardware.target_fps``, again from the step
    map on, for the clock that was reached.

    Raises:
        BitwrightError: a step failed; those finished before stay.
    """
    if _LAST not in names or work.recipe.hardware.kind == "engine":  # which has no folding
        return run.execute(names)
    until = list(names[: names.index(_LAST) + 1])
    done: dict[str, Outcome] = {}
    for left in reversed(range(MOST_SEARCHES + 1)):
        work.searching, before = left > 0, work.recipe
        _note(done, run.execute(until))
        plans = _again(work, run, done[_LAST]) if left else []
        if not plans:
            break

        def attempt(plan: HardwareSection, before: Recipe = before) -> list[Outcome]:
            _plan(work, run, _planned(before, plan))
            return run.execute([name for name in until if name != _LAST])

        found = first_that_is_kept(plans, attempt)
        if found is not None:
            _note(done, found)
        else:
            _plan(work, run, before)
            run.forget(
                _LAST
            )  # it has no bitstream, and is to have one at the clock that it reaches
            work.searching = False
            _note(done, run.execute(until))
            break
    return [*done.values(), *run.execute(names[len(until) :])]


def _note(done: dict[str, Outcome], outcomes: Sequence[Outcome]) -> None:
    """Keep of each step what this call did last."""
    done |= {o.name: o for o in outcomes if not o.was_done or o.name not in done}


def _again(work: Workspace, run: Run, last: Outcome) -> list[HardwareSection]:
    """What to search next; empty: the rate is kept, or an earlier call has ended without it."""
    found = Results.load({name: run.folder_of(name) for name in ("map", _LAST)})
    assert found.map is not None and found.implement is not None
    if last.was_done and found.implement.missed_mhz is None:
        return []
    plans = searched_again(work.recipe.hardware, found.map, found.implement)
    if plans:
        work.progress(searching_words(plans[0], found.map, found.implement), 0, 0)
    return plans


def _planned(recipe: Recipe, hardware: HardwareSection) -> Recipe:
    return recipe.model_copy(update={"hardware": hardware})


def _plan(work: Workspace, run: Run, recipe: Recipe) -> None:
    """Go on with another folding in view; the run's recipe says so."""
    work.recipe = recipe
    run.facts = facts_of(work)
    atomic_write(run.folder / RECIPE, with_paths_of_its_folder(recipe).to_yaml())
