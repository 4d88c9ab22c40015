# SPDX-License-Identifier: Apache-2.0
"""Accelerators that train: products as jobs, Barista's and FPGPT's models, FPGPT's engine.

Figures: the worked examples and tables of Vink 2023 (specification 004, 3.1, 4.2 and 4.3).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bitwright.base.errors import ModelError, TargetError
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.costs.network import LayerWork
from bitwright.models.factory import build_model
from bitwright.papers.fpga_training.barista.model import (
    FLOAT32,
    FLOAT32_PRINTED,
    Tiles,
    fixed_point,
    resources,
    times,
)
from bitwright.papers.fpga_training.barista.product import blocked_product, tile, untile
from bitwright.papers.fpga_training.barista.search import (
    best_kernel,
    best_of_layers,
    on_kernel,
    place_layers,
    seconds_of,
)
from bitwright.papers.fpga_training.devices import list_boards, load_board
from bitwright.papers.fpga_training.fpgpt import engine, explore, kernel, studies
from bitwright.papers.fpga_training.fpgpt.cover import fewest_kernels
from bitwright.papers.fpga_training.fpgpt.cycles import cycles
from bitwright.papers.fpga_training.fpgpt.resources import partitions, place
from bitwright.papers.fpga_training.fpgpt.simulate import compared, simulate
from bitwright.papers.fpga_training.jobs import (
    ConvolutionJob,
    MatrixJob,
    convolution_job,
    convolution_jobs,
    matrix_job,
    matrix_jobs,
)
from bitwright.quantize.spec import Product

EXAMPLE = LayerWork(
    "conv", "conv", (256, 16, 32, 32), (16, 16, 3, 3), (256, 16, 32, 32), padding=(1, 1)
)
Case = tuple[LayerWork, dict[Product, tuple[Tensor, Tensor, Tensor]]]


def drawn_layers(count: int, seed: int) -> Iterator[Case]:
    """Random convolutions with integer values: for each product its two operands and the result."""
    draw = random.Random(seed)
    values = torch.Generator().manual_seed(seed)

    def integers(*shape: int) -> Tensor:
        return torch.randint(-8, 8, shape, generator=values).double()

    for _ in range(count):
        pair = [(draw.randint(1, 3), draw.randint(1, 3)) for _ in range(2)]
        stride, dilation = pair[0], (min(pair[1][0], 2), min(pair[1][1], 2))
        padding, size = (
            (draw.randint(0, 3), draw.randint(0, 3)),
            (draw.randint(1, 4), draw.randint(1, 4)),
        )
        images, channels, kernels = draw.randint(1, 3), draw.randint(1, 4), draw.randint(1, 4)
        image = [
            max(1, d * (k - 1) + 1 - 2 * p) + draw.randint(0, 6)
            for d, k, p in zip(dilation, size, padding, strict=True)
        ]
        x = integers(images, channels, *image).requires_grad_()
        w = integers(kernels, channels, *size).requires_grad_()
        y = functional.conv2d(x, w, None, stride, padding, dilation)
        g = integers(*y.shape)
        y.backward(g)
        work = LayerWork(
            "layer",
            "conv",
            tuple(x.shape),
            tuple(w.shape),
            tuple(y.shape),
            stride,
            padding,
            dilation,
        )
        assert x.grad is not None and w.grad is not None
        yield (
            work,
            {
                Product.FORWARD: (x, w, y),
                Product.GRAD_INPUT: (g, w, x.grad),
                Product.GRAD_WEIGHT: (x, g, w.grad),
            },
        )


def numbers(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().numpy()).astype(np.int64)


def check_engine(count: int, seed: int) -> None:
    draw = random.Random(seed)
    for work, products in drawn_layers(count, seed):
        for product, (left, right, want) in products.items():
            job = convolution_job(work, product)
            columns, rows = draw.randint(1, 12), draw.randint(1, 5)
            made = kernel.kernel_for(job, columns, rows, kernel.FLOAT32, 512)
            got = engine.run(job, made, numbers(left), numbers(right))
            assert np.array_equal(got, numbers(want)), (product, work, columns, rows)


def test_engine_gives_torchs_three_products() -> None:
    check_engine(40, 7)


@pytest.mark.slow
def test_engine_gives_torchs_three_products_of_two_thousand_layers() -> None:
    check_engine(2000, 11)


def test_engine_adds_float32_in_four_sums() -> None:
    """Within rounding of the exact sum, and not in torch's order."""
    rng = np.random.default_rng(3)
    inp, kern = rng.normal(size=(37, 5)).astype("f4"), rng.normal(size=(3, 37)).astype("f4")
    got = engine.array_sums(inp, kern, engine.INTERLEAVED)
    exact = kern.astype("f8") @ inp.astype("f8")
    assert got.dtype == np.float32
    bound = 40 * 2.0**-24 * (np.abs(kern).astype("f8") @ np.abs(inp).astype("f8"))
    assert (np.abs(got - exact) <= bound).all()
    sums = [sum((kern[0, k] * inp[k, 0] for k in range(i, 37, 4)), np.float32(0)) for i in range(4)]
    assert got[0, 0] == (sums[0] + sums[1]) + (sums[2] + sums[3])


