# SPDX-License-Identifier: Apache-2.0
"""A binarized network of the document's kind as hardware: its RTL gives the trainer's sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bitwright.base.errors import DataError
from bitwright.papers.bnn_soc.course import Look
from bitwright.papers.bnn_soc.graph import make_design
from bitwright.papers.bnn_soc.kpi import hardware_kpi
from bitwright.papers.bnn_soc.model import Model
from bitwright.papers.bnn_soc.reference import ReferenceTrainer
from bitwright.papers.bnn_soc.run_folder import Trained
from bitwright.papers.bnn_soc.settings import Settings, order, rates
from bitwright.pipeline.designs.steps import simulate_design


@pytest.mark.slow
def test_rtl_gives_the_sums_of_the_trained_network(tmp_path: Path) -> None:
    settings = Settings(sizes=(45, 20, 5), rate_start=1e-3, rate_end=1e-4, seed=2)
    random = np.random.default_rng(2)
    images = random.integers(0, 256, (12, 45), dtype=np.uint8)
    trainer = ReferenceTrainer(settings)
    steps = order(settings, 24, len(images)), rates(settings, 24, len(images))
    trainer.train(images, random.integers(0, 5, len(images)), *steps)
    model = Model(settings, tuple(trainer.weights), tuple(trainer.biases))
    design = tmp_path / "design"
    simulate_design(make_design(model, design, images, 6))
    trained = Trained("run", model, (Look(24, 0.5, 0.5, 1.0),), 1)
    row = hardware_kpi(trained, design, 0.5)
    assert 0 < row.kernel_ms < 1 and 0 < (row.logic or 0) < 1
    other = replace(model, weights=tuple(-w - 1e-3 for w in model.weights))
    with pytest.raises(DataError, match="is not a design of run"):
        hardware_kpi(replace(trained, model=other), design, 0.5)
