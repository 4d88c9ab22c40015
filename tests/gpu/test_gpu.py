# SPDX-License-Identifier: Apache-2.0
"""What a GPU computes is what a CPU computes: integers by ``==``; training goes on on either."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests import arithmetic_reference as reference
from tests.strategies import TorchNetwork, torch_graphs, torch_networks
from tests.torch.test_arithmetic_products import layers, products
from tests.torch.test_law import quantized_or_reject
from tests.torch.test_quantizers import named, specs
from torch import nn

from bitwright.base.errors import RunError
from bitwright.data import DataSplits, load_dataset
from bitwright.explore.bench.engines import engines_of
from bitwright.explore.bench.subject import BenchSubject, smallest
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.int_mm import IntMatrixEngine
from bitwright.low_precision.arithmetic.operands import Operand
from bitwright.models import build_model
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.results import LowerResult, load_result
from bitwright.quantize import Policy, apply, integerize
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.ptq.post_training import post_training_quantize
from bitwright.quantize.spec import QuantSpec, Role, ScaleRule
from bitwright.quantize.weight_quantizer import WeightQuantizer
from bitwright.train import Augmentation, TrainConfig, TrainProgress, evaluate, fit

#: Rules whose scale is that of a largest or given value.
WITHOUT_SUMS = (ScaleRule.MAX, ScaleRule.CONST, ScaleRule.MINMAX, ScaleRule.INTERVAL)
CONFIG = TrainConfig(
    epochs=4, batch_size=32, lr=5e-3, device="cuda", augmentation=Augmentation(rotate=10.0)
)


@pytest.fixture(scope="module")
def digits() -> DataSplits:
    return load_dataset("digits")


@pytest.fixture
def tf32_allowed() -> Iterator[None]:
    """What a user may have set: products that keep ten bits of an operand."""
    units = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [unit.fp32_precision for unit in units]
    for unit in units:
        unit.fp32_precision = "tf32"
    yield
    for unit, value in zip(units, before, strict=True):
        unit.fp32_precision = value


@settings(max_examples=80, deadline=None)
@given(st.one_of(torch_networks(), torch_graphs()))
def test_the_law_holds_on_a_gpu(network: TorchNetwork) -> None:
    """Every edge of a frozen model on the GPU is the graph's, and so are the scores."""
    placed, images = quantized_or_reject(network).cuda(), network.images.cuda()
    with torch.no_grad():
        scores = placed(images)
    integers = placed.integers(network.shape)
    assert integers is not None
    edges, graph = integers.edges(images), integers.graph
    for edge, levels in graph.run({"x": edges["x"]}, edges=True).items():
        assert np.array_equal(edges[edge], levels), edge
    real = edges["scores"] * np.asarray(graph.types["scores"].scale)
    assert np.array_equal(scores.cpu().numpy(), np.moveaxis(real, -1, 1).astype(np.float32))


def test_a_model_has_the_same_integers_on_both(digits: DataSplits) -> None:
    """Scales that are found from the largest values do not depend on the device."""
    policy = Policy.uniform("int4", "uint4", "uint4")
    images = torch.from_numpy(digits.train.take(range(64)).reals())
    for seed in range(20):
        model = build_model("digits_cnn", 10, (8, 8, 1), seed=seed)
        model = apply(model, policy, "train", images).eval()
        here = model.integers((1, 8, 8))
        there = copy.deepcopy(model).cuda().integers((1, 8, 8))
        assert here is not None and there is not None
        assert here.graph.digest == there.graph.digest


def test_products_are_exact_where_tf32_is_allowed(digits: DataSplits, tf32_allowed: None) -> None:
    policy = Policy.uniform("int8", "uint8", "uint4")
    images = torch.from_numpy(digits.train.take(range(64)).reals())
    model = apply(build_model("digits_cnn", 10, (8, 8, 1), seed=1), policy, "train", images)
    apply(model, policy, "freeze")
    model.eval()
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(model).cuda()(images.cuda()).cpu(), model(images))


@pytest.mark.parametrize("engine", [EmulatedEngine(), IntMatrixEngine()], ids=lambda e: e.name)
@settings(max_examples=80, deadline=None)
@given(
    layer=layers(),
    bits=st.tuples(st.integers(2, 16), st.integers(2, 16), st.integers(2, 16)),
    kind=st.sampled_from(["random", "worst", "small"]),
    seed=st.integers(0, 2**32),
)
def test_products_of_low_precision_equal_the_reference(
    engine: Any, layer: Any, bits: tuple[int, int, int], kind: str, seed: int
) -> None:
    for (product, *sides, geometry, size), sums in products(*layer, bits, kind, seed):
        left, right = (Operand(x.tensor.cuda(), x.exponent, x.bits) for x in sides)
        if not engine.supports(product, left, right, geometry):
            assert geometry.groups > 1 and engine.name == "int_mm"
            continue
        found = engine.multiply(product, left, right, geometry, size)
        expected = reference.result(sums, left.exponent + right.exponent)
        np.testing.assert_array_equal(found.cpu().numpy(), expected)


@pytest.mark.parametrize("spec", specs(Role.WEIGHT), ids=named)
def test_weights_have_the_same_levels(spec: QuantSpec) -> None:
    weight = torch.randn(4, 8, 3, 3, generator=torch.manual_seed(1))
    levels, unit = WeightQuantizer(spec, 4).levels(weight)
    placed, placed_unit = WeightQuantizer(spec, 4).cuda().levels(weight.cuda())
    assert torch.allclose(placed_unit.cpu(), unit, rtol=1e-5)  # sums have another order there
    if spec.scale in WITHOUT_SUMS:
        assert torch.equal(placed_unit.cpu(), unit)
        assert torch.equal(placed.cpu(), levels)


