# SPDX-License-Identifier: Apache-2.0
"""What networks are for. Names and settings come without torch; tasks import it when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitwright.tasks.catalog import TaskInfo, TaskSpec, list_tasks

if TYPE_CHECKING:
    from bitwright.tasks.base import LossSettings, Shown, SoftSettings, Task
    from bitwright.tasks.classification import CLASSIFICATION
    from bitwright.tasks.factory import make_task
    from bitwright.tasks.metric import Measurement, Metric

__all__ = [
    "CLASSIFICATION",
    "LossSettings",
    "Measurement",
    "Metric",
    "Shown",
    "SoftSettings",
    "Task",
    "TaskInfo",
    "TaskSpec",
    "list_tasks",
    "make_task",
]

_LAZY = {
    "CLASSIFICATION": "classification",
    "LossSettings": "base",
    "Measurement": "metric",
    "Metric": "metric",
    "Shown": "base",
    "SoftSettings": "base",
    "Task": "base",
    "make_task": "factory",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
