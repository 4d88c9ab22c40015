# SPDX-License-Identifier: Apache-2.0
"""The programmed engine: RTL == emulator, all of the memory outside, and its cycles == the timing
model, whatever that memory does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine_programs import SMALL, random_program
from tests.engine_rtl import check_memory

from bitwright.base.errors import GraphError, ProgramError
from bitwright.engine.checker import check_program
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.emulator import Memory, emulate
from bitwright.engine.isa import (
    Buffer,
    Exec,
    Halt,
    Input,
    Instruction,
    Load,
    Output,
    Post,
    Reduce,
    Store,
    Unit,
    encode_program,
)
from bitwright.engine.timing import simulate
from bitwright.rtl.emit_engine import emit_engine
from bitwright.sim import ProgramJob, Simulator, run_program, standard_stalls
from bitwright.sim.engines import check_cycles

L, X, S = 1 << Unit.LOAD, 1 << Unit.EXECUTE, 1 << Unit.STORE


#: The same with results that leave two a cycle, and pixels that share multipliers.
FAST = replace(SMALL, post_lanes=2)


def built(config: EngineConfig, folder: Path) -> Simulator:
    """Half of its products are multipliers of the device, half look-up tables."""
    emit_engine(config, folder, dsps=config.lanes // 2, paired=config.post_lanes == 2)
    return Simulator.build(folder)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    """A small engine."""
    return built(SMALL, tmp_path_factory.mktemp("engine") / "rtl")


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    """A small engine with two post lanes a pixel and two pixels a multiplier."""
    return built(FAST, tmp_path_factory.mktemp("fast") / "rtl")


def check_random_program(engine: Simulator, seed: int, config: EngineConfig = SMALL) -> None:
    """Two runs of a random program on a memory with stalls, some after a reset in mid-run: all of
    the memory is the emulator's, all cycles are the timing model's.
    """
    program, before, after = random_program(config, seed)
    stalls = standard_stalls(seed)[seed % 4]
    reset = 100 + 37 * seed % 3000 if seed % 3 == 0 else None
    job = ProgramJob(before.words.tobytes(), writes=({}, {}), pause=seed % 5, reset_at=reset)
    halt = program[-1]
    assert isinstance(halt, Halt)
    size = before.words.size
    timing = simulate(
        program, config, stalls.memory, size, seed=stalls.seed, runs=2, pause=seed % 5
    )  # fmt: skip
    for number, run in enumerate(run_program(engine, job, stalls)):
        assert (run.code, run.error) == (halt.code, 0)
        check_memory(program, before, after, run)
        if reset is None:  # else the memory still answers what was asked before it
            check_cycles(program, run, timing, number)


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_random_programs(engine: Simulator, first: int) -> None:
    for seed in range(first, first + 6):
        check_random_program(engine, seed)


def test_memories_are_not_judged_before_the_reset(engine: Simulator) -> None:
    """Registers without a reset start at random: here a read behind one meets a write."""
    check_random_program(engine, 289)


@pytest.mark.long
def test_random_programs_with_two_post_lanes(fast: Simulator) -> None:
    for seed in range(30, 40):
        check_random_program(fast, seed, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 1100, 50))
def test_a_thousand_random_programs(engine: Simulator, fast: Simulator, first: int) -> None:
    for seed in range(first, first + 50):
        check_random_program(engine, seed)
        check_random_program(fast, seed, FAST)


def copier(words: int, source: int, target: int) -> tuple[Instruction, ...]:
    """Words from one place of the memory to another."""
    return (
        Load(buffer=Buffer.FEATURES, memory=source, x=words, signal=S),
        Store(wait=L, memory=target, x=words),
        Halt(code=5),
    )


def image_of(program: bytes, words: int) -> bytes:
    return program + bytes(8 * words - len(program))


def test_an_image_a_run(engine: Simulator) -> None:
    """The host writes an input before every run; each run gives its own output."""
    inputs = np.random.default_rng(3).integers(0, 256, (4, 100, 8)).astype(np.uint8)
    image = image_of(encode_program(copier(100, 600, 800)), 1024)
    writes = [{8 * 600: frame.tobytes()} for frame in inputs]
    for stalls in standard_stalls(2):
        runs = run_program(engine, ProgramJob(image, writes=writes), stalls)
        assert [run.memory[8 * 800 : 8 * 900].tobytes() for run in runs] == [
            frame.tobytes() for frame in inputs
        ]


def test_memory_that_nobody_wrote_is_told_apart(engine: Simulator) -> None:
    program = encode_program(copier(10, 600, 900))
    job = ProgramJob(image_of(program, 700), size=8 * 1000)
    (run,) = run_program(engine, job)
    defined = run.defined.reshape(-1, 8).all(axis=1)
    assert defined[:700].all() and np.flatnonzero(defined[700:]).tolist() == list(range(200, 210))


def test_an_opcode_that_is_none_ends_the_run_with_an_error(engine: Simulator) -> None:
    program = bytearray(encode_program(copier(10, 600, 900)))
    program[64] = 13
    bad, good = bytes(program), encode_program(copier(10, 600, 900))
    job = ProgramJob(image_of(bad, 1024), writes=({}, {0: good}))
    first, second = run_program(engine, job)
    assert (first.error, second.error, second.code) == (1, 0, 5)


def test_a_stream_design_runs_no_programs(engine: Simulator) -> None:
    with pytest.raises(GraphError, match="the memory image is empty"):
        run_program(engine, ProgramJob(b""))


def test_the_rtl_depends_on_the_configuration_alone(tmp_path: Path) -> None:
    emit_engine(ENGINES["e256"], tmp_path / "one")
    emit_engine(ENGINES["e256"], tmp_path / "two")
    names = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    assert len(names) > 20
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
def test_one_convolution_on_e256(tmp_path: Path) -> None:
    """The engine for an ECP5-85, with the multipliers that fit there."""
    config = ENGINES["e256"]
    emit_engine(config, tmp_path / "rtl", dsps=4)
    simulator = Simulator.build(tmp_path / "rtl")
    rng = np.random.default_rng(1)
    memory = Memory.empty(8192, 8)
    memory.put(1024, rng.integers(0, 256, (4096, 8)).astype(np.uint8))
    program = (
        Load(buffer=Buffer.FEATURES, memory=1024, x=512),
        Load(buffer=Buffer.PARAMETERS, memory=1600, x=64),
        Load(buffer=Buffer.WEIGHTS, memory=2048, x=8 * 72, signal=X),
        Input(pixel=1, row=16, tap_x=1, tap_y=16, plane=128, height=8, width=16, stride_y=1,
              stride_x=1, dilation_y=1, dilation_x=1, patch=2),
        Output(plane=128, row=16, shift=30, low=-128, high=127),
        Exec(wait=L, signal=S, features=(-17) % config.feature_words, out=1024, y=-1, x=-1,
             groups_y=8, groups_x=4, last_x=4, kh=3, kw=3, kc=4, outputs=2),
        Store(wait=X, memory=6000, x=256, address=1024),
        Halt(),
    )  # fmt: skip
    data = np.frombuffer(encode_program(program), np.uint8).reshape(-1, 8)
    memory.put(0, data)
    after = Memory(memory.words.copy(), memory.written.copy())
    emulate(program, after, config)
    for stalls in standard_stalls(1):
        (run,) = run_program(simulator, ProgramJob(memory.words.tobytes()), stalls)
        check_memory(program, memory, after, run)


def two_loads(token: bool) -> tuple[Instruction, ...]:
    """Two LOADs of the same words, the second one begun while the first one's still come; what is
    stored waits for the second (token), or for the first alone.
    """
    many = Load(buffer=Buffer.FEATURES, memory=200, x=200, signal=0 if token else S)
    few = Load(buffer=Buffer.FEATURES, memory=600, x=100, address=60, signal=S if token else 0)
    return (many, few, Store(wait=L, memory=800, x=200), Halt())


def test_a_load_that_begins_while_the_words_of_the_one_before_still_come(engine: Simulator) -> None:
    """Its end tells of both, its beginning of neither: one token is enough, the wrong one is not,
    and the checker knows.
    """
    rng = np.random.default_rng(5)
    before = Memory.empty(1024, 8)
    before.put(200, rng.integers(0, 256, (500, 8)).astype(np.uint8))
    for token in (True, False):
        program = two_loads(token)
        before.put(0, np.frombuffer(encode_program(program), np.uint8).reshape(-1, 8))
        if token:
            check_program(program, SMALL, 1024)
        else:
            with pytest.raises(ProgramError, match="nothing orders it behind instruction 1"):
                check_program(program, SMALL, 1024)
        after = Memory(before.words.copy(), before.written.copy())
        emulate(program, after, SMALL)
        wrong = 0
        for stalls in standard_stalls(7):
            (run,) = run_program(engine, ProgramJob(before.words.tobytes()), stalls)
            first = run.events[run.events[:, 1] & 1 == 1][:2, 0]
            ended = run.events[run.events[:, 1] & 2 == 2][0, 0]
            assert first[1] < ended  # the second one begins before the first one ends
            wrong += bool((run.memory.reshape(-1, 8)[800:1000] != after.words[800:1000]).any())
        assert wrong == 0 if token else wrong > 0


def test_a_threshold_of_the_largest_number(engine: Simulator) -> None:
    """It counts for the largest number alone: no tap of a maximum within the image gives -2^31,
    whose complement that is.
    """
    limits = np.full((8, 16), (1 << 31) - 1, np.int64)
    limits[:, 0], limits[:, 1] = -(1 << 31), (1 << 31) - 2
    limits[:, 15] = np.arange(8) % 2  # every second channel is flipped
    before = Memory.empty(1024, 8)
    before.put(200, limits.astype("<i4").view(np.uint8).reshape(-1, 8))
    before.put(400, np.ones((64, 8), np.uint8))
    program = (
        Load(buffer=Buffer.PARAMETERS, memory=200, x=64),
        Load(buffer=Buffer.FEATURES, memory=400, x=8),
        Load(buffer=Buffer.WEIGHTS, memory=400, x=8, signal=X),
        Input(pixel=1, row=2, tap_x=1, tap_y=2, plane=8, height=1, width=1, patch=1),
        Output(plane=8, row=2, post=Post.THRESHOLD),
        Exec(wait=L, signal=S, out=16, x=1, groups_x=1, groups_y=1, last_x=2, last_y=1, kh=1, kw=1,
             kc=1, outputs=1, reduce=Reduce.MAX),
        Store(wait=X, memory=800, x=2, address=16),
        Halt(),
    )  # fmt: skip
    before.put(0, np.frombuffer(encode_program(program), np.uint8).reshape(-1, 8))
    after = Memory(before.words.copy(), before.written.copy())
    emulate(program, after, SMALL)
    assert after.words[800].tolist() == [1, 15] * 4
    (run,) = run_program(engine, ProgramJob(before.words.tobytes()))
    check_memory(program, before, after, run)