def test_engine_of_other_sizes_is_refused() -> None:
    job = convolution_job(EXAMPLE, Product.FORWARD)
    small = kernel.kernel_for(
        convolution_job(
            LayerWork("a", "conv", (1, 2, 8, 8), (4, 2, 3, 3), (1, 4, 8, 8), padding=(1, 1)),
            Product.FORWARD,
        ),
        8, 4, kernel.FLOAT32, 512,
    )  # fmt: skip
    with pytest.raises(ModelError, match="was built for other sizes than the forward of 'conv'"):
        engine.run(job, small, np.zeros((256, 16, 32, 32)), np.zeros((16, 16, 3, 3)))


@pytest.mark.parametrize("product", list(Product))
def test_what_lies_beyond_the_convolution_takes_no_memory(product: Product) -> None:
    """A kernel's file may say any size: 2^40 columns were so many windows, 8 TB and more."""
    ((work, products),) = drawn_layers(1, 5)
    left, right, want = products[product]
    job = convolution_job(work, product)
    made = kernel.kernel_for(job, 1 << 40, 1 << 40, kernel.FLOAT32, 512)
    assert np.array_equal(engine.run(job, made, numbers(left), numbers(right)), numbers(want))


def test_port_narrower_than_a_word() -> None:
    with pytest.raises(ModelError, match="words of 32 bits through a memory port of 8 bits"):
        kernel.kernel_for(convolution_job(EXAMPLE, Product.FORWARD), 1, 1, kernel.FLOAT32, 8)


def test_cycles_of_the_worked_forward_product() -> None:
    job = convolution_job(EXAMPLE, Product.FORWARD)
    made = kernel.kernel_for(job, 32, 8, kernel.FLOAT32, 512)
    assert (made.span, made.channel, made.band) == (32, 98, 16)
    count = cycles(job, made)
    assert (count.inp_ddr, count.inp_construct, count.inp_im2col) == (
        12_582_912,
        2_097_152,
        2_359_296,
    )
    assert (count.array, count.kern) == (2_367_488, 2_369_792)
    assert (count.out_construct, count.out_encode, count.out_ddr) == (131_328, 262_144, 262_144)
    assert (count.total, count.bottleneck) == (12_582_912, "inp_ddr")


