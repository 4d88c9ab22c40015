# SPDX-License-Identifier: Apache-2.0
"""Random programs of the engine: blocks that load, execute and store, with the fewest tokens.

Block i uses half i mod 2 of every buffer, so that its LOADs may run beside the EXECs in front of it
and its STORE beside the EXECs behind it. What an instruction may be is what the emulator takes: a
candidate that it refuses (banks, words never written) is drawn again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ProgramError
from bitwright.engine.config import EngineConfig
from bitwright.engine.emulator import Memory, emulate
from bitwright.engine.execute import Machine, counted, execute
from bitwright.engine.isa import (
    Bits,
    Buffer,
    Exec,
    Halt,
    Input,
    Instruction,
    Load,
    LoadMode,
    Output,
    Post,
    Reduce,
    Result,
    Rounding,
    Store,
    Unit,
    WeightOrder,
    encode_program,
)

SMALL = EngineConfig(pixels=2, feature_words=1 << 10, weight_rows=1 << 6, parameter_rows=1 << 5)
L, X, S = 1 << Unit.LOAD, 1 << Unit.EXECUTE, 1 << Unit.STORE
#: Words of the memory outside: program, random constants, and room for results.
PROGRAM, CONSTANTS, RESULTS = 1024, 2048, 4096


@dataclass
class Draft:
    """A program being written, with the emulator's state behind what it has so far."""

    config: EngineConfig
    rng: np.random.Generator
    program: list[Instruction] = field(default_factory=list)
    stored: int = PROGRAM + CONSTANTS

    def below(self, high: int, low: int = 0) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)


def memory_of(config: EngineConfig, rng: np.random.Generator) -> Memory:
    """A memory with random constants behind the program's place."""
    memory = Memory.empty(PROGRAM + CONSTANTS + RESULTS, config.lanes)
    memory.put(PROGRAM, rng.integers(0, 256, (CONSTANTS, config.lanes)).astype(np.uint8))
    return memory


def random_program(
    config: EngineConfig, seed: int, blocks: int = 4
) -> tuple[tuple[Instruction, ...], Memory, Memory]:
    """A program, the memory before it (program included), and the one behind it."""
    rng = np.random.default_rng(seed)
    memory = memory_of(config, rng)
    draft = Draft(config, rng)
    for number in range(blocks):
        _block(draft, memory, number)
    program = (*draft.program, Halt(code=draft.below(255)))
    data = np.frombuffer(encode_program(program), np.uint8).reshape(-1, config.lanes)
    assert len(data) <= PROGRAM
    memory.put(0, data)
    after = Memory(memory.words.copy(), memory.written.copy())
    emulate(program, after, config)
    return program, memory, after


def _constants(draft: Draft, words: int) -> int:
    return PROGRAM + draft.below(CONSTANTS - words)


def _loads(draft: Draft, half: int) -> list[Load]:
    """Of a block: features and weights, parameters and tables, in any order."""
    config, below = draft.config, draft.below
    region, rows = config.feature_words // 4, config.weight_rows // 2
    y, z = below(4, 1), below(3, 1)
    features = Load(
        buffer=Buffer.FEATURES, memory=_constants(draft, 400), x=region // (y * z), y=y, z=z,
        memory_y=below(9, -9), memory_z=below(20, -20) + 20, address=half * region,
        buffer_y=region // (y * z), buffer_z=y * (region // (y * z)),
    )  # fmt: skip
    features = replace(features, memory=max(features.memory, PROGRAM + 60))
    mode = LoadMode(below(2)) if draft.chance(0.4) else LoadMode.PLAIN
    words = rows if mode else rows * config.outputs
    weights = Load(
        buffer=Buffer.WEIGHTS, mode=mode, memory=_constants(draft, words), x=words,
        address=half * rows * config.outputs,
    )  # fmt: skip
    share = config.parameter_rows * config.parameter_row_words // 2
    parameters = Load(
        buffer=Buffer.PARAMETERS, memory=_constants(draft, share), x=share, address=half * share
    )
    loads = [features, weights, parameters]
    if half == 0 and not any(isinstance(i, Load) and i.buffer == 3 for i in draft.program):
        words = config.table_words
        loads.append(Load(buffer=Buffer.TABLES, memory=_constants(draft, words), x=words))
    return [loads[int(i)] for i in draft.rng.permutation(len(loads))]


