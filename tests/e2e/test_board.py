# SPDX-License-Identifier: Apache-2.0
"""`bitwright board`: a run through the simulated board, and image files as training sees them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bitwright.base.errors import DataError, RunError
from bitwright.base.tools.finder import find
from bitwright.build.simulated import Faults
from bitwright.cli.entry import run as cli
from bitwright.data import load_dataset
from bitwright.data.preprocessing import HostInput
from bitwright.data.spec import DatasetSpec
from bitwright.host import Link, SerialLine, read_description
from bitwright.host.images import image_files, read_image, to_levels
from bitwright.pipeline.board import run_on_board
from bitwright.pipeline.board_subject import find_subject
from bitwright.pipeline.steps.lower import host_input
from bitwright.pipeline.steps.quantize import read_integers


@pytest.fixture
def _board() -> None:
    pytest.importorskip("serial", reason="pyserial is not installed")
    if find("verilator") is None or find("c++") is None:
        pytest.skip("no Verilator or C++ compiler works here")


@pytest.mark.usefixtures("_board")
def test_a_run_on_a_bad_line_equals_its_graph(built: Path) -> None:
    faults = Faults(0.004, 0.003, 0.003, seed=2)
    result = run_on_board(find_subject(built), [], simulated=True, faults=faults, count=40)
    assert result.compared == 40 * 11 and result.differences == 0
    assert result.line is not None and result.line.damaged > 0
    assert result.description.classes == tuple("0123456789")
    assert result.labels is not None and len(result.labels) == len(result.names) == 40
    assert (result.outputs["scores"] < 0).any()
    assert 0 < result.line_rate < result.core_rate


def test_a_host_in_c_goes_over_no_file_of_ones_own(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "bitwright_main.c"
    mine.write_text("int main(void) { return 0; }\n")
    assert cli(["board", "serve", str(built), "--host", str(tmp_path)]) != 0
    assert "--force" in capsys.readouterr().err
    assert [entry.read_text()[:8] for entry in tmp_path.iterdir()] == ["int main"]


@pytest.mark.long
@pytest.mark.usefixtures("_board")
def test_a_board_that_hosts_of_ones_own_talk_to(built: Path, tmp_path: Path) -> None:
    """`board serve`: the C host that it writes and a session in Python give the graph's scores."""
    argv = [sys.executable, "-m", "bitwright", "board", "serve", str(built), "--json"]
    argv += ["--host", str(tmp_path / "host")]
    pixels = np.random.default_rng(6).integers(0, 256, (8, 8), dtype=np.uint8)
    (tmp_path / "image.pgm").write_bytes(b"P5\n8 8\n255\n" + pixels.tobytes())
    board = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert board.stdout is not None
        said = json.loads("".join(iter(board.stdout.readline, "}\n")) + "}")
        description = read_description(tmp_path / "host" / "board.json")
        assert description.digest == said["digest"] and description.preprocessing is not None
        levels = to_levels(pixels[None, :, :, None], description.preprocessing)
        with Link.open(SerialLine.open(said["port"], description.baud), description) as link:
            answers = [a.payload for a in link.run(description.input.pack(levels))]
        scores = description.unpack(answers)["scores"][0].tolist()
        program = [*_compiler(), "-std=c99", "bitwright_board.c", "bitwright_main.c", "-o", "host"]
        subprocess.run(program, cwd=tmp_path / "host", check=True, timeout=60)
        done = subprocess.run(
            [tmp_path / "host" / "host", said["port"], tmp_path / "image.pgm"],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        board.send_signal(signal.SIGINT)
        assert board.wait(60) == 0
    finally:
        board.kill()
        board.communicate()
    expected = find_subject(built).graph.run({"x": levels})["scores"]
    assert scores == np.ravel(expected).tolist()
    assert [int(word) for word in done.stdout.split()[: len(scores)]] == scores


def _compiler() -> tuple[str, ...]:
    tool = find("cc")
    if tool is None:
        pytest.skip("no C compiler works here")
    return tool.command


@pytest.mark.usefixtures("_board")
def test_differences_are_counted_and_end_with_an_error(
    built: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bitwright.ir import executor

    right = executor.Executor.run

    def wrong(self: Any, feeds: Any) -> Any:
        found = right(self, feeds)
        return {**found, "scores": found["scores"] + (np.arange(10) == 3)}

    monkeypatch.setattr(executor.Executor, "run", wrong)
    code = cli(["board", str(built), "--simulated", "--count", "4", "--json"])
    assert code == 10
    assert json.loads(capsys.readouterr().out)["differences"] == 4


def test_what_cannot_be_run_is_said(built: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        find_subject("never_built")
    with pytest.raises(RunError, match="has no RTL"):
        find_subject(tmp_path)
    with pytest.raises(RunError, match=r"has no board\.json"):
        run_on_board(find_subject(built), [], port="/dev/null")
    assert cli(["board", "load", str(built)]) == RunError.exit_code
    with pytest.raises(DataError, match="no images are here"):
        image_files([tmp_path])


def _pictures(folder: Path) -> Path:
    """Two classes of pictures of several sizes, wide and high."""
    from PIL import Image

    rng = np.random.default_rng(4)
    for number, (height, width) in enumerate([(8, 8), (30, 20), (9, 41), (64, 64), (16, 11)] * 4):
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (height, width), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02d}.png")
    return folder


@pytest.mark.parametrize("stream", [None, {"short_side": 12}], ids=["stretched", "cut out"])
def test_a_host_sees_image_files_as_training_does(
    built: Path, tmp_path: Path, stream: dict[str, int] | None
) -> None:
    """To the bit: levels of every file, by the data set and by the description."""
    folder = _pictures(tmp_path / "pictures")
    spec = DatasetSpec.model_validate(
        {"name": "folder", "path": folder, "image_size": (8, 8), "grey": True, "stream": stream}
    )
    data, integers = load_dataset(spec), read_integers(built / "02-quantize")
    work: Any = SimpleNamespace(data=data, recipe=SimpleNamespace(data=spec))
    given = HostInput.model_validate_json(host_input(work, integers).model_dump_json())
    assert given.classes == ("a", "b") and given.preprocessing is not None
    files = image_files([folder])
    for part in (data.train, data.validation, data.test):
        trained = integers.input_levels(torch.from_numpy(part.reals())).permute(0, 2, 3, 1).numpy()
        for index, expected in zip(part.indices, trained, strict=True):
            found = to_levels(read_image(files[index], given.preprocessing), given.preprocessing)
            assert np.array_equal(found, expected), files[index]


def test_a_data_set_with_a_scale_of_its_own_takes_image_files(built: Path) -> None:
    """Digits have 17 grey levels; a file's 255 is their 16, and its middle their middle."""
    given = HostInput.model_validate_json((built / "03-lower" / "input.json").read_text())
    assert given.preprocessing is not None
    levels = to_levels(np.array([[[0], [128], [255]]], np.uint8), given.preprocessing).ravel()
    integers = read_integers(built / "02-quantize")
    reals = torch.zeros(1, 1, 8, 8)
    reals[0, 0, 0, :3] = torch.tensor([0, 8 / 16, 16 / 16])
    assert levels.tolist() == integers.input_levels(reals)[0, 0, 0, :3].tolist()
