# SPDX-License-Identifier: Apache-2.0
"""A network with an operation in its middle that has no hardware: host, RTL: its integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.pure.test_placement import network_with

from bitwright.ir import random_feeds
from bitwright.pipeline.designs.folder import DesignSettings, open_design
from bitwright.pipeline.designs.split import open_split, placement_for, simulated, write_split
from bitwright.pipeline.designs.steps import proof_of
from bitwright.pipeline.recipe_hardware import HardwareSection


@pytest.mark.slow
def test_the_parts_of_the_accelerator_in_rtl(tmp_path: Path) -> None:
    graph = network_with()
    feeds = random_feeds(graph, 6, np.random.default_rng(3))
    write_split(placement_for(graph, HardwareSection(), most=2), DesignSettings(), tmp_path, feeds)
    found = open_split(tmp_path).runner(simulated(tmp_path)).run(feeds)
    expected = graph.run(feeds)
    for number in (0, 2):  # each equal to its graph on the levels between the parts, at its rate
        proof = proof_of(open_design(tmp_path / f"part-{number}-accelerator"))
        assert proof is not None
        assert proof.real and proof.interval == proof.predicted_interval
    assert all(np.array_equal(found[edge], expected[edge]) for edge in expected)
