# SPDX-License-Identifier: Apache-2.0
"""The flows on a small real design: resources, Fmax, bitstream, and the ways they can fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bitwright.base.errors import BitwrightError, GraphError, RunError, TargetError, ToolError
from bitwright.base.figures import Figure, Resources, Source
from bitwright.base.tools import finder
from bitwright.base.tools.finder import Tool, find
from bitwright.build import nextpnr
from bitwright.build.implement import RESULT, ImplementOptions, implement, read_result
from bitwright.build.macros import better_places
from bitwright.build.nextpnr import PnrOptions, place_and_route
from bitwright.build.plls import choose_clock
from bitwright.build.shell import write_board_design
from bitwright.build.target import load_board, load_target
from bitwright.build.vendor import write_vendor_project
from bitwright.build.yosys import TOP_GLUE, SynthesisOptions, synthesise
from bitwright.sim.spec import load_design

DOTS = Path(__file__).with_name("dots")
ECP5 = load_target("ecp5-25k")
PREAMBLE = bytes.fromhex("ffffbdb3")


@pytest.fixture(autouse=True)
def _tools() -> None:
    if find("yosys") is None:
        pytest.skip("no Yosys works here")


@pytest.fixture
def _nextpnr() -> None:
    if find("nextpnr-ecp5") is None or find("ecppack") is None:
        pytest.skip("no nextpnr-ecp5 works here")


def _copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DOTS, tmp_path / "design"))


def _candidates() -> list[Tool]:
    return [tool for tool in finder._yosys() if tool.origin.startswith("package")]


def _edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


@pytest.fixture
def _placed_twice(_nextpnr: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a design of another size would be: here the shell's two block RAMs."""
    monkeypatch.setattr(nextpnr, "_MANY_CELLS", 0)
    monkeypatch.setattr(nextpnr, "_FULL_COLUMNS", 0.0)


@pytest.mark.long
@pytest.mark.usefixtures("_placed_twice")
def test_what_fills_its_columns_is_placed_twice(tmp_path: Path) -> None:
    result = implement(DOTS, ECP5, tmp_path / "placed", ImplementOptions(clock_mhz=25.0))
    assert result.figures["bram"].value > 0
    assert result.figures["fmax_mhz"].value > 25 and "bitstream" in result.files
    left = {path.name for path in tmp_path.rglob("*.json")}
    assert not left & {nextpnr._PLACED, nextpnr._FIXED}


@pytest.mark.slow
@pytest.mark.usefixtures("_placed_twice")
def test_places_that_are_found_are_what_nextpnr_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        nextpnr,
        "better_places",
        lambda placed, *, seed: dict.fromkeys(better_places(placed, seed=seed), "X1/Y1/EBR9"),
    )
    with pytest.raises(ToolError, match="failed with exit status"):
        implement(DOTS, ECP5, tmp_path / "nowhere", ImplementOptions(clock_mhz=24.0))


@pytest.mark.long
@pytest.mark.usefixtures("_nextpnr")
def test_bitstream_runs_no_faster_than_its_timing(tmp_path: Path) -> None:
    seen: list[str] = []
    options = ImplementOptions(clock_mhz=150.0)
    result = implement(
        DOTS, ECP5, tmp_path, options, progress=lambda what, done, total: seen.append(what)
    )
    fmax = result.figures["fmax_mhz"]
    assert fmax.source is Source.PLACE_AND_ROUTE
    # Three unpipelined 4-bit dot products: far from 150 MHz, so the clock had to be lowered.
    assert 40 < fmax.value < 150
    assert result.clock_met is False
    assert result.bitstream_clock_mhz is not None
    assert 25 <= result.bitstream_clock_mhz < fmax.value
    assert (tmp_path / result.files["bitstream"]).read_bytes().find(PREAMBLE) >= 0
    assert all((tmp_path / name).is_file() for name in result.files.values())
    assert result.critical_path is not None
    assert ".i_design.i_lane" in result.critical_path.end
    assert result.instances["i_lane0"].lut > 0
    assert result.shell.lut > 100
    total = Resources()
    for part in result.instances.values():
        total += part
    assert total == result.design
    # What is counted from the netlist is what nextpnr fills.
    packed = result.design.lut + result.shell.lut
    assert result.figures["lut"] == Figure(packed, "LUT", Source.PLACE_AND_ROUTE)
    # Cells of synthesis are another count: carry chains that are packed tighter take fewer.
    assert result.figures["lut_cells"].source is Source.SYNTHESIS
    assert 0 < result.figures["lut_cells"].value < 1.3 * packed
    assert result.baud == pytest.approx(3e6, rel=0.02)
    assert {part.instance for part in result.critical_path.by_instance()} <= {
        *result.instances,
        "serial shell",
        "top",
    }
    assert any("PLL setting below 150 MHz" in note for note in result.notes)
    assert {what.split(" (")[0] for what in seen} == {"synthesis", "place and route", "bitstream"}
    assert read_result(tmp_path / RESULT) == result

    again = implement(DOTS, ECP5, tmp_path / "again", options)
    assert all(run.cached for run in again.runs.values())
    assert again.figures == result.figures
    assert again.runs["synthesis"].seconds == result.runs["synthesis"].seconds


