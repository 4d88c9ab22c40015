# SPDX-License-Identifier: Apache-2.0
"""Making the task that a recipe names: ours, or the user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from bitwright.base.errors import ModelError, RecipeError
from bitwright.base.plugins import load_attribute, load_made, load_plugin, users_code
from bitwright.base.trust import is_plugin
from bitwright.tasks.base import Task
from bitwright.tasks.catalog import TASKS, TaskSpec
from bitwright.tasks.metric import Metric


def make_task(spec: TaskSpec | str) -> Task:
    """The task of a name, or of all that a recipe says.

    Raises:
        RecipeError: the name or an option is unknown.
        ModelError: the user's own cannot be imported, fails, or is no `Task`.
    """
    wanted = TaskSpec(name=spec) if isinstance(spec, str) else spec
    task = _made(wanted)
    if not wanted.metric:
        return task
    chosen = copy.copy(task)
    chosen.metrics = (*(own_metric(name) for name in wanted.metric), *task.metrics)
    return chosen


def _made(spec: TaskSpec) -> Task:
    places = {info.name: f"bitwright.tasks.{info.place}" for info in TASKS}
    if spec.name in places:
        return _called(load_attribute(places[spec.name]), spec)
    if not is_plugin(spec.name):
        raise RecipeError(
            f"unknown task {spec.name!r}",
            where="task",
            hint=f"known: {', '.join(places)}; your own is written package.module:name",
        )
    made = (
        _called(load_plugin(spec.name, "task"), spec)
        if spec.options
        else load_made(spec.name, "task")
    )
    if not isinstance(made, Task):
        raise ModelError(
            f"gives a {type(made).__name__}, not a bitwright.tasks.Task",
            where=spec.name,
            hint="name a subclass of Task, one that is made already, or a function that gives one",
        )
    return made


def _called(make: Callable[..., Any], spec: TaskSpec) -> Any:
    hint = f"it was called with {', '.join(spec.options) or 'no arguments'}"
    try:
        with users_code("making the task", spec.name, hint, __file__):
            return make(**spec.options)
    except ModelError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        raise RecipeError(
            f"{spec.name}: {error.__cause__}", where="task.options", hint=hint
        ) from error


def own_metric(name: str) -> Metric:
    """The metric that ``package.module:name`` leads to: a `Metric`, or a function whose attributes
    ``unit`` and ``larger_is_better`` say what they mean there.

    Raises:
        RecipeError: the name has another form.
        ModelError: there is no such function.
    """
    found = load_plugin(name, "task.metric", also=Metric)
    if isinstance(found, Metric):
        return found
    return Metric(
        str(getattr(found, "name", name.partition(":")[2].replace("_", " "))),
        found,
        str(getattr(found, "unit", "")),
        bool(getattr(found, "larger_is_better", True)),
    )