def test_cycles_of_the_worked_weight_gradient() -> None:
    job = convolution_job(EXAMPLE, Product.GRAD_WEIGHT)
    made = kernel.kernel_for(job, 9, 8, kernel.FLOAT32, 512)
    assert (made.span, made.channel, made.kern_burst) == (67, 1024, 16_384)
    count = cycles(job, made)
    assert (count.inp_ddr, count.inp_construct, count.inp_im2col) == (1_572_864, 548_864, 8_388_608)
    assert count.array == 8_519_680
    assert (count.kern_ddr, count.kern_decode, count.kern_feed) == (4_194_304, 8_388_608, 8_520_704)
    assert count.out_construct == 65_792
    assert (count.total, count.bottleneck) == (8_520_704, "kern_feed")


def test_simulated_cycles_agree_with_the_formulas() -> None:
    """The array's cycles exactly (5.8); the total above the slowest unit by filling and waiting
    alone. Where KERN's feeder sets the model's time, its rounding up to Y words is too much."""
    draw = random.Random(5)
    for work, products in drawn_layers(30, 5):
        for product in products:
            job = convolution_job(work, product)
            made = kernel.kernel_for(
                job, draw.randint(1, 9), draw.randint(1, 6), kernel.FLOAT32, 512
            )
            model, counted, _ = compared(job, made)
            assert counted.array == model.array
            assert counted.total >= counted.array + sum(counted.waited.values())
            assert counted.total >= max(model.array, model.inp_ddr)


def test_simulated_batch_goes_on_as_it_began() -> None:
    """Stepping through all images gives what the first ones promise."""
    for product in Product:
        work = LayerWork("a", "conv", (7, 3, 8, 8), (5, 3, 3, 3), (7, 5, 8, 8), padding=(1, 1))
        job = convolution_job(work, product)
        made = kernel.kernel_for(job, 8, 2, kernel.FLOAT32, 512)
        assert simulate(job, made, images=4) == simulate(job, made, images=7)


def test_simulated_worked_product_is_bound_by_memory() -> None:
    model, counted, error = compared(
        convolution_job(EXAMPLE, Product.FORWARD),
        kernel.kernel_for(convolution_job(EXAMPLE, Product.FORWARD), 32, 8, kernel.FLOAT32, 512),
    )
    assert abs(error) < 0.001 and counted.waited["inp"] > 0.7 * counted.total
    assert model.bottleneck == "inp_ddr"


def test_memory_of_the_worked_kernel() -> None:
    job = convolution_job(EXAMPLE, Product.FORWARD)
    made = kernel.kernel_for(job, 32, 8, kernel.FLOAT32, 512)
    parts = partitions(made)
    assert [parts[name].words for name in ("inp", "kern", "out")] == [128, 288, 256]
    placed = place(made, load_board("u250"))
    assert placed is not None and (placed.bram, made.dsp) == (88, 2304)


def test_barista_model_of_the_worked_product() -> None:
    board = load_board("xcvu9p").model_copy(update={"bits_per_second": 30e9})
    job = MatrixJob("conv", Product.FORWARD, 16, 144, 1024, 1)
    found = times(job, Tiles(16, 16, 64), FLOAT32, board)
    assert (found.tile_cycles, found.cycles, found.memory_bits) == (403, 25_792, 9_961_472)
    assert found.host_bits == 5_316_608
    assert found.compute == pytest.approx(103.2e-6, rel=1e-3)
    assert found.kernel == pytest.approx(332.0e-6, rel=1e-3) and found.bound == "memory"
    taken = resources(Tiles(16, 16, 64), FLOAT32)
    assert (taken.dsp, taken.bram_bits) == (1280, 155_648)
    assert resources(Tiles(16, 16, 64), FLOAT32_PRINTED).dsp == 2304


