# SPDX-License-Identifier: Apache-2.0
"""The programmed engine: RTL == emulator, all of the memory outside, and its cycles == the timing
model, whatever that memory does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.engine_programs import SMALL, random_program

from bitwright.base.errors import GraphError
from bitwright.engine.config import ENGINES
from bitwright.engine.emulator import Memory, emulate, expand, outside_words
from bitwright.engine.isa import (
    Buffer,
    Exec,
    Halt,
    Input,
    Instruction,
    Load,
    Output,
    Store,
    Unit,
    encode_program,
)
from bitwright.engine.timing import Timing, simulate
from bitwright.rtl.emit_engine import EVENTS, emit_engine
from bitwright.sim import ProgramJob, ProgramRun, Simulator, run_program, standard_stalls

L, X, S = 1 << Unit.LOAD, 1 << Unit.EXECUTE, 1 << Unit.STORE


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    """A small engine; half of its products are multipliers of the device, half look-up tables."""
    folder = tmp_path_factory.mktemp("engine") / "rtl"
    emit_engine(SMALL, folder, dsps=SMALL.lanes // 2)
    return Simulator.build(folder)


def check_memory(
    program: Sequence[Instruction], before: Memory, after: Memory, run: ProgramRun
) -> None:
    """What the emulator says was written is there, and nothing else has changed."""
    stored = np.zeros(len(before.words), np.bool_)
    for _, instruction, bases in expand(program):
        if isinstance(instruction, Store):
            stored[outside_words(instruction, bases, len(stored), "a store")] = True
    got = run.memory.reshape(before.words.shape)
    undefined = stored[:, np.newaxis] & ~after.written
    wrong = (got != after.words) & ~undefined
    assert not wrong.any(), f"word {int(np.argwhere(wrong)[0][0])} differs"


def check_program(engine: Simulator, seed: int) -> None:
    """Two runs of a random program on a memory with stalls, some after a reset in mid-run: all of
    the memory is the emulator's, all cycles are the timing model's.
    """
    program, before, after = random_program(SMALL, seed)
    stalls = standard_stalls(seed)[seed % 4]
    reset = 100 + 37 * seed % 3000 if seed % 3 == 0 else None
    job = ProgramJob(before.words.tobytes(), writes=({}, {}), pause=seed % 5, reset_at=reset)
    halt = program[-1]
    assert isinstance(halt, Halt)
    size = before.words.size
    timing = simulate(
        program, SMALL, stalls.memory, size, seed=stalls.seed, runs=2, pause=seed % 5
    )  # fmt: skip
    for number, run in enumerate(run_program(engine, job, stalls)):
        assert (run.code, run.error) == (halt.code, 0)
        check_memory(program, before, after, run)
        if reset is None:  # else the memory still answers what was asked before it
            check_cycles(program, run, timing, number)


def check_cycles(program: Sequence[Instruction], run: ProgramRun, timing: Timing, n: int) -> None:
    """Begin and end of every instruction, and of run n, are those of the timing model."""
    assert (run.start, run.end, run.cycles) == (timing.start[n], timing.done[n], timing.cycles[n])
    for name, kind in (("load", Load), ("execute", Exec), ("store", Store)):
        rows = [number for number, one in enumerate(program) if isinstance(one, kind)]
        for what, cycles in (("begins", timing.begin), ("ends", timing.end)):
            got = run.when(EVENTS.index(f"{name} {what}")) + run.start
            assert got.tolist() == cycles[n, rows].tolist(), f"{name} {what}"


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_random_programs(engine: Simulator, first: int) -> None:
    for seed in range(first, first + 6):
        check_program(engine, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 1100, 50))
def test_a_thousand_random_programs(engine: Simulator, first: int) -> None:
    for seed in range(first, first + 50):
        check_program(engine, seed)


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
