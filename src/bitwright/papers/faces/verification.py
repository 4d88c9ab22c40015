# SPDX-License-Identifier: Apache-2.0
"""Face verification: are two faces one person's? Threshold on view 1, ten folds of view 2.

Two faces are said to be one person's if the Euclidean distance of their embeddings lies below a
threshold, the only thing that is learned. The figures are those of Labeled Faces in the Wild (Huang
et al. 2007): the mean accuracy of the folds and its standard error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from math import nan

import numpy as np
import torch
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.statistics import mean_of
from bitwright.papers.faces.pairs import FaceProtocol, PairRows
from bitwright.papers.faces.recipe import Sweep
from bitwright.train.evaluation import Model, run_batches

_BATCH = 50
_TWO = 2

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Verification:
    """The result of a verification test; accuracies are shares, not percent.

    Attributes:
        accuracy: mean of the folds.
        stderr: standard error of that mean; nan where there is none (`mean_of`).
        threshold: distances below it say "one person".
        folds: accuracy of each fold of view 2.
        view1: accuracy on view 1 at the threshold; nan if the threshold was given.
        right: (P,) which pairs of view 2 were classified correctly, for paired comparisons.
    """

    accuracy: float
    stderr: float
    threshold: float
    folds: tuple[float, ...]
    view1: float
    right: NDArray[np.bool_] = field(repr=False)

    def row(self) -> str:
        """``98.05 +/- 0.20``: percent and its standard error."""
        return f"{100 * self.accuracy:.2f} +/- {100 * self.stderr:.2f}"


def verification_accuracy(
    model_fn: Model, protocol: FaceProtocol, sweep: Sweep | None = None
) -> Verification:
    """Run the whole test on a network.

    Args:
        model_fn: takes (N, 3, H, W) float32 reals (``protocol.faces.data.reals()``), gives (N, D).
            A module is put into evaluation mode while it runs.
        sweep: by default 0, 0.01, .., 1; by ``Sweep(hi=None)`` for embeddings of any size.

    Raises:
        DataError: embeddings are not finite, or not one a face.
    """
    return verify_embeddings(embeddings(model_fn, protocol), protocol, sweep)


def embeddings(model_fn: Model, protocol: FaceProtocol) -> NDArray[np.float64]:
    """(N, D) embeddings of the faces that the pairs name; the others are left at zero.

    Raises:
        DataError: embeddings are not finite, or not one a face.
    """
    views = (protocol.view1, protocol.view2)
    rows = np.unique(np.concatenate([r for view in views for r in (view.first, view.second)]))
    images = torch.from_numpy(protocol.faces.data.take(rows).reals())
    found = run_batches(model_fn, images, _BATCH).to(torch.float64).numpy()
    if found.ndim != _TWO or len(found) != len(rows):
        raise DataError(
            f"embeddings must be ({len(rows)}, D), found {found.shape}", where=protocol.name
        )
    if not np.isfinite(found).all():
        raise DataError("embeddings are not all finite numbers", where=protocol.name)
    table = np.zeros((len(protocol.faces), found.shape[1]))
    table[rows] = found
    return table


def verify_embeddings(
    vectors: NDArray[np.float64], protocol: FaceProtocol, sweep: Sweep | None = None
) -> Verification:
    """Run the test on the embeddings (N, D) of all faces of a protocol.

    Raises:
        DataError: there are not as many as faces.
    """
    if len(vectors) != len(protocol.faces):
        raise DataError(
            f"{len(vectors)} embeddings for {len(protocol.faces)} faces", where=protocol.name
        )
    sweep = sweep or Sweep()
    threshold, view1 = sweep.fixed, nan
    if threshold is None:
        threshold, view1 = choose_threshold(
            pair_distances(vectors, protocol.view1), protocol.view1.matched, sweep
        )
    view2 = protocol.view2
    right = (pair_distances(vectors, view2) < threshold) == view2.matched
    folds = tuple(float(right[view2.fold == fold].mean()) for fold in range(view2.folds))
    mean = mean_of(folds)
    stderr = nan if mean.error is None else mean.error
    return Verification(mean.value, stderr, float(threshold), folds, view1, right)


def pair_distances(vectors: NDArray[np.float64], pairs: PairRows) -> NDArray[np.float64]:
    """(P,) Euclidean distances."""
    return np.asarray(np.linalg.norm(vectors[pairs.first] - vectors[pairs.second], axis=1))


def choose_threshold(
    distances: NDArray[np.float64], matched: NDArray[np.bool_], sweep: Sweep
) -> tuple[float, float]:
    """The threshold with the best accuracy, and that accuracy."""
    tried = sweep.thresholds(distances)
    right = ((distances[None] < tried[:, None]) == matched[None]).mean(axis=1)
    best = np.flatnonzero(right == right.max())
    if sweep.hi is not None and len(tried) - 1 in best and distances.max() > tried[-1]:
        _log.warning(
            "the best threshold is the last one tried, %g, of distances up to %g: "
            "sweep further (hi: null reaches as far as the distances)",
            tried[-1],
            distances.max(),
        )
    if sweep.on_ties == "first":
        return float(tried[best[0]]), float(right.max())
    runs = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)
    widest = max(runs, key=len)
    return float(tried[widest[(len(widest) - 1) // 2]]), float(right.max())