def test_barista_finds_the_published_kernels() -> None:
    """<36,36,72> for ResNet-20 and <32,32,74> for AlexNet's conv1, with 30 GByte/s of card memory:
    the 30 Gbit/s that are printed give neither."""
    board = load_board("xcvu9p")
    network = count_network(build_model("resnet20", 10, (32, 32, 3)), (3, 32, 32), batch=128)
    sides, depths = range(8, 129, 4), range(8, 257, 2)
    best = best_kernel(list(matrix_jobs(network)), board, FLOAT32, sides, depths)
    assert best.tiles == Tiles(36, 36, 72)
    assert best.gops_per_watt == pytest.approx(0.33, rel=0.06)
    alexnet = count_network(build_model("alexnet", 10, (32, 32, 3)), (3, 32, 32), batch=128)
    forward = [job for job in matrix_jobs(alexnet) if job.product is Product.FORWARD]
    assert best_of_layers(forward, board, FLOAT32)["conv1"].tiles == Tiles(32, 32, 74)
    published = {
        "conv1": (32, 32, 74, 0.59), "conv2": (32, 32, 64, 0.29), "conv3": (36, 36, 64, 0.078),
        "conv4": (32, 32, 64, 0.076), "conv5": (32, 32, 64, 0.073),
    }  # fmt: skip
    for layer, (*sizes, gops) in published.items():
        mine = [job for job in forward if job.layer == layer]
        found = on_kernel(mine, Tiles(*sizes), board, FLOAT32)
        assert found.gops_per_watt == pytest.approx(gops, rel=0.07), layer
    printed = board.model_copy(update={"bits_per_second": 30e9})
    assert (
        best_kernel(list(matrix_jobs(network)), printed, FLOAT32, sides, depths).tiles != best.tiles
    )


def test_barista_places_layers_where_a_joule_does_more() -> None:
    """Table 4.1, with the printed figures of the CPU: conv1 and conv2 on the FPGA."""
    board = load_board("xcvu9p")
    alexnet = count_network(build_model("alexnet", 10, (32, 32, 3)), (3, 32, 32), batch=128)
    forward = [job for job in matrix_jobs(alexnet) if job.product is Product.FORWARD]
    printed = {"conv1": 0.35, "conv2": 0.24, "conv3": 0.089, "conv4": 0.13, "conv5": 0.11}
    placed = place_layers(best_of_layers(forward, board, FLOAT32), printed.__getitem__)
    where = {one.layer: one.place for one in placed}
    assert where == {"conv1": "fpga", "conv2": "fpga", **dict.fromkeys(list(printed)[2:], "cpu")}


def test_barista_counts_all_sizes_as_it_counts_one() -> None:
    board = load_board("xcvu9p")
    jobs = [
        MatrixJob("a", Product.FORWARD, 17, 100, 33, 4),
        MatrixJob("b", Product.FORWARD, 5, 7, 900, 2),
    ]
    sizes = (np.array([8, 16]), np.array([12, 16]), np.array([32, 64]))
    table = seconds_of(jobs, sizes, fixed_point(8), board)
    for i, job in enumerate(jobs):
        for j in range(2):
            tiles = Tiles(*(int(size[j]) for size in sizes))
            assert table[i, j] == times(job, tiles, fixed_point(8), board, repeated=True).total


@pytest.mark.parametrize("sums", [1, 2, 11])
def test_barista_multiplies_as_numpy_does(sums: int) -> None:
    rng = np.random.default_rng(sums)
    for _ in range(20):
        rows, inner, columns = (int(n) for n in rng.integers(1, 20, 3))
        tiles = Tiles(*(int(n) for n in rng.integers(1, 9, 3)))
        a, b = rng.integers(-99, 99, (rows, inner)), rng.integers(-99, 99, (inner, columns))
        assert np.array_equal(blocked_product(a, b, tiles, sums), a @ b)
        assert np.array_equal(untile(tile(a, 3, 4), rows, inner), a)
        real = blocked_product(a.astype("f4") / 7, b.astype("f4") / 3, tiles, sums)
        assert real.dtype == np.float32 and np.allclose(real, a @ b / 21, rtol=1e-5, atol=1e-3)


