# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF009 - `spec` gives the field of a dataclass, as `dataclasses.field` does
"""The engine's instructions as values, their exact encoding, and what each field means.

The fields of these classes are the one table: encoder, decoder, ``docs/engine-isa.md`` and the
SystemVerilog package ``engine_isa`` (`reference.py`) are made from it. ``docs/engine.md`` says what
the instructions do.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, get_type_hints

from bitwright.base.errors import ProgramError

#: Bytes of an instruction; little endian.
INSTRUCTION_BYTES = 32
#: Instructions of a program that is read: 32 MiB. The largest network of the zoo has some ten
#: thousand; as values each takes half a kilobyte.
MOST_INSTRUCTIONS = 1 << 20


class Unit(IntEnum):
    """Who does an instruction; also the bit of its token in `wait` and `signal`."""

    LOAD = 0
    EXECUTE = 1
    STORE = 2
    FETCH = 3


class Opcode(IntEnum):
    """0 is none, so that memory full of zeros is no program."""

    INPUT = 1
    OUTPUT = 2
    LOAD = 3
    STORE = 4
    EXEC = 5
    LOOP = 6
    HALT = 7


class Buffer(IntEnum):
    """Where a LOAD writes."""

    FEATURES = 0
    WEIGHTS = 1
    PARAMETERS = 2
    TABLES = 3


class LoadMode(IntEnum):
    """What a LOAD makes of a word. DIAGONAL: into one row of the weights, bank b keeping only the
    lanes l with ``l mod O = b``: of 8 bits, or of 4.
    """

    PLAIN = 0
    DIAGONAL8 = 1
    DIAGONAL4 = 2


class Bits(IntEnum):
    """Of the lanes of feature and weight words."""

    EIGHT = 0
    FOUR = 1


class Result(IntEnum):
    """Bits of a result: 8 or 4, or all 32 of the shifted value."""

    EIGHT = 0
    FOUR = 1
    RAW = 2


class Post(IntEnum):
    """What becomes of an accumulator."""

    REQUANT = 0
    THRESHOLD = 1


class Rounding(IntEnum):
    """Of a requantization's shift; numbered as in ``round_clip``."""

    HALF_EVEN = 0
    HALF_AWAY = 1
    HALF_UP = 2
    FLOOR = 3
    CEIL = 4


class WeightOrder(IntEnum):
    """Row of step k (of K) of output group o, from the first row on: ``o * K + k``, ``k``, or 0."""

    SEQUENTIAL = 0
    REPEATED = 1
    SINGLE = 2


class Reduce(IntEnum):
    """How the steps of an output join."""

    ADD = 0
    MAX = 1


class Init(IntEnum):
    """What an accumulator begins with; PARTIAL: the raw sums that lie where the result will."""

    ZERO = 0
    PARTIAL = 1


def spec(width: int, meaning: str, *, signed: bool = False, default: int = 0, low: int = 0) -> Any:
    """A field of ``width`` bits, a multiple of 4; ``low`` is its smallest value (if unsigned)."""
    rules = {"bits": width, "meaning": meaning, "signed": signed, "low": low}
    return field(default=default, metadata=rules)


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """Header of all: bit ``Unit`` of `wait` takes a token of that unit before the instruction
    begins, bit ``Unit`` of `signal` gives one to that unit when it is complete. In an EXEC, bit
    EXECUTE of `wait` means that all EXECs before it are complete: it reads their results.
    """

    opcode: ClassVar[Opcode]
    unit: ClassVar[Unit]
    wait: int = spec(4, "units whose token is taken first, one bit each")
    signal: int = spec(4, "units that get a token at the end, one bit each")


@dataclass(frozen=True, kw_only=True)
class Input(Instruction):
    """How the following EXECs read features; all steps are in words, modulo the memory's size."""

    opcode: ClassVar[Opcode] = Opcode.INPUT
    unit: ClassVar[Unit] = Unit.EXECUTE
    pixel: int = spec(16, "step to the next pixel of a row of the patch")
    row: int = spec(16, "step to the next row of pixels")
    tap_x: int = spec(16, "step to the next tap of a row of the kernel")
    tap_y: int = spec(16, "step to the next row of the kernel")
    plane: int = spec(16, "step to the next kc")
    output: int = spec(16, "step with the output group: 0, or a plane if depthwise")
    height: int = spec(16, "rows of the image: other coordinates are padding", low=1, default=1)
    width: int = spec(16, "columns of the image", low=1, default=1)
    stride_y: int = spec(8, "step of the coordinate with a row of pixels")
    stride_x: int = spec(8, "step of the coordinate with a pixel")
    dilation_y: int = spec(8, "step of the coordinate with a row of the kernel")
    dilation_x: int = spec(8, "step of the coordinate with a tap")
    patch: int = spec(4, "log2 of the columns of a group of P pixels")
    passes: int = spec(8, "reads a step needs: gcd(pixel, P)", low=1, default=1)
    bits: Bits = spec(4, "lanes of feature and weight words")
    signed_first: int = spec(4, "1: features of the planes in front of `first` are signed")
    signed_rest: int = spec(4, "1: those of the others are")
    first: int = spec(12, "number of planes (kc) that signed_first speaks of")


