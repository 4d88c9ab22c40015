# SPDX-License-Identifier: Apache-2.0
"""Simulated accelerators under a network: engines of training in few bits, layers in float32."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bitwright.base.errors import ModelError, RecipeError, TargetError
from bitwright.data import load_dataset
from bitwright.data.splits import Keep, keep_some
from bitwright.engine import ENGINES as OURS
from bitwright.engine.training.products import product_cycles
from bitwright.low_precision.arithmetic.choose import make_engine
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.geometry import Geometry, Product
from bitwright.low_precision.arithmetic.operands import Operand
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.costs.formats import ladder_costs
from bitwright.low_precision.costs.model import Variant, compare
from bitwright.low_precision.costs.network import LayerWork, Network
from bitwright.low_precision.costs.schedule import parse_schedule
from bitwright.models import build_model
from bitwright.papers.fpga_training.devices import load_board
from bitwright.papers.fpga_training.fpgpt.card import Card
from bitwright.papers.fpga_training.fpgpt.costs import FpgptCosts
from bitwright.papers.fpga_training.fpgpt.explore import best_kernel
from bitwright.papers.fpga_training.fpgpt.kernel import FLOAT32, fixed_point, kernel_for
from bitwright.papers.fpga_training.fpgpt.kernel_files import library_of, load_library
from bitwright.papers.fpga_training.jobs import convolution_job
from bitwright.papers.fpga_training.programmed import ProgrammedCosts
from bitwright.papers.fpga_training.training import (
    BaristaEngine,
    Conv2d,
    FpgptEngine,
    ProgrammedEngine,
    SimulatedEngine,
    accelerate,
)
from bitwright.sim import MemoryModel
from bitwright.train import TrainConfig, fit

ENGINES: list[type[SimulatedEngine]] = [FpgptEngine, BaristaEngine]
#: Ours multiplies integers alone.
OF_INTEGERS = [*ENGINES, ProgrammedEngine]
WORK = LayerWork("conv", "conv", (4, 3, 8, 8), (5, 3, 3, 3), (4, 5, 8, 8), padding=(1, 1))


def operand(draw: random.Random, shape: tuple[int, ...], bits: int) -> Operand:
    top = 1 << (bits - 1)
    kind = torch.int8 if bits <= 8 else torch.int16
    values = torch.Generator().manual_seed(draw.randrange(1 << 30))
    levels = torch.randint(-top, top, shape, generator=values).to(kind)
    return Operand(levels, draw.randint(-9, 9), bits)


@pytest.mark.parametrize("kind", OF_INTEGERS)
def test_products_are_those_of_any_engine(kind: type[SimulatedEngine]) -> None:
    """Random geometries with groups, 2 to 16 bits, operands of unequal widths."""
    draw, engine, reference = random.Random(8), kind(), EmulatedEngine()
    for _ in range(8):
        groups = draw.choice([1, 1, 2, 3])
        geometry = Geometry(
            (draw.randint(1, 3), draw.randint(1, 2)),
            (draw.randint(0, 2), draw.randint(0, 2)),
            (draw.randint(1, 2), draw.randint(1, 2)),
            groups,
        )
        kernel = (draw.randint(1, 3), draw.randint(1, 3))
        images = (draw.randint(1, 3), groups * draw.randint(1, 3), 7, draw.randint(5, 8))
        kernels = (groups * draw.randint(1, 4), images[1] // groups, *kernel)
        outputs = (images[0], kernels[0], *geometry.output_size(images[2:], kernel))
        x, w, g = (operand(draw, s, draw.randint(2, 16)) for s in (images, kernels, outputs))
        for product, left, right, size in (
            (Product.FORWARD, x, w, outputs),
            (Product.GRAD_INPUT, g, w, images),
            (Product.GRAD_WEIGHT, x, g, kernels),
        ):
            assert engine.supports(product, left, right, geometry)
            task = (product, left, right, geometry, size)
            assert torch.equal(engine.multiply(*task), reference.multiply(*task)), task


def trained(engine: str, folder: Path) -> tuple[list[float], dict[str, Any]]:
    data = keep_some(load_dataset("digits"), Keep(train=50, validation=20, test=10), 0)
    model = build_model({"name": "digits_cnn", "options": {"widths": (4, 6)}}, 10, (8, 8, 1))
    low = {
        "policy": {"kind": "replay", "schedule": [[0, 8], [1, 12], [2, "float32"]]},
        "ladder": [8, 12, "float32"], "float_epochs": 1, "engine": engine,
    }  # fmt: skip
    config = TrainConfig(
        epochs=3, batch_size=24, lr=0.05, optimizer="sgd", threads=1, keep="last",
        low_precision=low,
    )  # fmt: skip
    done = fit(model, data, config, run_dir=folder)
    return [entry.train_loss for entry in done.history], model.state_dict()


@pytest.mark.parametrize("name", ["fpgpt", "barista", "programmed"])
def test_training_on_the_simulated_engine_is_training(name: str, tmp_path: Path) -> None:
    """Loss of every epoch and all weights, bit for bit."""
    losses, weights = trained(name, tmp_path / "simulated")
    expected, same = trained("integer", tmp_path / "integer")
    assert losses == expected and len(set(losses)) == 3
    for path, tensor in same.items():
        assert torch.equal(weights[path], tensor), path


def test_engine_does_the_products_itself() -> None:
    """The choice between engines takes the simulated one, not the reference beside it."""
    engine = make_engine("fpgpt")
    draw = random.Random(1)
    x, w = operand(draw, (2, 3, 6, 6), 8), operand(draw, (4, 3, 3, 3), 8)
    engine.forward(x, w, Geometry())
    assert [choice.engine.name for choice in engine.choices.values()] == ["fpgpt"]
    wide = replace(x, levels=x.levels.int(), bits=20) if x.levels is not None else x
    with pytest.raises(RecipeError, match="'fpgpt' does not multiply operands of 20 bits and 8"):
        engine.forward(wide, w, Geometry())
    with pytest.raises(ValueError, match="no engine 'fpgptt'; known: auto, emulated, integer"):
        LowPrecision(engine="fpgptt")


@pytest.mark.parametrize("kind", ENGINES)
def test_layer_in_float32(kind: type[SimulatedEngine]) -> None:
    """`nn.Conv2d`'s call and gradients, within the rounding of its sums."""
    torch.manual_seed(3)
    plain = nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3)
    layer = Conv2d(3, 6, 3, stride=2, padding=1, groups=3, engine=kind())
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(3, 3, 9, 7)
    found = []
    for each in (plain, layer):
        image = x.clone().requires_grad_()
        out = each(image)
        out.square().sum().backward()
        assert each.weight.grad is not None and each.bias is not None
        found.append((out, image.grad, each.weight.grad, each.bias.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_card_is_programmed_where_the_next_convolution_needs_it() -> None:
    """Listed layers alone run on it; two products on one kernel need one bitstream."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    card = Card(load_board("u250"), FLOAT32)
    x = torch.randn(2, 1, 8, 8)
    expected = model(x)
    accelerate(model, FpgptEngine(card), ["2"])
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    assert (len(card.ran), card.reconfigurations) == (1, 1)
    model(x)
    assert (len(card.ran), card.reconfigurations) == (1, 1)
    model(x).sum().backward()  # three products; the next forward is a fourth bitstream
    model(x)
    assert len(card.ran) == 3 and card.reconfigurations >= 3
    assert card.seconds > 0
    with pytest.raises(ModelError, match="'1' is no convolution of this network"):
        accelerate(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), FpgptEngine(card), ["1"])


def test_library_is_kept_in_files(tmp_path: Path) -> None:
    board = load_board("u250")
    jobs = [convolution_job(WORK, product) for product in Product]
    library = library_of(best_kernel(job, board, fixed_point(8)).kernel for job in jobs)
    library.save(tmp_path)
    again = load_library(tmp_path)
    assert again == library
    for job, kernel in zip(jobs, library.kernels, strict=True):
        assert again.find(job, fixed_point(8)) == kernel
    larger = convolution_job(
        LayerWork("next", "conv", (4, 3, 20, 20), (5, 3, 3, 3), (4, 5, 18, 18)), Product.FORWARD
    )
    with pytest.raises(ModelError, match=r"none of 3 kernels runs the forward of 'next': .*needs"):
        Card(board, fixed_point(8), again).kernel_of(larger)
    (tmp_path / "kernel-00.toml").write_text("columns = 0\n")
    with pytest.raises(TargetError, match="columns"):
        load_library(tmp_path)


def test_library_holds_what_was_saved_last(tmp_path: Path) -> None:
    """Kernels of an earlier library are gone, other files are not; more than a hundred stay in
    order."""
    job = convolution_job(WORK, Product.FORWARD)
    many = library_of(kernel_for(job, 1 + n, 1, FLOAT32, 512) for n in range(60))
    more = library_of(kernel_for(job, 1 + n, 2, FLOAT32, 512) for n in range(60))
    both = library_of([*many.kernels, *more.kernels])
    both.save(tmp_path)
    assert load_library(tmp_path) == both
    (tmp_path / "kernel-notes.txt").write_text("mine")
    many.save(tmp_path)
    assert load_library(tmp_path) == many
    assert (tmp_path / "kernel-notes.txt").exists()


def test_card_takes_kernels_of_its_own_numbers() -> None:
    """A library that networks share has kernels of all of them."""
    board, job = load_board("u250"), convolution_job(WORK, Product.FORWARD)
    fast, slow = (kernel_for(job, n, 1, m, 512) for n, m in ((8, FLOAT32), (1, fixed_point(8))))
    library = library_of([fast, slow])
    assert Card(board, FLOAT32, library).kernel_of(job) == fast
    assert Card(board, fixed_point(8), library).kernel_of(job) == slow
    with pytest.raises(ModelError, match=r"none was built for forward and input .* in 12 bits"):
        Card(board, fixed_point(12), library).kernel_of(job)


def test_messages_name_the_product_though_engines_know_no_layer() -> None:
    card = Card(load_board("u250").model_copy(update={"card_bytes": 100}), fixed_point(8))
    draw = random.Random(2)
    x, w = operand(draw, (2, 3, 6, 6), 8), operand(draw, (4, 3, 3, 3), 8)
    with pytest.raises(ModelError, match="the forward of '2x3x6x6 by 4x3x3x3' takes"):
        FpgptEngine(card).multiply(Product.FORWARD, x, w, Geometry(), (2, 4, 4, 4))


def test_a_device_has_the_name_of_its_board() -> None:
    assert FpgptCosts().name == "fpgpt-u250"
    assert FpgptCosts(load_board("zu9eg")).name == "fpgpt-zu9eg"


def test_forecast_on_our_engine_is_the_cycles_of_its_programs() -> None:
    """Exact sums, or rounded (ideal); 9 to 16 bits in two digits, so four products; no float32."""
    config, memory = OURS["e128"], MemoryModel(latency=5)
    device = ProgrammedCosts(config, memory, mhz=50.0)
    grad = replace(WORK, layer="b", products=("forward", "grad_weight"))
    network = Network("two", WORK.input[0], (WORK, grad), 0, paths=("conv", "b"))
    settings = LowPrecision.model_validate({"ladder": ["int8", "int12", "float32"]})
    table = ladder_costs(network, device, settings, steps=3)
    assert set(table.levels) == {"int8", "int12"} and device.name == "programmed-e128 at 50 MHz"
    cycles = {
        (product, shift): product_cycles(WORK, Product(product), config, memory, shift)
        for product in WORK.products
        for shift in (None, 3)
    }
    every = [*WORK.products, *grad.products]
    raw = sum(cycles[each, None] for each in every)
    rounded = sum(cycles[each, None if each == "grad_weight" else 3] for each in every)
    assert rounded < raw
    for level, variant, took in (
        ("int8", Variant.CURRENT, raw),
        ("int8", Variant.IDEAL, rounded),
        ("int12", Variant.CURRENT, 4 * raw),
        ("int12", Variant.IDEAL, 4 * raw),
    ):
        seconds = table.epoch(level, variant).total.seconds
        assert seconds == pytest.approx(3 * took / 50e6), (level, variant)
    (run,) = compare(table, [parse_schedule("int8:2", ("int8",))], [Variant.CURRENT])
    assert run.baseline is None and "speed_up_baseline" not in run.to_json()
    with pytest.raises(RecipeError, match="no numbers for level 'float32'"):
        table.run(parse_schedule("int8:2,float32:1", ("int8", "float32")))
    with pytest.raises(TargetError, match="does not compute in float32"):
        device.costs(network, ["float32"], 1)


def test_batch_larger_than_the_card() -> None:
    job = convolution_job(WORK, Product.FORWARD)
    board = load_board("u250").model_copy(update={"card_bytes": 1000})
    with pytest.raises(
        ModelError, match=r"(?s)of the card's memory of 1000.*4 images is too large"
    ):
        Card(board, FLOAT32).kernel_of(job)