def test_jobs_have_the_multiplications_of_the_layers() -> None:
    network = count_network(build_model("resnet20", 10, (32, 32, 3)), (3, 32, 32), batch=2)
    convolutions, matrices = list(convolution_jobs(network)), list(matrix_jobs(network))
    products = [product for product in network.products if product.layer != "fc"]
    assert len(convolutions) == len(matrices) == len(products) == 62
    for convolution, matrix, product in zip(convolutions, matrices, products, strict=True):
        assert matrix.macs == product.macs
        if convolution.product is not Product.GRAD_INPUT or convolution.inp_dilation == (1, 1):
            assert convolution.macs == product.macs
    linear = LayerWork("fc", "linear", (8, 30, 1, 1), (10, 30, 1, 1), (8, 10, 1, 1))
    assert matrix_job(linear, Product.FORWARD) == MatrixJob("fc", Product.FORWARD, 10, 30, 8, 1)


def test_googlenet_has_the_convolutions_of_the_document() -> None:
    small = {"name": "googlenet_imagenet", "options": {"width": 0.125}}
    network = count_network(build_model(small, 10, (64, 64, 3)), (3, 64, 64), batch=1)
    assert len(list(convolution_jobs(network))) == 170


def small_jobs() -> list[ConvolutionJob]:
    network = count_network(
        build_model({"name": "resnet20", "options": {"widths": (8, 16, 32)}}, 10, (32, 32, 3)),
        (3, 32, 32),
        16,
    )
    return list(convolution_jobs(network))


def test_kernels_are_shared_within_the_penalty() -> None:
    """Both ways: every convolution has a kernel that fits the board and it, within the penalty; the
    cover needs no more kernels than the greedy merging."""
    board, jobs = load_board("ecp5-85k"), small_jobs()[::3]
    for limit in (0.0, 0.1):
        sharing = explore.Sharing(jobs, board, kernel.fixed_point(8), limit)
        greedy, cover = sharing.greedy(), fewest_kernels(sharing)
        assert len(cover) <= len(greedy) <= len(jobs)
        for groups in (greedy, cover):
            assert sorted(explore.kernel_map(jobs, groups)) == list(range(len(jobs)))
            for group in groups:
                assert place(group.kernel, board) is not None
                for index in group.members:
                    assert kernel.fits(group.kernel, jobs[index])
                    assert sharing.penalty(group.kernel, index) <= limit


def test_best_kernel_is_the_best_of_all() -> None:
    board, job = load_board("ecp5-85k"), small_jobs()[5]
    best = explore.best_kernel(job, board, kernel.fixed_point(8))
    for columns in range(1, 60, 3):
        for rows in range(1, 17):
            made = kernel.kernel_for(job, columns, rows, kernel.fixed_point(8), board.port_bits)
            if place(made, board):
                assert cycles(job, made).total >= best.cycles


def test_many_kernels_are_counted_as_one_is() -> None:
    """Cycles of every unit, memory and whether it fits: side by side and one at a time."""
    board = load_board("ecp5-85k")
    for job in small_jobs()[::7]:
        found = explore.tried(job, board, kernel.fixed_point(8))
        other = small_jobs()[3 if job.product is not Product.GRAD_WEIGHT else 4]
        counted, fit = cycles(job, found.kernel), kernel.fits(found.kernel, other)
        for which in range(0, len(found.cycles), 97):
            one = found.kernel.at(which)
            assert one == kernel.kernel_for(job, one.columns, one.rows, one.numbers, 32)
            alone = cycles(job, one)
            assert place(one, board) is not None and alone.total == found.cycles[which]
            for unit in ("inp", "kern", "out", "array", "inp_decode", "kern_feed"):
                value = np.broadcast_to(getattr(counted, unit), np.shape(found.cycles))[which]
                assert value == getattr(alone, unit)
            assert kernel.fits(one, other) == np.broadcast_to(fit, np.shape(found.cycles))[which]