@dataclass(frozen=True, kw_only=True)
class Output(Instruction):
    """How the following EXECs use weights, finish sums and write results."""

    opcode: ClassVar[Opcode] = Opcode.OUTPUT
    unit: ClassVar[Unit] = Unit.EXECUTE
    plane: int = spec(16, "step to the next plane of results")
    row: int = spec(16, "step to the next row of results")
    pixel: int = spec(16, "step to the next result of a row: odd", default=1, low=1)
    weights: WeightOrder = spec(4, "order of the weights' rows")
    post: Post = spec(4, "what becomes of a sum")
    result: Result = spec(4, "bits of a result")
    lookup: int = spec(4, "1: the result's low 8 bits choose an entry of the channel's table")
    rounding: Rounding = spec(4, "of the requantization")
    shift: int = spec(8, "of the requantization, at most 47")
    low: int = spec(16, "smallest result (not raw)", signed=True)
    high: int = spec(16, "largest result (not raw)", signed=True)
    base: int = spec(16, "result below the first threshold", signed=True)
    step: int = spec(4, "log2 of a threshold's step")


@dataclass(frozen=True, kw_only=True)
class Load(Instruction):
    """A block of ``z`` x ``y`` x ``x`` words from memory into a buffer."""

    opcode: ClassVar[Opcode] = Opcode.LOAD
    unit: ClassVar[Unit] = Unit.LOAD
    buffer: Buffer = spec(4, "where to")
    mode: LoadMode = spec(4, "what becomes of a word")
    base: int = spec(4, "base register that is added, 0 .. 7")
    memory: int = spec(32, "address in memory, in words from the image on")
    x: int = spec(16, "words that follow one another in both", low=1, default=1)
    y: int = spec(12, "runs of x", low=1, default=1)
    z: int = spec(12, "blocks of y runs", low=1, default=1)
    memory_y: int = spec(24, "step in memory from run to run", signed=True)
    memory_z: int = spec(24, "step in memory from block to block", signed=True)
    address: int = spec(16, "address in the buffer")
    buffer_y: int = spec(16, "step in the buffer from run to run")
    buffer_z: int = spec(16, "step in the buffer from block to block")


@dataclass(frozen=True, kw_only=True)
class Store(Instruction):
    """A block of ``z`` x ``y`` x ``x`` words of features to memory."""

    opcode: ClassVar[Opcode] = Opcode.STORE
    unit: ClassVar[Unit] = Unit.STORE
    base: int = spec(4, "base register that is added, 0 .. 7")
    memory: int = spec(32, "address in memory, in words from the image on")
    x: int = spec(16, "words that follow one another in both", low=1, default=1)
    y: int = spec(12, "runs of x", low=1, default=1)
    z: int = spec(12, "blocks of y runs", low=1, default=1)
    memory_y: int = spec(24, "step in memory from run to run", signed=True)
    memory_z: int = spec(24, "step in memory from block to block", signed=True)
    address: int = spec(16, "address in the features")
    buffer_y: int = spec(16, "step in the features from run to run")
    buffer_z: int = spec(16, "step in the features from block to block")