@pytest.mark.parametrize("spec", specs(Role.ACTIVATION), ids=named)
def test_a_calibrated_activation_rounds_alike(spec: QuantSpec) -> None:
    quantizer = ActivationQuantizer(spec, Role.ACTIVATION, (0.0, 6.0)).train()
    quantizer(torch.randn(3, 8, 4, 4, generator=torch.manual_seed(5)))
    quantizer.eval()
    x = torch.randn(5, 8, 4, 4, generator=torch.manual_seed(6)) * 2
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(quantizer).cuda()(x.cuda()).cpu(), quantizer(x))


@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
def test_training_learns_and_comes_back(digits: DataSplits, tmp_path: Path, precision: str) -> None:
    model = build_model("digits_cnn", 10, (8, 8, 1), seed=1)
    config = CONFIG.model_copy(update={"precision": precision, "epochs": 8})
    fit(model, digits, config, run_dir=tmp_path)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert evaluate(model, digits.test).accuracy > 0.9


def test_training_goes_on(digits: DataSplits, tmp_path: Path) -> None:
    policy = Policy.uniform("int4", "uint4", "uint4")
    images = torch.from_numpy(digits.train.take(range(64)).reals())

    def quantized() -> nn.Module:
        return apply(build_model("digits_cnn", 10, (8, 8, 1), seed=1), policy, "train", images)

    def stop(now: TrainProgress) -> None:
        if now.last is not None and now.last.epoch == 2:  # its checkpoint is written
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(quantized(), digits, CONFIG, run_dir=tmp_path, on_progress=stop)
    resumed = quantized()
    with pytest.raises(RunError, match="was written with device"):
        fit(resumed, digits, CONFIG.model_copy(update={"device": "cpu"}), run_dir=tmp_path)
    assert fit(resumed, digits, CONFIG, run_dir=tmp_path).resumed_from == 2
    assert evaluate(resumed, digits.test).accuracy > 0.8


def test_images_are_decoded_for_a_gpu(tmp_path: Path) -> None:
    for kind, low in (("dark", 0), ("light", 128)):
        (tmp_path / "data" / kind).mkdir(parents=True)
        draw = np.random.default_rng(low)
        for number in range(40):
            picture = draw.integers(low, low + 128, (16, 16, 3)).astype(np.uint8)
            Image.fromarray(picture).save(tmp_path / "data" / kind / f"{number}.png")
    spec = {"name": "imagenet", "path": tmp_path / "data", "image_size": [16, 16],
            "stream": {"short_side": 16, "threads": 2}, "validation": 0.2, "test": 0.2}  # fmt: skip
    splits = load_dataset(spec)
    model = build_model("digits_cnn", 2, (16, 16, 3), seed=3)
    fit(model, splits, CONFIG.model_copy(update={"epochs": 20}), run_dir=tmp_path / "run")
    assert evaluate(model, splits.test).accuracy > 0.9


def test_a_build_on_a_gpu_lowers_what_it_trained(tmp_path: Path) -> None:
    """Float, teacher and QAT on the GPU: the integers of step lower are the frozen model's."""
    recipe = load_recipe(
        "digits",
        [
            "train.pretrained=false",
            "train.float.epochs=10",
            "train.quantized.epochs=6",
            "train.float.device=cuda",
            "train.quantized.device=cuda",
        ],
    )
    Pipeline(recipe, tmp_path / "run").build("lower")
    lowered = load_result(LowerResult, tmp_path / "run" / step_folder("lower"))
    assert lowered.compared_images > 0
    assert lowered.metrics["accuracy"].value > 0.9


@pytest.mark.parametrize("engine", ["emulated", "auto"])
def test_low_precision_training_on_a_gpu(digits: DataSplits, tmp_path: Path, engine: str) -> None:
    low = {"policy": "muppet", "ladder": [8, 12, "float32"], "float_epochs": 2, "engine": engine}
    config = TrainConfig(
        epochs=6, lr=0.1, optimizer="sgd", keep="last", device="cuda", low_precision=low
    )
    done = fit(build_model("digits_cnn", 10, (8, 8, 1), seed=1), digits, config, run_dir=tmp_path)
    assert done.history[0].precision == "int8"
    assert done.validation_accuracy is not None and done.validation_accuracy > 0.7


def test_the_gpu_of_bench_gives_the_networks_scores() -> None:
    model = build_model("digits_cnn", 10, (8, 8, 1), seed=1).eval()
    reals = np.random.default_rng(1).random((8, 1, 8, 8), dtype=np.float32)
    policy = Policy.from_dict({"preset": "dpu"})
    converted, _ = post_training_quantize(model, policy, torch.from_numpy(reals), policy.methods)
    integers = integerize(converted.eval(), policy, (1, 8, 8), "tiny")
    levels = integers.input_levels(torch.from_numpy(reals)).permute(0, 2, 3, 1).long().numpy()
    subject = BenchSubject(
        "tiny", integers.graph, smallest(levels), model, reals, np.zeros(8, np.int64)
    )
    gpu = {engine.name: engine for engine in engines_of(subject)}["gpu float32"]
    found = gpu.make(1)(gpu.images)
    with torch.no_grad():
        wanted = copy.deepcopy(model).cpu()(torch.from_numpy(reals)).numpy()
    np.testing.assert_allclose(found, wanted, atol=5e-3)  # TF32
