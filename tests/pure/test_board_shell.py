# SPDX-License-Identifier: Apache-2.0
"""What the serial shell keeps of outputs that wait for others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitwright.base.errors import TargetError
from bitwright.build.shell import (
    beyond_shell,
    choose_line,
    describe,
    kept_frames,
    write_board_design,
)
from bitwright.build.target import load_board, load_target
from bitwright.formats import parse_format
from bitwright.hw import Folding, map_graph
from bitwright.ir import INTEGER, GraphBuilder, TensorType
from bitwright.rtl.emit import emit
from bitwright.sim.spec import Design, load_design

SMALL, LARGE = load_target("ecp5-12k"), load_target("ecp5-45k")


def _two_outputs(folder: Path, side: int) -> Design:
    """One of 2 channels behind one of 4, which is the second that the graph gives."""
    rng, b = np.random.default_rng(0), GraphBuilder("two", INTEGER)
    x = b.input("x", TensorType((side, side, 1), parse_format("uint4"), (1.0,), 0, 15))

    def conv(edge: str, channels: int) -> str:
        weight = rng.integers(-7, 8, (channels, 3, 3, b.types[edge].channels))
        return b.add("conv", (edge,), attrs={"weight_format": "int4"}, params={"weight": weight})

    early = conv(x, 4)
    emit(map_graph(b.finish(conv(early, 2), early), Folding({})), folder)
    return load_design(folder)


def test_the_largest_output_is_sent_first_and_waits_for_none(tmp_path: Path) -> None:
    design = _two_outputs(tmp_path, 24)
    outputs = describe(design, 25.0, choose_line(25.0, 115_200)).outputs
    assert [o.frame_bytes for o in outputs] == sorted(o.frame_bytes for o in outputs)[::-1]
    assert {o.name for o in outputs} == {port.tensor for port in design.outputs}
    behind = outputs[1].port
    kept = kept_frames(design, "ecp5")
    assert kept.bram * 18 * 1024 >= behind.beats * behind.width > (kept.bram - 2) * 18 * 1024


def test_frames_that_no_block_ram_holds_are_placed_without_a_shell(tmp_path: Path) -> None:
    design = _two_outputs(tmp_path, 180)
    assert beyond_shell(design) is None and beyond_shell(design, LARGE) is None
    reason = beyond_shell(design, SMALL)
    assert reason is not None and "keeps a frame" in reason and "block RAMs of 56" in reason
    with pytest.raises(TargetError, match="block RAMs of 56"):
        write_board_design(tmp_path, load_board("ulx3s"), SMALL, tmp_path / "board", 25.0)