@pytest.mark.usefixtures("_nextpnr")
def test_out_of_context_has_timing_but_no_bitstream(tmp_path: Path) -> None:
    options = ImplementOptions(clock_mhz=40.0, bitstream=False)
    result = implement(DOTS, ECP5, tmp_path, options)
    assert result.clock_met is True
    assert "bitstream" not in result.files
    assert result.shell == Resources()
    assert result.figures["ff"].value == result.design.ff
    assert result.figures["lut"].value == result.design.lut


@pytest.mark.parametrize(
    "name", [pytest.param("xc7z020", marks=pytest.mark.long), "cyclonev-5csema4"]
)
def test_synthesis_only_targets_say_so(tmp_path: Path, name: str) -> None:
    result = implement(DOTS, load_target(name), tmp_path)
    assert {figure.source for figure in result.figures.values()} == {Source.SYNTHESIS}
    assert "fmax_mhz" not in result.figures
    assert result.clock_met is None
    assert "synthesised only" in result.notes[0]
    script = tmp_path / result.files["vendor_project"]
    start = script.read_text().splitlines()[0].removeprefix("# ")
    assert f"`{start}` in vendor/" in result.notes[1]
    assert (script.parent / "design" / "design.json").is_file()
    system = tmp_path / result.files["vendor_system"]
    assert system.parent == tmp_path / "vendor" / "system"
    assert system.read_text().splitlines()[0].removeprefix("# ") in result.notes[2]
    assert "not run" in result.notes[2]
    assert set(result.instances) == {TOP_GLUE, "i_lane0", "i_lane1", "i_lane2"}
    assert all(part.lut > 0 for part in result.instances.values())
    assert result.figures["ff"].value >= 3 * 16


def test_too_small_a_target_names_the_smallest_that_fits(tmp_path: Path) -> None:
    text = (Path(load_target.__code__.co_filename).parent / "targets/ecp5-25k.toml").read_text()
    path = tmp_path / "tiny.toml"
    path.write_text(text.replace("ecp5-25k", "tiny").replace("lut = 24288", "lut = 50"))
    with pytest.raises(TargetError) as caught:
        implement(DOTS, load_target(path), tmp_path / "out")
    assert "LUTs" in str(caught.value)
    assert "short" in str(caught.value)
    assert "smallest ecp5 target that fits is ecp5-12k" in str(caught.value)
    assert not (tmp_path / "out" / RESULT).exists()


