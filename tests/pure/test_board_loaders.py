# SPDX-License-Identifier: Apache-2.0
"""Loading bitstreams: which program, with which arguments, and what is said without one."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from bitwright.base.errors import TargetError, ToolError
from bitwright.build.loaders import load_bitstream
from bitwright.build.target import list_boards, load_board


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, and empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    return folder


def _program(folder: Path, name: str, status: int = 0) -> None:
    program = folder / name
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/{name}.said\nexit {status}\n')
    program.chmod(0o755)


@pytest.fixture
def bitstream(tmp_path: Path) -> Path:
    file = tmp_path / "a design; rm.bit"
    file.write_bytes(b"bits")
    return file


def test_the_first_loader_that_is_there_gets_the_bitstream(path: Path, bitstream: Path) -> None:
    board = load_board("ulx3s")
    _program(path, "fujprog")
    assert load_bitstream(bitstream, board) == [str(path / "fujprog"), str(bitstream)]
    _program(path, "openFPGALoader")
    command = load_bitstream(bitstream, board)
    assert command == [str(path / "openFPGALoader"), "--board=ulx3s", str(bitstream)]
    said = (path / "openFPGALoader.said").read_text().splitlines()
    assert said[-1] == f"--board=ulx3s {bitstream}"
    assert load_bitstream(bitstream, board, loader="fujprog")[0] == str(path / "fujprog")


def test_no_loader_and_failing_loaders_are_said(path: Path, bitstream: Path) -> None:
    board = load_board("ulx3s")
    with pytest.raises(ToolError, match="none of openFPGALoader, fujprog is installed") as caught:
        load_bitstream(bitstream, board)
    assert "doctor" in str(caught.value.hint)
    with pytest.raises(ToolError, match="is no loader of ulx3s"):
        load_bitstream(bitstream, board, loader="rm")
    _program(path, "fujprog", status=3)
    with pytest.raises(ToolError, match="failed with exit status 3"):
        load_bitstream(bitstream, board)
    with pytest.raises(ToolError, match="cannot be read"):
        load_bitstream(bitstream.with_name("none.bit"), board)


def test_every_loader_of_a_board_is_one_that_doctor_knows() -> None:
    from bitwright.base.tools.finder import locate

    for board in list_boards():
        for name in board.loaders:
            locate(name)  # raises for a name that it does not know


@pytest.mark.parametrize(
    "table",
    [
        'cc = ["-x", "c", "-E", "-o", "HARMED"]',
        'yosys = ["-p", "exec -- touch HARMED"]',
        'git = ["-c", "alias.x=!touch HARMED", "x"]',
        'openFPGALoader = ["--dump-flash", "--file-size=9"]',
        'openFPGALoader = ["-f"]',
        'openFPGALoader = ["--board=ulx3s --write-flash"]',
        'openFPGALoader = ["--cable=../../x"]',
        'fujprog = ["-j", "flash"]',
    ],
)
def test_a_board_of_a_stranger_runs_no_other_program(tmp_path: Path, table: str) -> None:
    text = resources.files("bitwright.build").joinpath("boards/ulx3s.toml").read_text()
    before, _, rest = text.partition("[loaders]")
    file = tmp_path / "board.toml"
    file.write_text(f"{before}[loaders]\n{table}\n\n[pins]{rest.partition('[pins]')[2]}")
    with pytest.raises(TargetError, match="loaders"):
        load_board(file)


def test_options_that_say_which_board_it_is_are_allowed(tmp_path: Path) -> None:
    text = resources.files("bitwright.build").joinpath("boards/ulx3s.toml").read_text()
    file = tmp_path / "board.toml"
    options = '["--cable=ft232", "--vid=0x0403", "--freq=15M", "--fpga-part=LFE5U-85F"]'
    file.write_text(text.replace('["--board=ulx3s"]', options))
    assert len(load_board(file).loaders["openFPGALoader"]) == 4
