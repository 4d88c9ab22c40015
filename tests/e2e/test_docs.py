# SPDX-License-Identifier: Apache-2.0
"""What the README and the examples show is run as it stands there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.program import run_program

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


def test_the_page_on_ones_own_loop(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "own-loop.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "program.py").write_text(block)
    assert "all equal" in run_program(tmp_path / "program.py", tmp_path, OMP_NUM_THREADS="1")
    assert (tmp_path / "design" / "report" / "report.html").is_file()


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