@dataclass(frozen=True, kw_only=True)
class Exec(Instruction):
    """The array's one loop nest: ``outputs`` x ``groups_y`` x ``groups_x`` groups of P x O."""

    opcode: ClassVar[Opcode] = Opcode.EXEC
    unit: ClassVar[Unit] = Unit.EXECUTE
    features: int = spec(16, "address of the first pixel's first tap (its coordinate is y, x)")
    weights: int = spec(16, "first row of the weights")
    parameters: int = spec(16, "first row of the parameters")
    out: int = spec(16, "address of the first result")
    y: int = spec(16, "row of the first pixel's first tap", signed=True)
    x: int = spec(16, "its column", signed=True)
    groups_y: int = spec(12, "groups of pixels, down", low=1, default=1)
    groups_x: int = spec(12, "groups of pixels, across", low=1, default=1)
    last_y: int = spec(8, "rows of a patch that count in the last group down", low=1, default=1)
    last_x: int = spec(8, "columns that count in the last group across", low=1, default=1)
    kh: int = spec(8, "rows of the kernel", low=1, default=1)
    kw: int = spec(8, "columns of the kernel", low=1, default=1)
    kc: int = spec(12, "planes of the input that are summed", low=1, default=1)
    outputs: int = spec(8, "output groups", low=1, default=1)
    init: Init = spec(4, "what the accumulators begin with")
    reduce: Reduce = spec(4, "how steps join")
    place: int = spec(4, "reserved for 9 to 16 bits: 0")


@dataclass(frozen=True, kw_only=True)
class Loop(Instruction):
    """The ``length`` instructions before it are done ``count`` times in all."""

    opcode: ClassVar[Opcode] = Opcode.LOOP
    unit: ClassVar[Unit] = Unit.FETCH
    count: int = spec(16, "how often", low=1, default=1)
    length: int = spec(12, "instructions before it", low=1, default=1)
    base_a: int = spec(4, "a base register, 0 .. 7")
    step_a: int = spec(32, "words that each repetition adds to it", signed=True)
    base_b: int = spec(4, "another base register")
    step_b: int = spec(32, "words that each repetition adds to it", signed=True)


@dataclass(frozen=True, kw_only=True)
class Halt(Instruction):
    """The end: done as soon as the three units have nothing left."""

    opcode: ClassVar[Opcode] = Opcode.HALT
    unit: ClassVar[Unit] = Unit.FETCH
    code: int = spec(8, "shown as status")


INSTRUCTIONS: tuple[type[Instruction], ...] = (Input, Output, Load, Store, Exec, Loop, Halt)
_BY_OPCODE = {kind.opcode: kind for kind in INSTRUCTIONS}
#: The opcode's bits, below `wait`.
OPCODE_BITS = 4


@dataclass(frozen=True)
class Slot:
    """Where a field lies: bits ``position .. position + bits - 1`` of the instruction."""

    name: str
    position: int
    bits: int
    signed: bool
    low: int
    kind: type[int]
    meaning: str


def layout(kind: type[Instruction]) -> tuple[Slot, ...]:
    """The fields of a kind of instruction in the order of their bits.

    Each begins at a multiple of 4 bits, of 8 or 16 where it has as many, and none crosses a
    multiple of 64.
    """
    return _layout(kind.opcode)


@cache
def _layout(opcode: Opcode) -> tuple[Slot, ...]:
    kind = _BY_OPCODE[opcode]
    hints, position, slots = get_type_hints(kind), OPCODE_BITS, []
    for item in dataclasses.fields(kind):
        rules = item.metadata
        width, grain = rules["bits"], 4
        while grain < 64 and width % (2 * grain) == 0:
            grain *= 2
        grain = min(grain, 16)
        position += -position % grain
        if position // 64 != (position + width - 1) // 64:
            position += -position % 64
        slots.append(
            Slot(item.name, position, width, rules["signed"], rules["low"], hints[item.name],
                 rules["meaning"])
        )  # fmt: skip
        position += width
    if position > 8 * INSTRUCTION_BYTES:
        raise AssertionError(f"{kind.__name__} has {position} bits")
    return tuple(slots)


def encode(instruction: Instruction) -> bytes:
    """The 32 bytes of an instruction.

    Raises:
        ProgramError: a field's value does not fit; says which values do.
    """
    word = int(instruction.opcode)
    for slot in layout(type(instruction)):
        value = int(getattr(instruction, slot.name))
        _check(instruction, slot, value)
        word |= (value & ((1 << slot.bits) - 1)) << slot.position
    check(instruction)
    return word.to_bytes(INSTRUCTION_BYTES, "little")


