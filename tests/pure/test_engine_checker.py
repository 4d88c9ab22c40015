# SPDX-License-Identifier: Apache-2.0
"""The checker refuses what may go wrong: any token removed, and programs built to be wrong."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integer_strategies import GraphLimits, integer_graphs

from bitwright.base.errors import ModelError, ProgramError
from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import EngineConfig
from bitwright.engine.emulator import Memory, expand, step
from bitwright.engine.execute import Machine
from bitwright.engine.image import EngineImage
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
)
from bitwright.ir import Graph, random_feeds

CONFIG = EngineConfig(pixels=4, feature_words=256, weight_rows=64, parameter_rows=32)
UNITS = (Unit.LOAD, Unit.EXECUTE, Unit.STORE)


def run_in_some_order(
    program: Sequence[Instruction], memory: Memory, config: EngineConfig, order: Sequence[Unit]
) -> bool:
    """Execute as units might: always the first unit of ``order`` that has all its tokens (then the
    order turns by one if it is not a fixed preference). False if none has.
    """
    queues: dict[Unit, deque[tuple[int, Instruction, tuple[int, ...]]]] = {
        u: deque() for u in UNITS
    }
    for item in expand(program):
        queues[item[1].unit].append(item)
    tokens: Counter[tuple[int, int]] = Counter()
    machine = Machine(config)
    while any(queues.values()):
        for unit in order:
            if not queues[unit]:
                continue
            number, instruction, bases = queues[unit][0]
            needs = [(u, unit) for u in UNITS if u != unit and instruction.wait >> u & 1]
            if all(tokens[pair] for pair in needs):
                break
        else:
            return False
        tokens.subtract(needs)
        queues[unit].popleft()
        step(machine, memory, instruction, bases, f"instruction {number}")
        tokens.update((unit, u) for u in UNITS if instruction.signal >> u & 1)
    return True


def without_token(image: EngineImage, number: int, giver: Unit) -> list[Instruction]:
    """The program in which instruction ``number`` does not wait for ``giver``, nor that one gives
    the token that it took.
    """
    program = list(image.program)
    taker = program[number].unit
    rank = sum(i.unit == taker and i.wait >> giver & 1 for i in program[:number])
    program[number] = replace(program[number], wait=program[number].wait & ~(1 << giver))
    if giver != taker:
        givers = [n for n, i in enumerate(program) if i.unit == giver and i.signal >> taker & 1]
        at = givers[rank]
        program[at] = replace(program[at], signal=program[at].signal & ~(1 << taker))
    return program


def mutate(graph: Graph, counts: Counter[str]) -> None:
    try:
        image = compile_graph(graph, CONFIG)
    except ModelError:
        return
    check_program(image.program, CONFIG, image.words)
    feeds = random_feeds(graph, 1, np.random.default_rng(0))
    expected = {edge: levels[0] for edge, levels in graph.run(feeds).items()}
    one = {edge: levels[0] for edge, levels in feeds.items()}
    for number, instruction in enumerate(image.program):
        for giver in UNITS:
            if not instruction.wait >> giver & 1:
                continue
            program = without_token(image, number, giver)
            try:
                check_program(program, CONFIG, image.words)
            except ProgramError:
                counts["refused"] += 1
                continue
            counts["accepted"] += 1
            for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2), (0, 2, 1)):
                memory = image.memory(one)
                assert run_in_some_order(program, memory, CONFIG, [Unit(u) for u in order])
                got = image.results(memory)
                assert all(np.array_equal(expected[edge], got[edge]) for edge in expected)


def mutations(examples: int) -> Counter[str]:
    counts: Counter[str] = Counter()

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(integer_graphs(GraphLimits.everything(blocks=2, channels=9, image=8)))
    def hold(graph: Graph) -> None:
        mutate(graph, counts)

    hold()
    return counts


def test_no_token_can_be_removed() -> None:
    counts = mutations(25)
    assert counts["refused"] >= 150 and counts["refused"] >= 5 * counts["accepted"], counts


@pytest.mark.slow
def test_no_token_of_10_000_can_be_removed() -> None:
    counts = mutations(1400)
    assert counts.total() >= 10_000 and counts["refused"] >= 5 * counts["accepted"], counts


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    integer_graphs(GraphLimits.everything(blocks=2, channels=9, image=8)),
    st.permutations(UNITS),
)
def test_units_in_any_order_give_the_same(graph: Graph, order: list[Unit]) -> None:
    try:
        image = compile_graph(graph, CONFIG)
    except ModelError:
        return
    feeds = random_feeds(graph, 1, np.random.default_rng(0))
    expected = graph.run(feeds)
    memory = image.memory({edge: levels[0] for edge, levels in feeds.items()})
    assert run_in_some_order(image.program, memory, CONFIG, order)
    got = image.results(memory)
    assert all(np.array_equal(expected[edge][0], got[edge]) for edge in expected)


def _layer(**wait: int) -> list[Instruction]:
    """Two planes loaded, one group computed of one after the other, stored."""
    return [
        Load(buffer=Buffer.WEIGHTS, memory=0, x=8),
        Load(buffer=Buffer.PARAMETERS, memory=8, x=8),
        Load(memory=16, x=4, signal=2),
        Input(pixel=1, width=4, patch=2),
        Output(high=255),
        Exec(wait=1, out=8, last_x=4),
        Exec(features=8, out=16, last_x=4, wait=wait.get("again", 2), signal=4),
        Store(wait=wait.get("store", 2), memory=32, x=4, address=16),
        Halt(),
    ]


def test_programs_that_are_safe_or_not() -> None:
    check_program(_layer(), CONFIG, 64)
    with pytest.raises(ProgramError, match="instruction 6: nothing orders it behind instruction 5"):
        check_program(_layer(again=0), CONFIG, 64)
    with pytest.raises(ProgramError, match="instruction 7: nothing orders it behind instruction 6"):
        check_program(_layer(store=0), CONFIG, 64)
    early = _layer()
    early[0] = replace(early[0], wait=2)
    with pytest.raises(ProgramError, match="waits for a token of EXECUTE that nothing"):
        check_program(early, CONFIG, 64)
    with pytest.raises(ProgramError, match="leave the memory of 32 words"):
        check_program(_layer(), CONFIG, 32)
    with pytest.raises(ProgramError, match="no HALT"):
        check_program(_layer()[:-1], CONFIG, 64)


def test_counters_cannot_overflow() -> None:
    loads = [Load(memory=0, x=1, address=n, signal=2) for n in range(256)]
    tail = [Input(pixel=1, width=4, patch=2), Output(high=255), Halt()]
    check_program([*loads[:255], *tail], CONFIG, 64)
    with pytest.raises(ProgramError, match="256 tokens of LOAD for EXECUTE"):
        check_program([*loads, *tail], CONFIG, 64)
