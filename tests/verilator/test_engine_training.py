# SPDX-License-Identifier: Apache-2.0
"""Programs of training on the engine's RTL: all memory == emulator, results == reference, cycles of
every instruction == timing model, on memories with stalls.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine_programs import SMALL
from tests.engine_rtl import check_memory
from tests.engine_training import drawn_layers, operands

from bitwright.engine.emulator import Memory, emulate
from bitwright.engine.timing import simulate
from bitwright.engine.training import training_programs
from bitwright.low_precision.costs.network import LayerWork
from bitwright.quantize.spec import Product
from bitwright.rtl.emit_engine import emit_engine
from bitwright.sim import ProgramJob, Simulator, run_program, standard_stalls
from bitwright.sim.engines import check_cycles

#: A strided layer whose gradient of the input has four phases, on images cut into strips.
LAYER = LayerWork("a", "conv", (3, 9, 9, 8), (10, 9, 3, 3), (3, 10, 5, 4), (2, 2), (1, 1))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    folder = tmp_path_factory.mktemp("engine") / "rtl"
    emit_engine(SMALL, folder, dsps=SMALL.lanes // 2)
    return Simulator.build(folder)


def check(engine: Simulator, work: LayerWork, seed: int) -> int:
    """All three products of a layer in 8 bits; how many instructions' cycles were compared."""
    compared = 0
    for product, (left, right, want) in operands(work, np.random.default_rng(seed), (8, 8)).items():
        out = np.zeros_like(want)
        for number, part in enumerate(training_programs(work, product, SMALL)):
            program = part.program
            given = part.operands(left.astype(np.int8), right.astype(np.int8))
            before = program.memory(*given)
            after = Memory(before.words.copy(), before.written.copy())
            emulate(program.program, after, SMALL)
            stalls = standard_stalls(seed)[(seed + number) % 4]
            timing = simulate(
                program.program, SMALL, stalls.memory, before.words.size, seed=stalls.seed
            )
            job = ProgramJob(before.words.tobytes(), writes=({},))
            (run,) = run_program(engine, job, stalls)
            assert run.error == 0
            check_memory(program.program, before, after, run)
            compared += check_cycles(program.program, run, timing, 0)
            words = run.memory.reshape(before.words.shape)[program.start :]
            part.put(program.results(words), out)
        assert np.array_equal(out, want), product
    return compared


def test_a_layer_trains_on_the_rtl(engine: Simulator) -> None:
    assert check(engine, LAYER, 1) > 50
    assert {len(training_programs(LAYER, product, SMALL)) for product in Product} == {1, 4}


@pytest.mark.slow
def test_drawn_layers_train_on_the_rtl(engine: Simulator) -> None:
    for seed, work in enumerate(drawn_layers(40, 21)):
        check(engine, work, seed)
