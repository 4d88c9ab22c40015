# SPDX-License-Identifier: Apache-2.0
"""Whatever a user can do wrong ends with one clear message, and costs no finished work."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.e2e.tiny import TINY, assert_tells_nothing_of_the_machine, tiny_recipe
from tests.program import Program

import bitwright
from bitwright.base import tools
from bitwright.base.errors import (
    DataError,
    ModelError,
    RecipeError,
    RunError,
    TargetError,
    ToolError,
)
from bitwright.cli import entry
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.run_files import digest_of, read_record

SOURCE = Path(bitwright.__file__).parents[1]

BAD_MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.fc = nn.Linear(144, num_classes)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.fc(torch.softmax(x, 1).flatten(1))
"""
GOOD_MODEL = """\
from torch import nn

WIDTH = 4


def make(num_classes, input_shape):
    height, width, channels = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(WIDTH * (height // 2) * (width // 2), num_classes),
    )
"""


def write_recipe(folder: Path, **changes: object) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return path


def refused(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[object], code: int, *said: str
) -> str:
    """The call ends with this code and one message that says these words."""
    capsys.readouterr()
    assert entry.run([str(argument) for argument in arguments]) == code
    _, error, told = capsys.readouterr().err.partition("error: ")  # slow work shows its progress
    text = error + told
    assert text.startswith("error: ") and "Traceback" not in text
    for words in said:
        assert words in text, text
    return text


def nothing_done(folder: Path) -> bool:
    return not any(folder.glob("0*"))


def test_an_operation_that_cannot_be_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net_with_norm.py").write_text(BAD_MODEL)
    recipe = write_recipe(tmp_path, model="net_with_norm:Net")
    run_dir = tmp_path / "run"
    said = (
        "norm (GroupNorm)",
        "net_with_norm.py:13",
        "use BatchNorm",
        "softmax",
        "net_with_norm.py:14",
    )
    refused(capsys, ["build", recipe, "--run-dir", run_dir], ModelError.exit_code, *said)
    assert nothing_done(run_dir), "it must be told before any work starts"


@pytest.mark.parametrize(
    ("source", "model", "said"),
    [
        ("", "absent_module:make", "cannot import 'absent_module'"),
        ("def make(:\n", "m_syntax:make", "m_syntax.py:1"),
        ("x = 1\n", "m_empty:make", "no function or class 'make'"),
        ("def make():\n    return 3\n", "m_int:make", "not an nn.Module"),
        ("def make():\n    raise ValueError('no')\n", "m_raises:make", "ValueError: no"),
        (
            "from torch import nn\ndef make():\n"
            "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))\n",
            "m_seven:make",
            "expected scores of shape (1, 10)",
        ),
        (
            "from torch import nn\ndef make():\n    return nn.Linear(3, 10)\n",
            "m_shape:make",
            "fails on an image of",
        ),
    ],
)
def test_a_model_that_cannot_be_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, model: str, said: str
) -> None:
    (tmp_path / f"{model.partition(':')[0]}.py").write_text(source) if source else None
    recipe = write_recipe(tmp_path, model=model)
    run_dir = tmp_path / "run"
    refused(capsys, ["build", recipe, "--run-dir", run_dir], ModelError.exit_code, said)
    assert nothing_done(run_dir)


def test_recipes_with_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[dict[str, object], tuple[str, ...]]] = [
        ({"hardwear": {}}, ("hardwear: unknown key", "'hardware'")),
        ({"seed": "many"}, ("seed", "'many'")),
        ({"model": "lenet6"}, ("unknown model 'lenet6'", "lenet")),
        ({"data": "digit"}, ("unknown data set 'digit'", "mnist")),
        ({"quant": {"weight": "int40"}}, ("quant.weight", "int40")),
        ({"model": {"name": "tfc", "options": {"wides": 3}}}, ("no option 'wides'", "widths")),
    ]
    for changes, said in cases:
        recipe = write_recipe(tmp_path, **changes)
        arguments = ["build", recipe, "--run-dir", tmp_path / "run"]
        refused(capsys, arguments, RecipeError.exit_code, *said)


