# SPDX-License-Identifier: Apache-2.0
"""Which design of an engine is implemented: the one of its board, or the engine alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.engine_programs import SMALL

from bitwright.base.figures import Resources
from bitwright.build.implement import ImplementOptions, ImplementResult, implement, read_result
from bitwright.build.target import Target, load_target
from bitwright.build.yosys import SynthesisResult
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import EngineConfig
from bitwright.engine.sdram import ULX3S
from bitwright.formats import parse_format
from bitwright.host.engine_files import network_header
from bitwright.ir import INTEGER, GraphBuilder, TensorType
from bitwright.pipeline.steps.implement_engine import RunTools, implement_engine
from bitwright.pipeline.steps.map_engine import RTL
from bitwright.pipeline.steps.results_hardware import ENGINE_IMAGE
from bitwright.rtl.emit_engine import emit_engine
from bitwright.sim.spec import Design, load_design


class Tools:
    """In the place of synthesis, place and route: what they were given."""

    design: Design
    options: ImplementOptions

    def __call__(
        self, design: Path, target: Target, out: Path, options: ImplementOptions, _: object
    ) -> ImplementResult:
        self.design, self.options = load_design(design), options
        clock = options.clock_mhz or target.default_clock_mhz
        return ImplementResult(
            target.name, target.part, target.flow.value, clock, {}, target.capacity, Resources(),
            Resources(), {}, None, None, None, None, {}, {}, ("from the tools",),
        )  # fmt: skip


def implemented(
    config: EngineConfig, target: str, folder: Path, options: ImplementOptions
) -> tuple[Tools, ImplementResult]:
    """With `Tools` in the place of all tools."""
    tools = Tools()
    result = implemented_by(tools, config, target, folder, options)
    assert result.notes[0] == "from the tools"
    return tools, result


def implemented_by(
    tools: RunTools, config: EngineConfig, target: str, folder: Path, options: ImplementOptions
) -> ImplementResult:
    builder = GraphBuilder("net", INTEGER)
    kind = TensorType((3, 4, 5), parse_format("uint8"), (1.0,), 0, 255)
    weight = np.random.default_rng(0).integers(-8, 8, (6, 3, 3, 5))
    attrs = {"padding": (1, 1, 1, 1), "weight_format": "int4", "weight_scale": (1.0,)}
    edge = builder.input("x", kind)
    graph = builder.finish(builder.add("conv", (edge,), attrs=attrs, params={"weight": weight}))
    mapped, made = folder / "map", folder / "made"
    emit_engine(config, mapped / RTL)
    image = compile_graph(graph, config)
    (mapped / ENGINE_IMAGE).write_bytes(image.to_bytes())
    assert f"{image.inputs[0].word}u, 1u, 12u, 5u, 8u" in network_header(image)
    given = load_target(target)
    result = implement_engine(mapped, given, made, options, tools, lambda *_: None)
    assert read_result(made / "implement.json") == result
    return result


@pytest.mark.parametrize(("asked", "given"), [(None, ULX3S.most_mhz), (100.0, None), (50.0, 50.0)])
def test_a_target_with_a_board_and_an_sdram(
    tmp_path: Path, asked: float | None, given: float | None
) -> None:
    options = ImplementOptions(clock_mhz=asked)
    tools, result = implemented(SMALL, "ecp5-85k", tmp_path, options)
    assert tools.design.top == "engine_board" and tools.design.sdram == ULX3S
    assert tools.design.parameters["Dsps"] == 8 and tools.options.board == "ulx3s"
    assert tools.options.clock_mhz == (given or ULX3S.most_mhz)
    assert ("the memory takes 66.7 MHz at most; 100 were asked for" in result.notes) == (
        asked != 50.0
    )


@pytest.mark.parametrize(
    ("lanes", "target", "says"),
    [(16, "ecp5-85k", "the engine has words of 128"), (8, "xczu9eg", None)],
)
def test_an_engine_without_a_board_is_placed_alone(
    tmp_path: Path, lanes: int, target: str, says: str | None
) -> None:
    config = EngineConfig(
        pixels=2, lanes=lanes, outputs=lanes, feature_words=256, weight_rows=64, parameter_rows=32
    )
    tools, result = implemented(config, target, tmp_path, ImplementOptions())
    assert tools.design.top == "engine" and not tools.options.bitstream
    assert any(says in note for note in result.notes) if says else len(result.notes) == 1


@pytest.mark.parametrize("target", ["xc7z020", "xczu9eg"])
def test_an_engine_beside_a_processor_gets_its_project(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a device is only synthesised (Yosys is not run here)."""

    def synthesise(folder: Path, _: Target, out: Path, **__: object) -> SynthesisResult:
        assert load_design(folder).top == "engine"
        there = Resources(lut=10)
        return SynthesisResult(out / "n.json", out / "log", {}, there, 10, {}, 1, 1, 1, "", False)

    monkeypatch.setattr("bitwright.build.implement.synthesise", synthesise)
    options = ImplementOptions(clock_mhz=75.0)
    result = implemented_by(implement, SMALL, target, tmp_path, options)
    script = tmp_path / "made" / result.files["vendor_system"]
    assert "75" in script.read_text() and "NOT RUN" in (script.parent / "README.txt").read_text()
    assert (script.parent / "driver" / "bitwright_soc_engine.c").is_file()
    assert (script.parent / "design" / "engine_soc.v").is_file()
    (note,) = (note for note in result.notes if "a driver" in note)
    assert "with registers and a driver" in note and note.endswith("simulated, not run")


def test_a_board_that_is_asked_for_gets_the_engine(tmp_path: Path) -> None:
    """What it lacks is said by the tools' step, before anything is synthesised."""
    tools, _ = implemented(SMALL, "ecp5-85k", tmp_path, ImplementOptions(board="orangecrab"))
    assert tools.design.top == "engine_board" and tools.options.board == "orangecrab"


def test_lanes_of_4_bits_are_in_the_circuit_where_the_configuration_has_them(
    tmp_path: Path,
) -> None:
    for nibbles in (True, False):
        config = EngineConfig(pixels=2, feature_words=256, nibbles=nibbles)
        table = json.loads(emit_engine(config, tmp_path / str(nibbles)).read_text())
        assert table["parameters"]["Nibbles"] == f"1'b{int(nibbles)}"
