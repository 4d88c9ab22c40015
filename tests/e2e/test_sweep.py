# SPDX-License-Identifier: Apache-2.0
"""`bitwright sweep` as a user has it: real trainings, killed and restarted, here and on Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.tiny import TINY

from bitwright.cli import entry
from bitwright.pipeline.run_files import read_record

pytestmark = pytest.mark.timeout(900)

SMALL = {
    **TINY,
    "train": {
        "float": {"epochs": 1, "batch_size": 64, "lr": 0.01, "threads": 1},
        "quantized": {"epochs": 1, "batch_size": 64, "lr": 0.005, "threads": 1},
    },
}
GRID = ("--over", "bits=4,2", "seeds=2", "--workers", "2", "--threads", "1")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "recipe.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def swept(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, result and messages of a call."""
    capsys.readouterr()
    code = entry.run(["sweep", *map(str, arguments), "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err  # nothing but our result is on standard output


def artefacts(out: Path) -> dict[str, str]:
    """What every step of every point has made, except logs."""
    return {
        f"{step.parent.parent.name}/{step.parent.name}": record.content
        for step in sorted(out.glob("points/*/*/step.json"))
        if (record := read_record(step.parent)) is not None
    }


class Killer(threading.Thread):
    """Kills the process of the first point that is seen at work."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self.out = out
        self.killed = 0

    def run(self) -> None:
        while not self.killed:
            for work in self.out.glob("points/*/.work-*"):
                words = (work.parent / ".lock").read_text().split()
                if len(words) > 1:
                    self.killed = int(words[1])
                    os.kill(self.killed, signal.SIGKILL)
                    return
            time.sleep(0.02)


def test_a_killed_point_is_redone_and_none_is_lost(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recipe.parent / "out"
    killer = Killer(out)
    killer.start()
    code, found, err = swept(capsys, recipe, *GRID, "--out", out)
    assert code == 0, err
    assert killer.killed and sorted(p["attempts"] for p in found["points"]) == [1, 1, 1, 2]
    assert [p["name"] for p in found["points"]] == [
        f"bits={bits}, seed={seed}" for bits in (4, 2) for seed in (0, 1)
    ]
    # Two seeds, so two float trainings; the other points have taken them over.
    taken = [bool(p["value"]["taken_from"]) for p in found["points"]]
    assert sorted(taken) == [False, False, True, True]
    assert [(row["bits"], row["seeds"]) for row in found["rows"]] == [(4, 2), (2, 2)]
    assert all(row["accuracy, quantized"]["error"] is not None for row in found["rows"])
    for kind in ("md", "json", "html", "csv-results", "csv-points"):
        assert Path(found["files"][kind]).stat().st_size > 100

    # The same call again does only what is gone, and gets the same bits.
    before = artefacts(out)
    assert len(before) == 8
    lost = next((out / "points").glob("bits-2_seed-1-*"))
    shutil.rmtree(lost)
    code, again, _ = swept(capsys, recipe, *GRID, "--out", out)
    assert code == 0 and again["rows"] == found["rows"] and artefacts(out) == before
    assert [p["was_done"] for p in again["points"]] == [True, True, True, False]


def test_a_point_that_fails_is_a_row_with_its_reason(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    devices = "train.float.device=cpu,mps"  # no machine that runs these tests has the second
    code, found, err = swept(
        capsys, recipe, "--over", devices, "--until", "train", "--workers", 2, "--out", out
    )
    good, bad = found["points"]
    assert code == 1 and good["failure"] is None
    assert "mps" in bad["failure"]["message"] and bad["failure"]["hint"]
    assert "failed:" in err and "mps" in (out / "sweep.md").read_text()
    assert found["rows"][0]["accuracy, float"]["value"] > 0
    assert found["rows"][1]["accuracy, float"] is None


def test_a_model_that_cannot_be_built_is_known_before_the_first_point_starts(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, found, _ = swept(
        capsys, recipe, "--over", "model.name=digits_cnn,no_such_model", "--out", out
    )
    assert code != 0 and "no_such_model" in str(found["error"])
    assert not list(out.glob("points/*"))


@pytest.mark.long
def test_the_same_bits_on_a_local_ray_cluster(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_spec("ray") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("ray is not installed")
        pytest.skip("ray is not installed (pip install 'bitwright[ray]')")
    out = tmp_path / "out"
    killer = Killer(out)
    killer.start()
    grid = ("--over", "bits=4,2", "seed=0", "--workers", 2, "--threads", 1)
    code, found, err = swept(capsys, recipe, *grid, "--ray", "local", "--out", out)
    assert code == 0, err
    assert killer.killed and sorted(p["attempts"] for p in found["points"]) == [1, 2]
    made = artefacts(out)
    assert len(made) == 4
    here = artefacts(recipe.parent / "out")
    if here:  # the sweep by processes has run before: of equal points all is equal
        assert made == {name: content for name, content in here.items() if name in made}
