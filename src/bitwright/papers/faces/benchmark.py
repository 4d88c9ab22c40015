# SPDX-License-Identifier: Apache-2.0
"""Face verification as a benchmark and a metric of searches and comparisons."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bitwright.base.source import code_key
from bitwright.base.statistics import mean_of
from bitwright.data import Dataset
from bitwright.explore.measuring import Outcome
from bitwright.explore.subject import Subject
from bitwright.papers.faces.images import FacePreprocessing
from bitwright.papers.faces.pairs import FaceProtocol
from bitwright.papers.faces.protocols import orl_known, orl_protocol

METRIC = "verification"


@dataclass(frozen=True)
class FaceBenchmark:
    """A protocol of pairs of faces: view 1 for choices, view 2 for the figure."""

    protocol: FaceProtocol
    metric: str = METRIC

    def measure(self, model: Any) -> Outcome:
        """The accuracy on view 2, with thresholds as far as the distances reach."""
        from bitwright.papers.faces.verification import Sweep, verification_accuracy

        found = verification_accuracy(model, self.protocol, Sweep(hi=None))
        folds = np.asarray(found.folds)
        return Outcome(mean_of(folds), found.right, folds, "verification accuracy")

    def digest(self) -> str:
        """Of the faces, of the pairs of both views, and of the code that measures."""
        found = hashlib.sha256(code_key("bitwright.papers.faces.verification").encode())
        found.update(self.protocol.faces.data.digest().encode())
        for view in (self.protocol.view1, self.protocol.view2):
            for rows in (view.first, view.second, view.matched, view.fold):
                found.update(np.ascontiguousarray(rows).tobytes())
        return found.hexdigest()


@dataclass(frozen=True)
class Verification:
    """Share of pairs that are classified correctly; see `verification_accuracy`."""

    protocol: FaceProtocol
    name: str = "verification accuracy"

    def __call__(self, model: Any) -> float:
        from bitwright.papers.faces.verification import verification_accuracy

        return verification_accuracy(model, self.protocol).accuracy


def verification(subject: Subject) -> Verification:
    """The metric: accuracy on view 1, so that choices do not see view 2.

    Raises:
        RecipeError: the subject's data holds no pairs of faces.
    """
    if not isinstance(subject.benchmark, FaceBenchmark):
        from bitwright.explore.search.metrics import unmeasurable

        raise unmeasurable(METRIC)
    protocol = subject.benchmark.protocol
    return Verification(replace(protocol, view2=protocol.view1))


def orl(shape: tuple[int, int, int] | None = None) -> tuple[Dataset, FaceBenchmark]:
    """The ORL faces: those of known people for calibration, and the pairs of the others.

    Args:
        shape: (H, W, C) of an image; H is the side of the cut faces. None: 80 x 80.

    Raises:
        DataError: the archive is missing or broken.
    """
    how = FacePreprocessing() if shape is None else FacePreprocessing(size=shape[0])
    return orl_known(how=how).data, FaceBenchmark(orl_protocol(how=how))