def _settings(draft: Draft) -> tuple[Input, Output]:
    below, config = draft.below, draft.config
    patch = below(config.pixel_bits)
    pixel = int(draft.rng.choice([1, 1, 1, 2, 3]))
    height, width = below(6, 1), below(9, 1)
    row = pixel * below(12, 1)
    given = Input(
        pixel=pixel, row=row, tap_x=below(3), tap_y=below(12), plane=below(40), output=below(1) * 7,
        height=height, width=width, stride_y=below(2), stride_x=below(2), dilation_y=below(2),
        dilation_x=below(2), patch=patch, passes=int(np.gcd(pixel, config.pixels)),
        bits=Bits(below(1)), signed_first=below(1), signed_rest=below(1), first=below(2),
    )  # fmt: skip
    low, high = sorted((below(200, -200), below(200, -200)))
    result = Result(below(2))
    threshold = result != Result.RAW and draft.chance(0.4)
    finish = Output(
        plane=below(30, 20), row=below(13, 1), pixel=2 * below(1) + 1,
        weights=WeightOrder(below(2)), post=Post(int(threshold)), result=result,
        lookup=int(result != Result.RAW and draft.chance(0.3)), rounding=Rounding(below(4)),
        shift=below(47), low=low, high=high, base=below(20, -20), step=below(1),
    )  # fmt: skip
    return given, finish


def _job(draft: Draft, half: int) -> Exec:
    below, config = draft.below, draft.config
    region, rows = config.feature_words // 4, config.weight_rows // 2
    return Exec(
        features=half * region + below(region // 2) - below(10),
        weights=half * rows + below(rows // 2), parameters=half * config.parameter_rows // 2,
        out=(2 + half) * region + below(30), y=below(2, -2), x=below(2, -2),
        groups_y=below(2, 1), groups_x=below(3, 1), last_y=below(config.pixels, 1),
        last_x=below(config.pixels, 1), kh=below(3, 1), kw=below(3, 1), kc=below(3, 1),
        outputs=below(2, 1), reduce=Reduce(int(draft.chance(0.2))),
    )  # fmt: skip


def _overlaps(config: EngineConfig, given: Input, finish: Output, job: Exec) -> bool:
    """Whether two results go to one place: which one stays would depend on the order."""
    pixels = counted(config, job, given, "a candidate")
    planes = config.raw_words * job.outputs if finish.result == Result.RAW else job.outputs
    if finish.result == Result.FOUR:
        planes = (planes + 1) // 2
    place = np.add.outer(pixels.rows * finish.row, pixels.columns * finish.pixel)
    places = np.add.outer(place, np.arange(planes) * finish.plane)
    return len(np.unique(places)) < places.size


def _accepted(draft: Draft, machine: Machine, half: int) -> tuple[Input, Output, Exec]:
    """Settings and an EXEC that the emulator takes, whose results stay in their region."""
    region, other = draft.config.feature_words // 4, 1 - half
    _forget(machine.features_written, 4, other)  # which may be loaded anew at the same time
    _forget(machine.weights_written, 2, other)
    _forget(machine.parameters_written, 2, other)
    _forget(machine.features_written, 4, 2)
    _forget(machine.features_written, 4, 3)
    for _ in range(3000):
        given, finish = _settings(draft)
        job = _job(draft, half)
        try:
            overlaps = _overlaps(draft.config, given, finish, job)
        except ProgramError:
            continue
        if job.features < 0 or overlaps:
            continue
        machine.input, machine.output = given, finish
        before = machine.features.copy(), machine.features_written.copy()
        try:
            execute(machine, job, "a candidate")
        except ProgramError:
            machine.features, machine.features_written = before
            continue
        changed = (machine.features != before[0]) | (machine.features_written != before[1])
        changed[(2 + half) * region : (3 + half) * region] = False
        machine.features, machine.features_written = before
        if not changed.any():
            return given, finish, job
    raise AssertionError("no program was found")


def _forget(written: NDArray[np.bool_], parts: int, part: int) -> None:
    size = len(written) // parts
    written[part * size : (part + 1) * size] = False


def _block(draft: Draft, memory: Memory, number: int) -> None:
    half, old = number % 2, number >= 2
    region = draft.config.feature_words // 4
    loads = _loads(draft, half)
    # The buffers' halves are free when the EXEC of the block before the last one is over.
    loads[0] = replace(loads[0], wait=X if old else 0)
    loads[-1] = replace(loads[-1], signal=X)
    draft.program += loads
    scratch = Memory(memory.words.copy(), memory.written.copy())
    machine = emulate((*draft.program, Halt()), scratch, draft.config)
    # Up to three EXECs, one behind the other. Their results' region is free when the STORE of the
    # block before the last one is over.
    jobs = [_accepted(draft, machine, half) for _ in range(draft.below(3, 1))]
    for place, (given, finish, job) in enumerate(jobs):
        wait = L | (S if old else 0) if place == 0 else 0
        signal = L | S if place == len(jobs) - 1 else 0
        draft.program += [given, finish, replace(job, wait=wait, signal=signal)]
    y = draft.below(3, 1)
    store = Store(
        wait=X, signal=X, memory=draft.stored + draft.below(5), x=region // y, y=y,
        memory_y=region // y + draft.below(3), address=(2 + half) * region, buffer_y=region // y,
    )  # fmt: skip
    draft.stored += region + 15
    draft.program.append(store)
