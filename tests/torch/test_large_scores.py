# SPDX-License-Identifier: Apache-2.0
"""Scores that float32 cannot tell apart: figures of the hardware are those of its own labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitwright.base.errors import MismatchError
from bitwright.data import load_dataset
from bitwright.interop import ops
from bitwright.interop.model_files import save_network
from bitwright.interop.network import NetworkBuilder
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.recipe import recipe_from_dict
from bitwright.pipeline.steps.levels import read_levels
from bitwright.pipeline.steps.lower import _require_labels
from bitwright.pipeline.steps.report_words import ties
from bitwright.pipeline.steps.results import LowerResult, load_result

pytest.importorskip("safetensors")


def test_accuracy_is_that_of_the_labels_that_the_hardware_gives(tmp_path: Path) -> None:
    """All scores are 2^23 in float32, so the model says class 0 of every image; its integers have
    another highest score each. They were measured as the model is: as class 0.
    """
    rng = np.random.default_rng(0)
    b = NetworkBuilder()
    flat = b.add("flat", ops.Flatten(), (b.add("data", ops.Input((1, 8, 8))),))
    weight = (0.01 * rng.random((10, 64))).astype(np.float32)
    bias = np.full(10, 2.0**23, np.float32)
    end = b.add("dense", ops.Dense(), (flat,), {"weight": weight, "bias": bias})
    save_network(b.network("n", end), "safetensors", tmp_path / "net.safetensors")
    recipe = recipe_from_dict(
        {
            "name": "tied",
            "data": "digits",
            "model": str(tmp_path / "net.safetensors"),
            "quant": {"input": "uint8", "weight": "int8", "activation": "uint8"},
            "train": {"float": {"epochs": 0}, "quantized": {"epochs": 0}},
        }
    )
    pipeline = Pipeline(recipe, tmp_path / "run")
    pipeline.build(until="lower")
    folder = tmp_path / "run" / "03-lower"
    result, levels = load_result(LowerResult, folder), read_levels(folder)
    truth = load_dataset("digits").test.labels
    right = np.mean(levels["label"].ravel() == truth)
    assert result.metrics["accuracy"].value == pytest.approx(right)
    assert (levels["label"].ravel() == levels["scores"].argmax(axis=1)).all()
    assert result.labels_that_tie == (levels["label"] != 0).sum() > 100
    assert ties(result).startswith(f"; {result.labels_that_tie:,} labels are others")


def test_a_label_of_a_lower_score_is_a_mismatch() -> None:
    scores = np.array([[1, 2, 2], [3, 1, 0]], np.float32)
    assert _require_labels(scores, np.array([[1], [0]]), 0) == 0
    assert _require_labels(scores, np.array([2, 0]), 0) == 1
    with pytest.raises(MismatchError, match="test image 251: the trained model's is 0"):
        _require_labels(scores, np.array([1, 2]), 250)
