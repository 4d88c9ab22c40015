# SPDX-License-Identifier: Apache-2.0
"""The training loop. Settings and records come without torch; the rest loads it when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bitwright.train.config import Augmentation, Distillation, PeerTraining, Phases, TrainConfig
from bitwright.train.records import (
    EpochMetrics,
    FitResult,
    OnProgress,
    TrainProgress,
    read_metrics,
    write_metrics,
)

if TYPE_CHECKING:
    from bitwright.train.checkpoint import (
        load_checkpoint,
        load_weights,
        save_checkpoint,
        save_weights,
    )
    from bitwright.train.evaluation import Evaluation, evaluate
    from bitwright.train.loop import fit
    from bitwright.train.loss import cross_entropy, distillation_loss
    from bitwright.train.phases import PhaseResult, study
    from bitwright.train.transforms import augment, to_real

__all__ = [
    "Augmentation",
    "Distillation",
    "EpochMetrics",
    "Evaluation",
    "FitResult",
    "OnProgress",
    "PeerTraining",
    "PhaseResult",
    "Phases",
    "TrainConfig",
    "TrainProgress",
    "augment",
    "cross_entropy",
    "distillation_loss",
    "evaluate",
    "fit",
    "load_checkpoint",
    "load_weights",
    "read_metrics",
    "save_checkpoint",
    "save_weights",
    "study",
    "to_real",
    "write_metrics",
]

_LAZY = {
    "Evaluation": "evaluation",
    "PhaseResult": "phases",
    "augment": "transforms",
    "cross_entropy": "loss",
    "distillation_loss": "loss",
    "evaluate": "evaluation",
    "fit": "loop",
    "load_checkpoint": "checkpoint",
    "load_weights": "checkpoint",
    "save_checkpoint": "checkpoint",
    "save_weights": "checkpoint",
    "study": "phases",
    "to_real": "transforms",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_LAZY[name]}")
    return getattr(module, name)
