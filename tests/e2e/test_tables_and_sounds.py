# SPDX-License-Identifier: Apache-2.0
"""The shipped recipes of a table and of sounds, and data of one's own, from arrays to RTL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bitwright.base.errors import RunError
from bitwright.cli import entry
from bitwright.data.preprocessing import read_input
from bitwright.host.numbers import levels_of_numbers
from bitwright.pipeline.api import Pipeline, estimate_recipe, explain_recipe
from bitwright.pipeline.export_network import read_model
from bitwright.pipeline.recipe import load_recipe, recipe_from_dict
from bitwright.pipeline.steps.levels import read_levels
from bitwright.pipeline.steps.lower import read_graph
from bitwright.pipeline.steps.quantize import read_integers
from bitwright.pipeline.steps.results import LowerResult, QuantizeResult, load_result
from bitwright.pipeline.steps.results_hardware import SimulateResult
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.report.record import Report

FAST = {
    "table-mlp-w4a4": (
        ["train.float.epochs=15", "train.quantized.epochs=4", "simulate.stall_images=4"],
        0.9,
    ),
    "sounds-cnn1d-w4a4": (
        [
            "data.keep.train=800",
            "train.float.epochs=6",
            "train.quantized.epochs=1",
            "simulate.images=6",
            "simulate.stall_images=2",
        ],
        0.6,
    ),
}


@pytest.fixture(scope="module", params=list(FAST))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name = request.param
    changes, least = FAST[name]
    folder = tmp_path_factory.mktemp(name) / "run"
    recipe = load_recipe(name, [*changes, "report.sample_images=4"])
    pipeline = Pipeline(recipe, folder)
    pipeline.build(until="simulate")
    pipeline.step("report")
    return recipe, folder, least


@pytest.mark.long
def test_rtl_equals_the_graph_and_the_trained_model(run: Any) -> None:
    recipe, folder, least = run
    work = Workspace(recipe)
    lowered = load_result(LowerResult, folder / "03-lower")
    simulated = load_result(SimulateResult, folder / "05-simulate")
    assert lowered.compared_images == len(work.data.test)
    assert simulated.differences == 0 and simulated.interval == simulated.predicted_interval
    assert lowered.figure.value >= least
    assert load_result(QuantizeResult, folder / "02-quantize").figure.value == (
        lowered.figure.value
    )


@pytest.mark.long
def test_what_the_hardware_takes_are_the_levels_of_the_data(run: Any) -> None:
    recipe, folder, _ = run
    data = Workspace(recipe).data
    inputs = read_levels(folder / "03-lower")["inputs"]
    assert np.array_equal(inputs.reshape(data.test.pixels.shape), data.test.pixels)
    integers = read_integers(folder / "02-quantize")
    every = integers.input_levels(torch.from_numpy(data.train.reals()))
    assert np.array_equal(
        every.movedim(1, -1).reshape(data.train.pixels.shape).numpy(), data.train.pixels
    )
    graph = read_graph(folder / "03-lower")
    said = json.loads((folder / "03-lower" / "input.json").read_text())
    assert said["format"] == "int8" == graph.types[graph.inputs[0]].format.name
    assert said["shape"] == list(data.image_shape)
    assert len(said["preparation"]["step"]) in (1, 30)


@pytest.mark.long
def test_the_page_shows_them(run: Any) -> None:
    recipe, folder, _ = run
    record = Report.model_validate_json((folder / "07-report" / "report.json").read_text())
    assert len(record.samples) == 4 and all(sample.png for sample in record.samples)
    assert "by the training part" in record.facts["inputs"]
    assert sum(map(sum, record.confusion)) == len(Workspace(recipe).data.test)


@pytest.mark.long
def test_the_other_verbs_take_them(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder, _ = run
    assert estimate_recipe(recipe)["interval"] > 0
    rows = explain_recipe(recipe)
    assert [row["format"] for row in rows if row["operand"] == "input"] == ["int8"]
    assert entry.run(["diff", str(folder)]) == 0, capsys.readouterr().err
    assert entry.run(["inspect", recipe.name]) == 0, capsys.readouterr().err
    with pytest.raises(RunError, match="files of other frameworks hold networks of images"):
        read_model(folder)


OWN = """
import numpy as np
from torch import nn

