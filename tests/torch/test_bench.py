# SPDX-License-Identifier: Apache-2.0
"""`bitwright bench`: engines that agree with each other, sweeps, and the verb on a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from bitwright.base.errors import RecipeError, RunError, ToolError
from bitwright.base.figures import Source
from bitwright.cli.app import app
from bitwright.explore.bench.engines import engines_of, executor_engine, onnx_engine
from bitwright.explore.bench.subject import BenchSubject, smallest, subject_of_run
from bitwright.explore.bench.sweep import SweepSettings, accuracy_of, performances, sweep
from bitwright.pipeline.api import build_recipe
from bitwright.pipeline.recipe import load_recipe
from bitwright.quantize import Policy, integerize
from bitwright.quantize.ptq.post_training import post_training_quantize

SHORT = SweepSettings(batches=(1, 4), threads=(1, 2), seconds=0.02)


@pytest.fixture(scope="module")
def subject() -> BenchSubject:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(8, 4)
    ).eval()
    images = torch.rand(12, 3, 8, 8, generator=generator)
    policy = Policy.from_dict({"preset": "dpu"})
    converted, _ = post_training_quantize(model, policy, images, policy.methods)
    integers = integerize(converted.eval(), policy, (3, 8, 8), "tiny")
    levels = integers.input_levels(images).permute(0, 2, 3, 1).long().numpy()
    scores = integers.graph.run({"x": levels})["scores"]
    labels = scores.argmax(axis=1)
    return BenchSubject(
        "tiny", integers.graph, smallest(levels), model, images.numpy(), labels.astype(np.int64)
    )


def test_every_engine_gives_the_networks_scores(subject: BenchSubject) -> None:
    for engine in engines_of(subject):
        if engine.name == "cpu int8":
            wanted = subject.graph.run({"x": subject.levels.astype(np.int64)})["scores"]
            np.testing.assert_array_equal(engine.make(1)(engine.images), wanted)
        else:
            with torch.no_grad():
                wanted = subject.model(torch.from_numpy(subject.reals)).numpy()
            np.testing.assert_allclose(engine.make(1)(engine.images), wanted, atol=1e-4)
    with pytest.raises(ToolError, match="no tpu here"):
        engines_of(subject, ("tpu",))


def test_runners_give_the_labels_in_order(subject: BenchSubject) -> None:
    assert subject.labels is not None
    for threads in (1, 3, 12):
        share, seconds = accuracy_of(executor_engine(subject), subject.labels, threads)
        assert share == 1.0 and seconds > 0
    with pytest.raises(RecipeError, match="13 threads for 12 images"):
        accuracy_of(executor_engine(subject), subject.labels, 13)


def test_a_sweep_has_every_point(subject: BenchSubject) -> None:
    engines = [e for e in (onnx_engine(subject), executor_engine(subject)) if e is not None]
    swept = sweep(subject, SHORT, engines=engines)
    assert not swept.notes
    measured = [p for p in swept.points if p.source is Source.MEASUREMENT]
    assert [(p.platform, p.batch, p.threads) for p in measured] == [
        (name, batch, threads)
        for name in ("cpu float32", "cpu int8")
        for batch, threads in ((1, 1), (4, 1), (1, 1), (1, 2))
    ]
    assert all(p.throughput > 0 and p.latency_ms > 0 for p in swept.points)
    assert [p.threads for p in swept.points if p.platform == "dpu int8"] == [1, 2]
    found = {p.platform: p for p in performances(swept, {"cpu": 10.0, "dpu": 22.8})}
    assert found["dpu int8"].source is Source.MODEL
    assert found["dpu int8"].watts == 22.8
    assert found["cpu int8"].energy_mj is not None


def test_a_network_that_the_dpu_does_not_run_is_told(subject: BenchSubject) -> None:
    policy = Policy.from_dict({"weight": "int4", "activation": "uint4"})
    images = torch.from_numpy(subject.reals)
    converted, _ = post_training_quantize(subject.model, policy, images, policy.methods)
    graph = integerize(converted.eval(), policy, (3, 8, 8)).graph
    other = BenchSubject("other", graph, subject.levels.astype(np.uint8))
    swept = sweep(other, SHORT, engines=())
    assert not swept.points
    assert swept.notes[0].startswith("dpu: ") and "run on the processor" in swept.notes[0]
    assert [engine.name for engine in engines_of(other)] == ["cpu int8"]


RECIPE = """
name: tiny-bench
data: {name: digits, keep: {train: 200, validation: 40, test: 40}}
model: {name: digits_cnn}
quant: dpu
train: {float: {epochs: 1, batch_size: 50}}
"""


def test_the_verb_on_a_run(tmp_path: Path) -> None:
    file, run = tmp_path / "r.yaml", tmp_path / "run"
    file.write_text(RECIPE)
    recipe = load_recipe(file)
    with pytest.raises(RunError, match="step quantize has not been done"):
        subject_of_run(recipe, run)
    build_recipe(recipe, run, until="quantize")
    arguments = ["bench", str(run), "--batches", "1,4", "--threads", "1,2", "--seconds", "0.01"]
    out = tmp_path / "out"
    done = CliRunner().invoke(app, [*arguments, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads((out / "bench.json").read_text())
    compared, swept = record["tables"]
    assert {row["platform"] for row in compared["rows"]} >= {"cpu float32", "cpu int8"}
    assert len(swept["rows"]) >= 8
    assert any("test images right" in note for note in compared["notes"])
    assert (out / "tiny-bench-energy.svg").is_file()
    wrong = CliRunner().invoke(app, [*arguments[:2], "--batches", "one"])
    assert "is no list of numbers" in str(wrong.exception)