@pytest.mark.parametrize("harm", ["truncated", "garbage", "missing", "empty"])
def test_broken_data_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: str) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for stem, magic, shape in (
        ("train-images-idx3-ubyte", 0x803, (60_000, 28, 28)),
        ("train-labels-idx1-ubyte", 0x801, (60_000,)),
        ("t10k-images-idx3-ubyte", 0x803, (10_000, 28, 28)),
        ("t10k-labels-idx1-ubyte", 0x801, (10_000,)),
    ):
        header = b"".join(value.to_bytes(4, "big") for value in (magic, *shape))
        content = gzip.compress(header + b"\x01" * 1000, mtime=0)
        match harm:
            case "truncated":
                content = content[:-20]
            case "garbage":
                content = b"not a gzip file at all"
            case "empty":
                content = b""
        if harm != "missing":
            (folder / f"{stem}.gz").write_bytes(content)
    recipe = write_recipe(tmp_path, data="mnist", model="tfc")
    arguments = ["build", recipe, "--run-dir", tmp_path / "run", "--data", folder]
    refused(capsys, arguments, DataError.exit_code, "mnist")


def test_a_checkpoint_that_is_broken(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of a training run, whose checkpoint somebody has cut short."""
    final, work = copied / "01-train", copied / ".work-01-train"
    record = read_record(final)
    assert record is not None
    final.rename(work)
    (work / "step.json").unlink()
    (work / ".key").write_text(digest_of([record.key, dict(record.inputs)]))
    checkpoint = work / "logs" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    refused(capsys, ["build", copied], DataError.exit_code, "checkpoint", "train again")


def test_a_target_that_is_too_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "small.toml"
    text = (SOURCE / "bitwright/build/targets/ecp5-25k.toml").read_text()
    lines = {"name": 'name = "small"', "lut": "lut = 700", "ff": "ff = 700"}
    small.write_text(
        "\n".join(lines.get(line.partition("=")[0].strip(), line) for line in text.splitlines())
    )
    recipe = write_recipe(tmp_path)
    arguments = ["build", recipe, "--run-dir", tmp_path / "run", "--target", small]
    said = ("LUTs", "short", "the smallest target that fits is ecp5-12k")
    refused(capsys, arguments, TargetError.exit_code, *said)
    assert nothing_done(tmp_path / "run")
    unknown = ["build", recipe, "--run-dir", tmp_path / "run", "--target", "ecp6"]
    refused(capsys, unknown, TargetError.exit_code, "'ecp6'", "ecp5-45k")


@pytest.mark.parametrize(
    ("board", "said"),
    [("nowhere", "unknown board 'nowhere'"), ("icebreaker", "it is made with ice40-up5k")],
)
def test_a_board_that_is_not_for_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], board: str, said: str
) -> None:
    recipe = write_recipe(tmp_path, hardware={"target": "ecp5-25k"}, implement={"board": board})
    arguments = ["build", recipe, "--run-dir", tmp_path / "run"]
    refused(capsys, arguments, TargetError.exit_code, said)
    assert nothing_done(tmp_path / "run")


def test_a_rate_that_cannot_be_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path, hardware={"target": "ecp5-25k", "target_fps": 1e9})
    arguments = ["build", recipe, "--run-dir", tmp_path / "run"]
    refused(capsys, arguments, TargetError.exit_code, "ecp5-25k")
    assert nothing_done(tmp_path / "run")


def test_a_budget_that_is_too_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path, hardware={"target": "ecp5-25k", "budget": {"lut": 100}})
    arguments = ["build", recipe, "--run-dir", tmp_path / "run"]
    refused(capsys, arguments, TargetError.exit_code, "short", "raise the budget")


@pytest.mark.parametrize("tool", ["verilator", "yosys"])
def test_a_missing_tool_is_told_before_training(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
) -> None:
    empty = tools.finder._Search(None, ())
    found = tools.finder._search
    monkeypatch.setattr(
        tools.finder, "_search", lambda name: empty if name == tool else found(name)
    )
    recipe = write_recipe(tmp_path)
    arguments = ["build", recipe, "--run-dir", tmp_path / "run"]
    refused(capsys, arguments, ToolError.exit_code, tool, "was not found", "install it with")
    assert nothing_done(tmp_path / "run")


@pytest.mark.parametrize("step", ["train", "quantize", "lower", "map", "simulate", "report"])
def test_a_full_disk_at_any_step_loses_nothing(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    final = next(copied.glob(f"0*-{step}"))
    done = {path.name for path in copied.glob("0*")} - {final.name}
    shutil.rmtree(final)
    original = os.fsync

    def fsync(handle: int) -> None:
        if f".work-{final.name}" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        said = ("disk is full", f"in step {step}", "free some space")
        refused(capsys, [step, copied], RunError.exit_code, *said)
    assert {path.name for path in copied.glob("0*")} == done
    pipeline = Pipeline(tiny_recipe(), copied)
    pipeline.step(step)
    assert [o.name for o in pipeline.outcomes if not o.was_done] == [step]


def spawn(arguments: Sequence[object], folder: Path) -> Program:
    code = "from bitwright.cli import main; main()"
    return Program(code, arguments, folder, env={"OMP_NUM_THREADS": "1"})


def wait_for_epochs(run_dir: Path, program: Program, count: int) -> None:
    program.wait_until(run_dir / ".work-01-train" / "logs" / "metrics.jsonl", lines=count)


@pytest.mark.long
def test_killed_or_interrupted_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    train = {**TINY["train"], "float": {**TINY["train"]["float"], "epochs": 12}}
    recipe = write_recipe(tmp_path, train=train)
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    arguments = ["train", recipe, "--run-dir", stopped]

    program = spawn(arguments, tmp_path / "killed")
    wait_for_epochs(stopped, program, 2)
    program.stop(signal.SIGKILL)
    assert nothing_done(stopped)

    program = spawn(arguments, tmp_path / "interrupted")
    wait_for_epochs(stopped, program, 5)
    assert program.stop(signal.SIGINT) == entry.EXIT_INTERRUPTED
    assert f"to go on where it stopped: bitwright train {recipe}" in program.errors
    assert "Traceback" not in program.errors
    assert nothing_done(stopped)

    program = spawn([*arguments, "--json"], tmp_path / "resumed")
    assert program.wait() == 0, program.errors
    assert json.loads(program.output)["steps"][0]["was_done"] is False
    assert entry.run(["train", str(recipe), "--run-dir", str(straight)]) == 0
    records = [read_record(folder / "01-train") for folder in (stopped, straight)]
    assert records[0] is not None and records[1] is not None
    assert records[0].artefacts["weights.pt"] == records[1].artefacts["weights.pt"]


def test_own_model_and_own_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_images(tmp_path / "images")
    (tmp_path / "own_net.py").write_text(GOOD_MODEL)
    data = {"name": "folder", "path": "images", "image_size": [8, 8], "grey": True}
    recipe = write_recipe(tmp_path, data=data, model="own_net:make", name="own")
    run_dir = tmp_path / "run"
    assert entry.run(["lower", str(recipe), "--run-dir", str(run_dir)]) == 0
    assert_tells_nothing_of_the_machine(run_dir, tmp_path)
    assert entry.run(["explain", str(recipe), "--json"]) == 0
    capsys.readouterr()

    def redone() -> list[str]:
        assert entry.run(["lower", str(recipe), "--run-dir", str(run_dir), "--json"]) == 0
        steps = json.loads(capsys.readouterr().out)["steps"]
        return [step["name"] for step in steps if not step["was_done"]]

    assert redone() == []
    (tmp_path / "own_net.py").write_text(f"# a remark\n{GOOD_MODEL}")
    assert redone() == [], "a remark in the model changes nothing"
    (tmp_path / "images" / "dark" / "0.png").write_bytes(
        (tmp_path / "images" / "light" / "0.png").read_bytes()
    )
    assert redone() == ["train", "quantize", "lower"], "another image is other data"

    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    assert entry.run(["lower", str(moved / "run"), "--json"]) == 0
    assert all(step["was_done"] for step in json.loads(capsys.readouterr().out)["steps"])
    other = ["lower", str(moved / "run" / "recipe.yaml"), "--run-dir", str(moved / "other")]
    assert entry.run(other) == 0, "a run's recipe starts others"


def make_images(folder: Path) -> None:
    """Two classes of noisy pictures, dark and light."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 190)):
        (folder / name).mkdir(parents=True)
        for index in range(40):
            pixels = np.clip(random.normal(level, 25, (8, 8)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