def pulses(count=240):
    random = np.random.RandomState(3)
    labels = np.arange(count) % 2
    signals = random.normal(0, 0.1, (count, 2, 24))
    for signal, label in zip(signals, labels):
        at = random.randint(4, 16)
        signal[label, at : at + 5] += 1
    return signals, labels, ("left", "right")

class Net(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        length, channels = input_shape
        self.conv = nn.Conv1d(channels, 4, 5, stride=2)
        self.fc = nn.Linear(4, num_classes)
    def forward(self, x):
        return self.fc(self.conv(x).relu().mean(-1))
"""


def test_a_data_set_and_a_network_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "pulses.py").write_text(OWN)
    recipe = recipe_from_dict(
        {
            "name": "pulses",
            "data": {"name": "pulses:pulses", "options": {"count": 120}, "bits": 6},
            "model": "pulses:Net",
            "quant": {"weight": "int4", "activation": "uint4"},
            "train": {"float": {"epochs": 12, "batch_size": 16, "lr": 0.02, "threads": 1}},
            "hardware": {"target": "ecp5-25k", "target_fps": 100_000},
            "simulate": {"stall_images": 2},
        },
        tmp_path,
    )
    folder = tmp_path / "run"
    Pipeline(recipe, folder).build(until="simulate")
    assert load_result(SimulateResult, folder / "05-simulate").differences == 0
    assert load_result(LowerResult, folder / "03-lower").figure.value > 0.8
    graph = read_graph(folder / "03-lower")
    kind = graph.types[graph.inputs[0]]
    assert kind.shape == (1, 24, 2) and kind.format is not None and kind.format.name == "int6"
    names: dict[str, Any] = {}
    exec(OWN, names)
    measured = np.moveaxis(names["pulses"](120)[0], 1, 2)[Workspace(recipe).data.test.indices]
    given = read_input(folder / "03-lower" / "input.json")
    assert given is not None
    inputs = read_levels(folder / "03-lower")["inputs"]
    assert np.array_equal(levels_of_numbers(measured, given), inputs.reshape(measured.shape))
    assert "train" not in Pipeline(recipe, folder).pending()
    (tmp_path / "pulses.py").write_text(OWN.replace("0.1, (count", "0.2, (count"))
    assert "train" in Pipeline(recipe, folder).pending()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("table-mlp-w4a4", 0.95), ("sounds-cnn1d-w4a4", 0.9)])
def test_the_whole_recipe(name: str, least: float, tmp_path: Path) -> None:
    Pipeline(load_recipe(name), tmp_path / "run").build()
    assert load_result(LowerResult, tmp_path / "run" / "03-lower").figure.value >= least
    record = Report.model_validate_json(
        (tmp_path / "run" / "07-report" / "report.json").read_text()
    )
    found = {row.label: row.figure for row in record.summary}
    assert found["Fmax"] is not None and found["Fmax"].value > load_recipe(name).hardware.clock_mhz


DEEP = """
import numpy as np
from bitwright.data import Arrays

def load(kind, size=8):
    random = np.random.RandomState(0)
    info = np.iinfo(kind)
    labels = np.arange(60) % 2
    span = info.max - info.min
    images = random.randint(0, span // 2, (60, size, size)) + info.min
    images[labels == 1, :, : size // 2] += span // 2
    return Arrays(images.astype(kind), labels, layout="NHW")
"""


@pytest.mark.parametrize("kind", ["uint16", "int16"])
def test_levels_of_16_bits_reach_the_rtl_as_they_are(kind: str, tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    recipe = recipe_from_dict(
        {
            "name": "deep",
            "data": {"name": "deep:load", "options": {"kind": kind}},
            "model": {"name": "digits_cnn", "options": {"widths": [2]}},
            "quant": {"weight": "int3", "activation": "uint3"},
            "train": {"float": {"epochs": 2, "batch_size": 16, "lr": 0.02, "threads": 1}},
            "hardware": {"target": "ecp5-25k", "target_fps": 50_000},
            "simulate": {"images": 6, "stall_images": 2},
        },
        tmp_path,
    )
    Pipeline(recipe, tmp_path / "run").build(until="simulate")
    assert load_result(SimulateResult, tmp_path / "run" / "05-simulate").differences == 0
    levels = read_levels(tmp_path / "run" / "03-lower")["inputs"]
    assert np.array_equal(levels, Workspace(recipe).data.test.pixels)
    assert np.abs(levels).max() > 30_000
