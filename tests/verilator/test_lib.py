# SPDX-License-Identifier: Apache-2.0
"""Every library module alone: values against numpy, exact cycle stamps, random stalls, reset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.verilator.lib_cases import (
    CASES,
    Case,
    MatShape,
    Streams,
    WindowShape,
    levels_of,
    matvec,
    window,
    window_parallel,
)

from bitwright.sim import (
    RunLimits,
    SimResult,
    Simulator,
    StallPattern,
    compare,
    standard_stalls,
    write_module_bench,
)

FRAMES = 12


def _build(case: Case, folder: Path) -> Simulator:
    write_module_bench(
        folder, case.module, case.parameters, case.inputs, case.outputs, case.memories
    )
    return Simulator.build(folder)


def _limits(case: Case) -> RunLimits:
    return RunLimits(idle=5_000, drain=0 if case.surplus else 64)


def _check(case: Case, result: SimResult, inputs: Streams) -> None:
    lanes = {name: port.lanes for name, port in case.outputs.items()}
    difference = compare(case.reference(inputs), result.levels, lanes)
    assert difference is None, f"{case.name}, stalls {result.stalls}: {difference}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_module(case: Case, tmp_path: Path) -> None:
    simulator = _build(case, tmp_path)
    rng = np.random.default_rng(7)
    inputs = {name: levels_of(port, FRAMES, rng) for name, port in case.inputs.items()}
    beats = simulator.pack(inputs)

    free = simulator.run(beats, FRAMES, limits=_limits(case))
    _check(case, free, inputs)
    taken, given = case.stamps(FRAMES)
    for name in case.inputs:
        expected = taken if isinstance(taken, np.ndarray) else taken[name]
        np.testing.assert_array_equal(free.input_cycles[name], expected)
    for name in case.outputs:
        np.testing.assert_array_equal(free.output_cycles[name], given)
    assert free.interval == case.interval

    for stalls in (*standard_stalls(3)[1:], StallPattern("slow sink", 0, 1, 0.8, 0.2, 5)):
        _check(case, simulator.run(beats, FRAMES, stalls, limits=_limits(case)), inputs)
    for cycle in (3, case.interval + case.interval // 2 + 2):
        again = simulator.run(
            beats, FRAMES, standard_stalls(cycle)[1], reset_at=cycle, limits=_limits(case)
        )
        _check(case, again, inputs)


@pytest.mark.parametrize("depth", [2, 7])
def test_fifo_high_water_mark_is_the_occupancy(depth: int, tmp_path: Path) -> None:
    case = next(c for c in CASES if c.name == "fifo5")
    parameters = {**case.parameters, "Depth": depth}
    write_module_bench(tmp_path, case.module, parameters, case.inputs, case.outputs)
    simulator = Simulator.build(tmp_path)
    inputs = {"in": levels_of(case.inputs["in"], 40, np.random.default_rng(1))}
    for stalls in standard_stalls(9):
        result = simulator.run(simulator.pack(inputs), 40, stalls)
        taken, given = result.input_cycles["in"], result.output_cycles["out"]
        cycles = np.arange(given[-1] + 2)
        held = np.searchsorted(taken, cycles) - np.searchsorted(given, cycles)
        assert list(result.fifo_high_water.values()) == [held.max()]
        assert list(result.fifo_depths.values()) == [depth]
        assert held.max() <= depth


def _random_window_shape(seed: int) -> WindowShape:
    """A window of any legal shape, also without room to work ahead or strides beyond the kernel."""
    rng = np.random.default_rng(seed)
    kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    dilation = (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [int(s + rng.integers(0, 5)) for s in span]
    stride = (int(rng.integers(1, 5)), int(rng.integers(1, 5)))
    pixels = (span[0] - 1) * size[1] + span[1] + int(rng.integers(0, 3 * size[1]))
    groups = int(rng.integers(1, 4))
    fold = groups * int(rng.integers(1, 4))
    return WindowShape(size[0], size[1], fold, kernel, stride, dilation, pixels, groups)


def _random_parallel(seed: int) -> Case:
    shape = _random_window_shape(seed + 100)
    return window_parallel(f"seed{seed}", shape, bits=1 + seed % 3, style=seed % 3)


def _random_matvec(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    simd, pe = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    return matvec(
        f"seed{seed}",
        MatShape(
            simd * int(rng.integers(1, 5)), pe * int(rng.integers(1, 4)), pe, simd,
            weight_bits=int(rng.integers(1, 13)), act_bits=int(rng.integers(1, 9)),
            act_signed=bool(rng.integers(0, 2)), bias=bool(rng.integers(0, 2)),
            style=int(rng.integers(0, 3)),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_random_window(seed: int, tmp_path: Path) -> None:
    test_module(window(f"seed{seed}", _random_window_shape(seed)), tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_random_parallel_window(seed: int, tmp_path: Path) -> None:
    test_module(_random_parallel(seed), tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_random_matvec(seed: int, tmp_path: Path) -> None:
    test_module(_random_matvec(seed), tmp_path)
