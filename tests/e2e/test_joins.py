# SPDX-License-Identifier: Apache-2.0
"""A network that forks and joins goes through the whole pipeline, and `diff` looks into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.tiny import tiny_recipe

from bitwright.cli import entry as cli
from bitwright.pipeline.api import Pipeline, inspect_model


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, the report included."""
    folder = tmp_path_factory.mktemp("joined") / "run"
    recipe = tiny_recipe(model={"name": "tests.e2e.residual_model:Joined", "options": {}})
    pipeline = Pipeline(recipe, folder)
    pipeline.build(until="simulate")
    pipeline.step("report")
    return folder


def test_the_rtl_is_the_graph_with_and_without_stalls(joined: Path) -> None:
    found = json.loads((joined / "05-simulate" / "result.json").read_text())
    assert found["differences"] == 0
    assert found["interval"] == found["predicted_interval"]
    assert len(found["stall_patterns"]) == 2
    assert found["stall_images"] > 0


def test_every_block_is_in_the_energy_estimate(joined: Path) -> None:
    """What has arithmetic or memory is counted: no block of a join is free by oversight."""
    from bitwright.hw.blocks import BLOCKS
    from bitwright.pipeline.steps.energy import _COUNTERS, _FREE

    assert set(BLOCKS) == set(_COUNTERS) | set(_FREE)
    assert not set(_COUNTERS) & set(_FREE)


def test_diff_names_a_fault_behind_the_sum(
    joined: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal as built; with another weight word, that layer and not what it feeds."""
    import shutil

    run = Path(shutil.copytree(joined, tmp_path / "run"))
    assert cli.run(["diff", str(run)]) == 0
    assert "hardware graph / RTL: equal" in capsys.readouterr().out
    memory = run / "04-map" / "rtl" / "mem" / "mix_weight.mem"
    lines = memory.read_text().splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("//"):
            lines[number] = line[:-1] + format(int(line[-1], 16) ^ 1, "x")
    memory.write_text("\n".join(lines) + "\n")
    assert cli.run(["diff", str(run), "--json"]) == 10
    rtl = json.loads(capsys.readouterr().out)["stages"][-1]
    assert rtl["first"]["layer"] == "mix"
    assert rtl["first"]["node"] == "mix (matvec)"


def test_inspect_knows_the_same_network() -> None:
    found = inspect_model("tests.e2e.residual_model:Joined", input_shape=(8, 8, 1), classes=10)
    assert found.is_convertible
    rows = {row.node: row for row in found.rows}
    assert rows["add"].blocks[-1] == "add"
    assert "concat" in rows["cat"].operations
    assert "depthwise" in rows["deep"].blocks
