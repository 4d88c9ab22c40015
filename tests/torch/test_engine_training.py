# SPDX-License-Identifier: Apache-2.0
"""The three products of training as programs of the engine: emulated == torch, and the rules."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.engine_training import drawn_layers, operands

from bitwright.base.errors import ModelError
from bitwright.engine.checker import check_program
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.estimate import timeline
from bitwright.engine.training.products import digits, multiply, training_programs
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.costs.network import LayerWork
from bitwright.models.factory import build_model
from bitwright.quantize.spec import Product

E256 = ENGINES["e256"]
#: So small that layers are cut into strips, pieces of weights, and tiles of channels.
TINY = replace(E256, feature_words=1 << 10, weight_rows=1 << 6, parameter_rows=1 << 5)


def check(work: LayerWork, config: EngineConfig, seed: int, bits: tuple[int, int]) -> None:
    for product, (left, right, want) in operands(work, np.random.default_rng(seed), bits).items():
        got = multiply(work, product, left, right, config)
        assert np.array_equal(got, want), (product, work)
        for part in training_programs(work, product, config):
            check_program(part.program.program, config, part.program.words)


def check_drawn(count: int, seed: int, config: EngineConfig) -> None:
    draw = random.Random(seed)
    for number, work in enumerate(drawn_layers(count, seed)):
        check(work, config, number, (draw.choice([4, 8, 8, 12, 16]), draw.choice([2, 8, 14])))


@pytest.mark.parametrize("config", [E256, TINY], ids=["e256", "tiny"])
def test_products_are_torchs(config: EngineConfig) -> None:
    """Strides, padding, dilation, groups, linear layers; 2 to 16 bits and mixed."""
    check_drawn(8, 3, config)


@pytest.mark.slow
@pytest.mark.parametrize("config", [E256, TINY, ENGINES["e2048"]], ids=["e256", "tiny", "e2048"])
def test_products_are_torchs_of_many_layers(config: EngineConfig) -> None:
    check_drawn(500, 11, config)


def resnet20(batch: int) -> list[LayerWork]:
    """Its layers, each shape once."""
    network = count_network(build_model("resnet20", 10, (32, 32, 3)), (3, 32, 32), batch)
    return list({layer.shape: layer for layer in network.layers}.values())


def test_layers_of_resnet20() -> None:
    """One of each stage, 8 bits; all of them in batches of 16 is the next, slow one."""
    for layer in resnet20(3)[4:7]:
        check(layer, E256, 1, (8, 8))


@pytest.mark.slow
def test_all_layers_of_resnet20_and_alexnet() -> None:
    network = count_network(build_model("alexnet", 10, (32, 32, 3)), (3, 32, 32), 16)
    for layer in (*resnet20(16), *network.layers):
        check(layer, E256, 2, (8, 8))


def test_results_in_eight_bits_are_the_rounded_sums() -> None:
    work = LayerWork("a", "conv", (2, 9, 6, 5), (10, 9, 3, 3), (2, 10, 3, 3), (2, 2), (1, 1))
    rng, shift = np.random.default_rng(0), 7
    for product in (Product.FORWARD, Product.GRAD_INPUT):
        left, right, want = operands(work, rng, (8, 8))[product]
        low, out = want // (1 << shift), np.zeros_like(want)
        rest = want - (low << shift)
        up = (rest > 64) | ((rest == 64) & (low % 2 == 1))
        for part in training_programs(work, product, E256, shift):
            part.put(
                part.program.emulated(*part.operands(left.astype("i1"), right.astype("i1"))), out
            )
        assert np.array_equal(out, np.clip(low + up, -128, 127))


def test_no_zero_is_multiplied() -> None:
    """The phases of an input gradient with a stride have all taps of the kernel, once each."""
    work = LayerWork("a", "conv", (1, 8, 9, 9), (8, 8, 3, 3), (1, 8, 5, 5), (2, 2), (1, 1))
    parts = training_programs(work, Product.GRAD_INPUT, E256)
    assert len(parts) == 4
    taps = [
        (ky, kx)
        for part in parts
        if part.phases is not None
        for ky in part.phases[0].taps
        for kx in part.phases[1].taps
    ]
    assert sorted(taps) == [(ky, kx) for ky in range(3) for kx in range(3)]


def test_utilisation_of_a_middle_layer() -> None:
    """3 x 3, 32 channels, 16 x 16 pixels, batch 64: what the array could do and what it does."""
    work = LayerWork(
        "a", "conv", (64, 32, 16, 16), (32, 32, 3, 3), (64, 32, 16, 16), padding=(1, 1)
    )
    for product, least in ((Product.FORWARD, 0.95), (Product.GRAD_WEIGHT, 0.9)):
        shift = 8 if product is Product.FORWARD else None
        parts = training_programs(work, product, E256, shift)
        cycles = sum(timeline(part.program.program, E256).cycles for part in parts)
        assert work.product(product.value).macs > least * cycles * E256.products


def test_digits_are_the_number() -> None:
    levels = np.arange(-(1 << 15), 1 << 15)
    found = digits(levels)
    assert len(found) == 3 and len(digits(np.arange(-128, 128))) == 1
    assert np.array_equal(sum(d.astype(np.int64) << (8 * i) for i, d in enumerate(found)), levels)
    with pytest.raises(ModelError, match="multiplies up to 16 bits"):
        digits(np.array([1 << 15]))


def test_layer_that_does_not_fit_names_the_memory() -> None:
    work = LayerWork("big", "conv", (1, 600, 3, 3), (8, 600, 3, 3), (1, 8, 1, 1))
    with pytest.raises(ModelError, match=r"forward of 'big': .*rows of weights"):
        training_programs(work, Product.FORWARD, TINY)
    wide = LayerWork("wide", "conv", (1, 1, 1, 200), (1, 1, 1, 1), (1, 1, 1, 200))
    with pytest.raises(ModelError, match=r"(?s)200 pixels .* at most 32 fit.*more weight rows"):
        training_programs(wide, Product.GRAD_WEIGHT, TINY)


def test_layer_that_no_engine_takes_is_not_told_to_take_another() -> None:
    """An instruction has 255 rows and columns of a kernel, however large the memories are."""
    tall = LayerWork("tall", "conv", (1, 1, 300, 1), (1, 1, 300, 1), (1, 1, 1, 1))
    for product in Product:
        with pytest.raises(ModelError, match=r"a kernel of 300 x 1 taps; .* at most 255"):
            training_programs(tall, product, E256)
    wide = LayerWork("wide", "conv", (1, 1, 1, 300), (1, 1, 1, 1), (1, 1, 1, 300))
    with pytest.raises(ModelError, match=r"(?s)300 pixels .* at most 255 fit.*narrower images"):
        training_programs(wide, Product.GRAD_WEIGHT, E256)
