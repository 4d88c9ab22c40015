# SPDX-License-Identifier: Apache-2.0
"""The engine's instructions: every value survives its encoding, nothing else is decoded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import ProgramError, TargetError
from bitwright.engine import isa
from bitwright.engine.config import ENGINES, Constants, EngineConfig
from bitwright.engine.reference import files

ROOT = Path(__file__).resolve().parents[2]


@st.composite
def instructions(draw: st.DrawFn) -> isa.Instruction:
    """Any instruction, legal or not: each field within its bits."""
    kind = draw(st.sampled_from(isa.INSTRUCTIONS))
    values: dict[str, Any] = {}
    for slot in isa.layout(kind):
        if issubclass(slot.kind, isa.IntEnum):
            values[slot.name] = draw(st.sampled_from(list(slot.kind)))
        else:
            low = -(1 << (slot.bits - 1)) if slot.signed else slot.low
            values[slot.name] = draw(st.integers(low, (1 << (slot.bits - slot.signed)) - 1))
    if draw(st.booleans()):  # most headers drawn are illegal
        values |= {"wait": 0, "signal": 0}
    return kind(**values)


@given(instructions())
def test_encoding_is_exact(instruction: isa.Instruction) -> None:
    try:
        isa.check(instruction)
    except ProgramError:
        with pytest.raises(ProgramError):
            isa.encode(instruction)
        return
    data = isa.encode(instruction)
    assert len(data) == isa.INSTRUCTION_BYTES
    assert isa.decode(data) == instruction


@given(instructions(), st.integers(0, 255))
def test_a_flipped_bit_is_another_instruction_or_refused(
    instruction: isa.Instruction, bit: int
) -> None:
    try:
        data = isa.encode(instruction)
    except ProgramError:
        return
    flipped = (int.from_bytes(data, "little") ^ (1 << bit)).to_bytes(32, "little")
    try:
        other = isa.decode(flipped)
    except ProgramError:
        return
    assert other != instruction and isa.encode(other) == flipped


@pytest.mark.parametrize("kind", isa.INSTRUCTIONS)
def test_fields_are_where_hardware_wants_them(kind: type[isa.Instruction]) -> None:
    end = isa.OPCODE_BITS
    for slot in isa.layout(kind):
        assert slot.position >= end and slot.position % 4 == 0
        assert slot.position // 64 == (slot.position + slot.bits - 1) // 64
        end = slot.position + slot.bits
    assert {s.name for s in isa.layout(kind)} == {f.name for f in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    ("instruction", "says"),
    [
        (isa.Load(x=0), "Load.x must lie in 1 .. 65535, got 0"),
        (isa.Load(memory_y=1 << 23), "memory_y must lie in"),
        (isa.Load(wait=1), "an EXEC alone waits"),
        (isa.Exec(signal=2), "a unit gives no tokens to itself"),
        (isa.Load(mode=isa.LoadMode.DIAGONAL8), "diagonals are weights"),
        (isa.Output(pixel=2), "pixel step 2 is even"),
        (isa.Output(shift=48), "shift 48 is above 47"),
        (isa.Output(result=isa.Result.RAW, post=isa.Post.THRESHOLD), "no raw results"),
        (isa.Halt(wait=1), "takes and gives no tokens"),
    ],
)
def test_what_is_no_instruction(instruction: isa.Instruction, says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        isa.encode(instruction)


def test_programs_end_with_halt() -> None:
    program = (isa.Load(signal=2), isa.Exec(wait=1), isa.Halt(code=7))
    data = isa.encode_program(program)
    assert isa.decode_program(data + bytes(64)) == program
    with pytest.raises(ProgramError, match="2 instructions and no HALT"):
        isa.decode_program(data[:-1])
    with pytest.raises(ProgramError, match="instruction 0: opcode 0 is none"):
        isa.decode_program(bytes(32))


def test_configurations_are_files() -> None:
    for config in ENGINES.values():
        assert EngineConfig.from_json(config.to_json()) == config
    config = EngineConfig(constants=Constants(exec_start=9, bytes_per_cycle=8))
    assert EngineConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("[]", "a table of sizes"),
        ('{"pixel": 4}', r"unknown keys \['pixel'\]"),
        ('{"pixels": 3}', "pixels must be a power of two, got 3"),
        ('{"pixels": true}', "pixels cannot be True"),
        ('{"lanes": 16}', "must equal lanes"),
        ('{"multiplier_bits": 20}', "share 64 bits"),
        ('{"constants": {"exec_start": "4"}}', "exec_start cannot be '4'"),
    ],
)
def test_configurations_that_are_none(text: str, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        EngineConfig.from_json(text)


def test_the_made_files_are_current() -> None:
    """Make them again with ``python -m bitwright.engine``."""
    for path, text in files(ROOT).items():
        assert path.read_text() == text, path