def decode(data: bytes, where: str | None = None) -> Instruction:
    """The instruction that 32 bytes say; ``encode`` gives the same bytes again.

    Raises:
        ProgramError: they say none: unknown opcode, a value without meaning, stray bits.
    """
    if len(data) != INSTRUCTION_BYTES:
        raise ProgramError(f"{len(data)} bytes, not {INSTRUCTION_BYTES}", where=where)
    word = int.from_bytes(data, "little")
    number = word & ((1 << OPCODE_BITS) - 1)
    if number not in _BY_OPCODE:
        raise ProgramError(
            f"opcode {number} is none",
            where=where,
            hint="the file is damaged, cut off, or of another version",
        )
    kind = _BY_OPCODE[Opcode(number)]
    left, values = word ^ number, {}
    for slot in layout(kind):
        value = word >> slot.position & ((1 << slot.bits) - 1)
        left ^= value << slot.position
        if slot.signed and value >> (slot.bits - 1):
            value -= 1 << slot.bits
        try:
            values[slot.name] = slot.kind(value)
        except ValueError as error:
            raise ProgramError(f"{kind.__name__}.{slot.name}: {error}", where=where) from error
    if left:
        raise ProgramError(f"{kind.__name__} has bits set that mean nothing", where=where)
    instruction = kind(**values)
    for slot in layout(kind):
        _check(instruction, slot, int(getattr(instruction, slot.name)), where)
    check(instruction, where)
    return instruction


def _check(
    instruction: Instruction, slot: Slot, value: int, where: str | None = None
) -> None:  # fmt: skip
    low = -(1 << (slot.bits - 1)) if slot.signed else slot.low
    high = (1 << (slot.bits - slot.signed)) - 1
    if not low <= value <= high:
        raise ProgramError(
            f"{type(instruction).__name__}.{slot.name} must lie in {low} .. {high}, got {value}",
            where=where,
        )


def check(instruction: Instruction, where: str | None = None) -> None:
    """What holds of the fields of one instruction together, in every configuration.

    Raises:
        ProgramError: it does not.
    """
    name = type(instruction).__name__

    def need(condition: bool, message: str) -> None:
        if not condition:
            raise ProgramError(f"{name}: {message}", where=where)

    own = 1 << instruction.unit
    need(instruction.wait < 8 and instruction.signal < 8, "there are three units with tokens")
    need(not instruction.signal & own, "a unit gives no tokens to itself")
    waits_for_itself = instruction.wait & own and not isinstance(instruction, Exec)
    need(not waits_for_itself, "an EXEC alone waits for its own unit")
    if instruction.unit == Unit.FETCH or instruction.opcode in (Opcode.INPUT, Opcode.OUTPUT):
        need(instruction.wait == instruction.signal == 0, "it takes and gives no tokens")
    if isinstance(instruction, Input):
        need(max(instruction.signed_first, instruction.signed_rest) <= 1, "signs are 0 or 1")
    elif isinstance(instruction, Output):
        need(instruction.pixel % 2 == 1, f"pixel step {instruction.pixel} is even")
        need(instruction.shift <= 47, f"shift {instruction.shift} is above 47")
        need(instruction.low <= instruction.high, "low is above high")
        need(instruction.lookup <= 1, "lookup is 0 or 1")
        need(instruction.step <= 1, "a threshold's step is 1 or 2")
        raw = instruction.result == Result.RAW
        need(not (raw and instruction.lookup), "a raw result has no table")
        need(not (raw and instruction.post == Post.THRESHOLD), "thresholds give no raw results")
    elif isinstance(instruction, Load):
        diagonal = instruction.mode != LoadMode.PLAIN
        need(not diagonal or instruction.buffer == Buffer.WEIGHTS, "diagonals are weights")
        need(instruction.base < 8, f"there is no base register {instruction.base}")
    elif isinstance(instruction, Store):
        need(instruction.base < 8, f"there is no base register {instruction.base}")
    elif isinstance(instruction, Exec):
        need(instruction.place == 0, "place is reserved")
    elif isinstance(instruction, Loop):
        need(max(instruction.base_a, instruction.base_b) < 8, "base registers are 0 .. 7")


def encode_program(program: tuple[Instruction, ...]) -> bytes:
    """The bytes of a program, one instruction behind the other."""
    return b"".join(encode(instruction) for instruction in program)


def decode_program(data: bytes) -> tuple[Instruction, ...]:
    """The instructions up to and with the first HALT.

    Raises:
        ProgramError: there is no HALT among the first `MOST_INSTRUCTIONS`, or an instruction is
            none; says which.
    """
    program: list[Instruction] = []
    end = min(len(data), MOST_INSTRUCTIONS * INSTRUCTION_BYTES)
    for start in range(0, end - INSTRUCTION_BYTES + 1, INSTRUCTION_BYTES):
        number = start // INSTRUCTION_BYTES
        part = data[start : start + INSTRUCTION_BYTES]
        program.append(decode(part, f"instruction {number}"))
        if isinstance(program[-1], Halt):
            return tuple(program)
    raise ProgramError(f"{len(program)} instructions and no HALT", hint="the program is cut off")
