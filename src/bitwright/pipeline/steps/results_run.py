# SPDX-License-Identifier: Apache-2.0
"""What all finished steps of a run have found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwright.base.nouns import IMAGES, OF_AXES, Noun
from bitwright.build.implement import RESULT as IMPLEMENT_FILE
from bitwright.build.implement import ImplementResult, read_result
from bitwright.pipeline.steps.results import (
    LowerResult,
    QuantizeResult,
    Result,
    TeachResult,
    TrainResult,
    load_result,
)
from bitwright.pipeline.steps.results_hardware import (
    ENGINE_IMAGE,
    EngineResult,
    MapResult,
    SimulateResult,
)


@dataclass(frozen=True)
class Results:
    """The results of the finished steps of a run; None where a step has not been done.

    Attributes:
        inputs: what inputs are called where no training says it.
    """

    teach: TeachResult | None = None
    train: TrainResult | None = None
    quantize: QuantizeResult | None = None
    lower: LowerResult | None = None
    map: MapResult | None = None
    engine: EngineResult | None = None
    simulate: SimulateResult | None = None
    implement: ImplementResult | None = None
    inputs: Noun = IMAGES

    @property
    def noun(self) -> Noun:
        """What the network's inputs are called."""
        return self.inputs if self.train is None else OF_AXES[len(self.train.data.image_shape)]

    @property
    def metric(self) -> str:
        """The name of the metric that chooses; of a run that has measured nothing yet that of a
        classifier.
        """
        results = (self.train, self.quantize, self.lower, self.simulate, self.teach)
        return next((r.metric for r in results if r is not None and r.metric), "accuracy")

    @classmethod
    def load(cls, folders: Mapping[str, Path]) -> Results:
        """Read the results that lie in these folders (step -> folder).

        Raises:
            RunError: one cannot be read.
        """
        kinds: dict[str, type[Result]] = {
            "teach": TeachResult,
            "train": TrainResult,
            "quantize": QuantizeResult,
            "lower": LowerResult,
            "map": MapResult,
            "simulate": SimulateResult,
        }
        found: dict[str, Any] = {
            name: load_result(kind, folders[name])
            for name, kind in kinds.items()
            if name in folders and not (name == "map" and (folders[name] / ENGINE_IMAGE).is_file())
        }
        if "map" in folders and (folders["map"] / ENGINE_IMAGE).is_file():
            found["engine"] = load_result(EngineResult, folders["map"])
        if "implement" in folders:
            found["implement"] = read_result(folders["implement"] / IMPLEMENT_FILE)
        return cls(**found)
