# SPDX-License-Identifier: Apache-2.0
"""Targets and boards as data: capacities, errors that name file and field, what fits where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import TargetError
from bitwright.base.figures import Resources
from bitwright.build.clocks import check_clock, reachable_clock
from bitwright.build.rates import Stream, link_of
from bitwright.build.target import (
    Flow,
    list_targets,
    load_board,
    load_target,
    require_fit,
    smallest_fitting,
)

GOOD = """
name = "mine"
description = "a board of my own"
family = "ecp5"
part = "LFE5U-25F-6BG256C"
package = "CABGA256"
speed = "6"
flow = "place-and-route"
default_clock_mhz = 50.0
[resources]
lut = 24288
ff = 24288
dsp = 28
bram = 56
bram_bits = 18432
[power]
static_watts = 0.1
source = "guess"
"""


def test_the_promised_targets_are_there() -> None:
    flows = {target.name: target.flow for target in list_targets()}
    assert flows == {
        "ecp5-12k": Flow.PLACE_AND_ROUTE,
        "ecp5-25k": Flow.PLACE_AND_ROUTE,
        "ecp5-45k": Flow.PLACE_AND_ROUTE,
        "ecp5-85k": Flow.PLACE_AND_ROUTE,
        "ice40-up5k": Flow.PLACE_AND_ROUTE,
        "ice40-hx8k": Flow.PLACE_AND_ROUTE,
        "xc7z020": Flow.SYNTHESIS_ONLY,
        "xczu9eg": Flow.SYNTHESIS_ONLY,
        "xczu3eg": Flow.SYNTHESIS_ONLY,
        "cyclonev-5csema4": Flow.SYNTHESIS_ONLY,
    }


def test_every_board_of_a_target_exists_and_names_it() -> None:
    for target in list_targets():
        if target.board is not None:
            assert target.name in load_board(target.board).targets


def test_users_own_target_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    target = load_target(path)
    assert target.capacity == Resources(lut=24288, ff=24288, dsp=28, bram=56)
    assert load_target(str(path)) == target


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("lut = 24288", "lut = -1", ["resources.lut", "greater than 0", "-1"]),
        ("lut = 24288", 'lut = "many"', ["resources.lut", "integer", "many"]),
        ('family = "ecp5"', 'family = "gowin"', ["family", "gowin", "xc7"]),
        ("dsp = 28", "", ["resources.dsp", "required"]),
        ('speed = "6"', 'speed = "6"\ncolour = "red"', ["colour", "not permitted"]),
        (
            'speed = "6"',
            'speed = "6"\nboard = "../secret.toml"',
            ["board: ", "implement.board=FILE"],
        ),
        (
            'speed = "6"',
            'speed = "6"\nboard = "my-board.toml"',
            ["board: ", "implement.board=FILE"],
        ),
        ('speed = "6"', 'speed = "6"\nboard = "-x"', ["board: ", "bitwright list boards"]),
        ("[power]", "[power", ["cannot be read", "line 16"]),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(TargetError) as caught:
        load_target(path)
    assert caught.value.where == str(path)
    for word in expected:
        assert word in str(caught.value)


def test_unknown_target_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"unknown target 'ecp6'.*ecp5-25k.*xczu9eg"):
        load_target("ecp6")
    with pytest.raises(TargetError, match="no such file"):
        load_target(tmp_path / "absent.toml")


def test_too_small_says_what_is_short_and_what_fits() -> None:
    with pytest.raises(TargetError) as caught:
        require_fit(Resources(lut=30000, bram=60), load_target("ecp5-25k"), stage="synthesis")
    text = str(caught.value)
    assert "LUTs: 30000 needed, 24288 there, 5712 short" in text
    assert "block RAMs: 60 needed, 56 there, 4 short" in text
    assert "flip-flops" not in text
    assert "smallest ecp5 target that fits is ecp5-45k" in text


def test_too_large_for_all_says_so() -> None:
    with pytest.raises(TargetError, match="no known xc7 target is large enough"):
        require_fit(Resources(lut=10**6), load_target("xc7z020"), stage="synthesis")


@given(
    st.builds(
        Resources,
        lut=st.integers(0, 100_000),
        ff=st.integers(0, 100_000),
        dsp=st.integers(0, 200),
        bram=st.integers(0, 250),
    )
)
def test_smallest_fitting_is_smallest(used: Resources) -> None:
    chosen = smallest_fitting(used, "ecp5")
    candidates = [t for t in list_targets() if t.family == "ecp5" and used.fits(t.capacity)]
    if chosen is None:
        assert not candidates
        return
    assert used.fits(chosen.capacity)
    assert chosen.resources.lut == min(t.resources.lut for t in candidates)


def test_clocks_of_every_target_are_known_with_their_source() -> None:
    for target in list_targets():
        assert target.clock is not None and target.clock.source
        assert (target.clock.best_mhz is not None) == target.places_and_routes
        check_clock(target, target.default_clock_mhz)


@pytest.mark.parametrize("mhz", [400.0, 100_000.0])
def test_a_clock_that_the_device_cannot_have_is_refused(mhz: float) -> None:
    """37 202 images/s at 400 MHz were promised on an ECP5, and 100 GHz were taken."""
    with pytest.raises(TargetError, match="257 MHz") as caught:
        check_clock(load_target("ecp5-45k"), mhz)
    assert f"{mhz:g} MHz" in str(caught.value) and "191 MHz on ecp5" in str(caught.value)
    with pytest.raises(TargetError, match="464 MHz"):
        check_clock(load_target("xc7z020"), 465)


def test_a_clock_that_designs_do_not_reach_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    target = load_target("ecp5-85k")
    check_clock(target, 100.0)
    assert not caplog.records
    check_clock(target, 217.0)
    assert "clock_mhz is 217; designs of this kind reach 100 to 191 MHz on ecp5" in caplog.text
    assert reachable_clock(target, 217.0) == 191.0
    assert reachable_clock(target, 120.0) == 120.0
    assert reachable_clock(load_target("xc7z020"), 300.0) == 300.0


def test_clocks_of_a_users_own_target(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    check_clock(load_target(path), 1e5)  # nothing is known of it
    path.write_text(GOOD + '[clock]\nlimit_mhz = 90\nsource = "mine"\n')
    with pytest.raises(TargetError, match="90 MHz"):
        check_clock(load_target(path), 100)
    for wrong in ("typical_mhz = 50", "typical_mhz = 60\nbest_mhz = 50"):
        path.write_text(GOOD + f'[clock]\n{wrong}\nlimit_mhz = 90\nsource = "mine"\n')
        with pytest.raises(TargetError, match="typical_mhz"):
            load_target(path)


def test_the_rate_of_a_serial_link_follows_from_bytes_and_baud() -> None:
    """An RGB image of 30 x 30 at 1 Mbaud: 35 images a second, whatever the core does."""
    target = load_target("ecp5-85k")
    link = link_of(target, [Stream(900, 24)], [Stream(5, 24, 2), Stream(1, 4)])
    assert link is not None
    # 2 700 bytes in packets of 255 with 12 around each, which go over the ends of frames; back ten
    # elements of 12 bits, each in two bytes however many travel at a time, and one of 4, in one.
    assert (link.bytes_in, link.bytes_out) == (2700 + 128, 21 + 24)
    assert link.baud == load_board("ulx3s").uart_baud
    assert link.images_per_s == pytest.approx(link.baud / 10 / link.bytes_in)
    slower = link_of(target, [Stream(900, 24)], [Stream(10, 12)], 1e6)
    assert slower is not None and round(slower.images_per_s, 2) == round(1e5 / link.bytes_in, 2)
    back = link_of(target, [Stream(4, 8)], [Stream(4096, 12)], 1e6)  # an image comes back
    assert back is not None and back.bytes_out == 8192 + 64 * 24
    assert back.images_per_s == pytest.approx(1e5 / back.bytes_out)
    assert link_of(load_target("xc7z020"), [Stream(4, 8)], [Stream(4, 8)]) is None
    assert link_of(target, [Stream(4, 8)] * 2, [Stream(4, 8)]) is None