@pytest.mark.slow
def test_googlenet_runs_on_the_published_number_of_kernels() -> None:
    """170 convolutions, none slower than on its own best kernel, on 30 kernels of a whole card."""
    network = count_network(
        build_model("googlenet_imagenet", 1000, (224, 224, 3)), (3, 224, 224), batch=256
    )
    card = load_board("u250").model_copy(update={"slrs": 1})
    begin = time.monotonic()
    sharing = explore.Sharing(list(convolution_jobs(network)), card, kernel.FLOAT32, 0.0)
    groups = fewest_kernels(sharing)
    assert time.monotonic() - begin < 120
    assert len(groups) == 30 and sum(len(group.members) for group in groups) == 170


def test_layer_that_no_kernel_fits_names_the_memory() -> None:
    """As VGG on FPGPT: all of KERN, or a whole weight gradient, must lie on the chip."""
    work = LayerWork(
        "conv5", "conv", (64, 512, 28, 28), (512, 512, 3, 3), (64, 512, 28, 28), padding=(1, 1)
    )
    with pytest.raises(
        TargetError, match=r"no kernel fits the forward of 'conv5'.*memory of KERN takes"
    ):
        explore.best_kernel(
            convolution_job(work, Product.FORWARD), load_board("ecp5-85k"), kernel.FLOAT32
        )


def test_boards_are_described() -> None:
    assert list_boards() == ["ecp5-85k", "u250", "xcvu9p", "zu9eg"]
    for name in list_boards():
        assert load_board(name).source
    with pytest.raises(TargetError, match="training board"):
        load_board("u280")


def test_studies() -> None:
    """Relations that hold whatever the figures are."""
    board, jobs, numbers = load_board("ecp5-85k"), small_jobs()[::5], kernel.fixed_point(8)
    found = studies.latencies(jobs[0], board, numbers)
    assert found.cycles[0] == explore.best_kernel(jobs[0], board, numbers).cycles
    assert (np.diff(found.cycles) >= 0).all() and len(found.best(50).cycles) == 50
    curve = studies.penalties(jobs, board, numbers, [0.0, 0.2])
    assert curve[0].penalty == 0 and curve[1].kernels <= curve[0].kernels
    assert 0 <= curve[1].penalty <= 0.2
    rate = studies.throughput(jobs, board, numbers)
    assert rate.with_host < rate.mean <= rate.peak
    assert rate.seconds * rate.mean == pytest.approx(2e-9 * sum(job.macs for job in jobs))
    assert rate.hours(7200, 16) == pytest.approx(rate.seconds * 450 / 3600)
    points = studies.ideal_boards(jobs, board, numbers, [1, 2], [1, 2], [1, 2])
    assert len(points) == 6  # bandwidth grows no faster than memory
    best = studies.pareto(points)
    assert best[-1].gops == max(p.gops for p in points) and best[0].gops <= best[-1].gops
    errors = studies.model_errors(jobs[:3], [kernel_of(job) for job in jobs[:3]])
    assert {job.product.value for job in jobs[:3]} == set(errors)
    for error in errors.values():
        assert error.smallest <= error.mean <= error.largest < 0.2
        assert error.histogram(4)[0].sum() == len(error.values)
    every = [kernel_of(job) for job in jobs]
    ram = board.bram
    own = studies.memory_errors(every, ram, lambda depth, bits: -(-depth // ram.words_of(bits)))
    assert set(own) == {"inp", "kern", "out"}
    assert min(error.smallest for error in own.values()) == 0  # more where ports want more
    half = studies.memory_errors(
        every, ram, lambda depth, bits: -2 * (-depth // ram.words_of(bits))
    )
    for name, error in half.items():
        assert [2 * value + 1 for value in error.values] == pytest.approx(own[name].values)
    few = [studies.within_blocks(jobs[0], board, numbers, blocks) for blocks in (8, 40, 208)]
    assert 0 < few[0] < few[1] <= few[2] == 1


def kernel_of(job: ConvolutionJob) -> kernel.Kernel:
    return kernel.kernel_for(job, 8, 8, kernel.FLOAT32, 512)