@pytest.mark.usefixtures("_nextpnr")
def test_nextpnr_tells_a_full_device_from_a_failure(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    made = synthesise(folder, ECP5, tmp_path / "synthesis")
    text = json.loads(made.netlist.read_text())
    cells = text["modules"]["dots"]["cells"]
    multiplier = next(cell for cell in cells.values() if cell["type"] == "MULT18X18D")
    for number in range(40):
        outputs = {p for p, d in multiplier["port_directions"].items() if d == "output"}
        bits = {p: [] if p in outputs else b for p, b in multiplier["connections"].items()}
        cells[f"extra{number}"] = {**multiplier, "connections": bits}
    made.netlist.write_text(json.dumps(text))
    options = PnrOptions(50, out_of_context=True)
    with pytest.raises(TargetError, match="smallest ecp5 target that fits is ecp5-45k"):
        place_and_route(made.netlist, ECP5, tmp_path / "place", options)
    made.netlist.write_text("{}")
    with pytest.raises(ToolError, match="nextpnr"):
        place_and_route(made.netlist, ECP5, tmp_path / "place", options)


def test_multipliers_stay_out_of_dsp_blocks_when_told(tmp_path: Path) -> None:
    with_dsp = synthesise(DOTS, ECP5, tmp_path / "a")
    without = synthesise(DOTS, ECP5, tmp_path / "b", options=SynthesisOptions(dsp=False))
    assert with_dsp.resources.dsp == 6
    assert without.resources.dsp == 0
    assert without.resources.lut > with_dsp.resources.lut


@pytest.mark.slow
def test_every_yosys_here_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native one and the WebAssembly one (slow: it is compiled by its first run)."""
    folder = Path(shutil.copytree(DOTS, tmp_path / "a design"))
    cells = {}
    for tool in _candidates():
        monkeypatch.setattr("bitwright.build.yosys.require", lambda name, tool=tool: tool)
        out = tmp_path / f"out {len(cells)}"
        cells[tool.origin] = dict(synthesise(folder, ECP5, out).cells)
    assert len({str(sorted(found.items())) for found in cells.values()}) == 1, cells


def test_changed_memory_is_another_result(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    first = synthesise(folder, ECP5, tmp_path / "a")
    (folder / "mem/weights.mem").write_text("000001\n" * 8)
    second = synthesise(folder, ECP5, tmp_path / "b")
    assert not second.cached
    assert second.resources.lut < first.resources.lut


def test_source_errors_name_file_and_line(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    _edit(folder, "dots.sv", "assign fire ", "asign fire ")
    with pytest.raises(ToolError, match=r"dots\.sv:3\d: ERROR: syntax error"):
        synthesise(folder, ECP5, tmp_path / "out")


def test_undriven_logic_is_an_error(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    _edit(folder, "dots.sv", "  assign word            = weights[beat_q];\n", "")
    with pytest.raises(ToolError, match=r"Wire .*word.* is used but has no driver"):
        synthesise(folder, ECP5, tmp_path / "out")


def test_time_limit_of_synthesis(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    _edit(folder, "dots.sv", "8'd2;", "8'd3;")
    with pytest.raises(ToolError, match="did not finish within"):
        synthesise(folder, ECP5, tmp_path / "out", timeout=0.05)
    assert not (tmp_path / "out" / "netlist.json").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"top": "dots",', "", "top: Field required"),
        ("mem/weights.mem", "mem/other.mem", "names the file 'mem/other.mem'"),
        ("mem/weights.mem", "../outside.mem", "names the file '../outside.mem'"),
        ('"top": "dots"', '"top": "dots; shell rm"', "top: String should match"),
        ('"dots.sv"', r'"x.sv;\texec\t--\ttouch\tran"', "files.1: String should match"),
        ("mem/weights.mem", r"a\".mem", "memories.0: String should match"),
        ("{", "", "Invalid JSON"),
    ],
)
def test_a_broken_design_folder_is_explained(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    folder = _copy(tmp_path)
    (tmp_path / "outside.mem").write_text("0\n")
    text = (folder / "design.json").read_text()
    (folder / "design.json").write_text(text.replace(old, new, 1))
    with pytest.raises(GraphError) as caught:
        load_design(folder)
    assert message in str(caught.value)


def test_missing_design_and_result(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="generate the RTL first"):
        load_design(tmp_path)
    with pytest.raises(RunError, match="cannot be read"):
        read_result(tmp_path / RESULT)


def test_a_clock_that_the_device_cannot_have_stops_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="clock_mhz: 400 MHz is more than"):
        implement(DOTS, ECP5, tmp_path / "out", ImplementOptions(clock_mhz=400.0))
    assert not (tmp_path / "out").exists()


def test_clocks_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no PLL setting makes 1 MHz"):
        choose_clock(25.0, 1.0)
    board = load_board("ulx3s").model_copy(update={"uart_baud": 300})
    with pytest.raises(TargetError, match="300 baud cannot be made"):
        write_board_design(DOTS, board, ECP5, tmp_path / "board", 37.5)


def test_vendor_projects_name_every_file(tmp_path: Path) -> None:
    for name, program, clock in (
        ("xc7z020", "vivado", "clock.xdc"),
        ("cyclonev-5csema4", "quartus", "clock.sdc"),
    ):
        target = load_target(name)
        script = write_vendor_project(DOTS, target, tmp_path / name, clock_mhz=80)
        text = script.read_text()
        assert program in text
        assert target.part in text
        assert clock in text
        assert ('VERILOG_MACRO "SYNTHESIS=1"' in text) == (program == "quartus")
        assert "-period 12.500 [get_ports ap_clk]" in (tmp_path / name / clock).read_text()
        for file in load_design(DOTS).files:
            assert f"design/{file}" in text
            assert (tmp_path / name / "design" / file).is_file()
    with pytest.raises(TargetError, match="no vendor project"):
        write_vendor_project(DOTS, ECP5, tmp_path / "no", clock_mhz=80)


def test_the_tops_parameters_are_the_designs(tmp_path: Path) -> None:
    """What design.json says of the top's parameters is what is simulated, and so what is built."""
    folder = _copy(tmp_path)
    _edit(folder, "dots.sv", "module dots (", "module dots #(parameter int Lanes = 3) (")
    _edit(
        folder,
        "dots.sv",
        "  dots_lane i_lane2 (",
        "  if (Lanes < 3) assign sum2 = 0; else dots_lane i_lane2 (",
    )
    whole = synthesise(folder, ECP5, tmp_path / "a")
    described = json.loads((folder / "design.json").read_text())
    described["parameters"] = {"Lanes": 2}
    (folder / "design.json").write_text(json.dumps(described))
    fewer = synthesise(folder, ECP5, tmp_path / "b")
    assert fewer.resources.dsp < whole.resources.dsp
    described["parameters"] = {"Lanes": '2; exec -- sh "x"'}
    (folder / "design.json").write_text(json.dumps(described))
    with pytest.raises(BitwrightError, match="parameters"):
        synthesise(folder, ECP5, tmp_path / "c")
