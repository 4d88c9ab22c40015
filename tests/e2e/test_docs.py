# SPDX-License-Identifier: Apache-2.0
"""What the README and the examples show is run as it stands there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.program import run_program

from bitwright.base.tools.finder import find
from bitwright.cli import entry

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
#: Files below BITWRIGHT_DATA without which an example has nothing to show.
NEEDS = {"05_skynet": "skynet/dac.weights"}


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    assert all(len(block.split("\n")) <= 22 for block in blocks), "a README is read, not studied"
    for number, block in enumerate(blocks):
        path = tmp_path / f"block_{number}.py"
        path.write_text(block)
        run_program(path, tmp_path, OMP_NUM_THREADS="1")
    assert (tmp_path / "rtl" / "design.json").is_file()


OWN_LOOP = (ROOT / "docs" / "own-loop.md").read_text()


def run_blocks(number: int, folder: Path) -> str:
    """The first programs of the page on one's own loop, as one."""
    blocks = re.findall(r"```python\n(.*?)```", OWN_LOOP, re.DOTALL)[:number]
    assert len(blocks) == number
    (folder / "program.py").write_text("\n".join(blocks))
    return run_program(folder / "program.py", folder, OMP_NUM_THREADS="1")


@pytest.mark.long
def test_the_page_on_ones_own_loop(tmp_path: Path) -> None:
    assert "all equal" in run_blocks(1, tmp_path)
    assert (tmp_path / "design" / "report" / "report.html").is_file()


@pytest.mark.slow
def test_the_ways_to_a_bitstream_and_the_simulated_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if find("yosys") is None or find("nextpnr-ecp5") is None or find("ecppack") is None:
        pytest.skip("no Yosys or no nextpnr-ecp5 works here")
    monkeypatch.chdir(tmp_path)
    assert "bitstream: design/implement/design.bit" in run_blocks(2, tmp_path)
    made = (tmp_path / "design" / "implement" / "design.bit").read_bytes()
    commands = re.findall(
        r"^bitwright (.*?)(?: +#.*)?$",
        "\n".join(re.findall(r"```console\n(.*?)```", OWN_LOOP, re.DOTALL)), re.MULTILINE,
    )  # fmt: skip
    assert len(commands) >= 8
    capsys.readouterr()
    for command in commands:
        code = entry.run(command.split())
        said = capsys.readouterr()
        assert code == 0, f"{command}: {said.err}"
        assert not command.startswith("board") or " 0 differ" in said.out
    assert (tmp_path / "design" / "implement" / "design.bit").read_bytes() == made
    assert (tmp_path / "net" / "implement" / "design.bit").is_file()


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text().splitlines()) < 150
    need = NEEDS.get(path.stem)
    if need and not (Path(os.environ.get("BITWRIGHT_DATA", ".")) / need).is_file():
        pytest.skip(f"no {need} in the test data")
    assert run_program(path, tmp_path, OMP_NUM_THREADS="1")


def test_every_example_is_listed() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    assert EXAMPLES and all(path.name in text for path in EXAMPLES)
