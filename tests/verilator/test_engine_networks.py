# SPDX-License-Identifier: Apache-2.0
"""Compiled networks on the engine's RTL: outputs == `Graph.run`, all of the memory outside == the
emulator's, begin and end of every instruction == the timing model's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.engine_programs import SMALL
from tests.engine_rtl import check_memory
from tests.integer_strategies import GraphLimits, integer_graphs

from bitwright.base.errors import ModelError
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.emulator import Memory, emulate
from bitwright.engine.timing import simulate
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit_engine import emit_engine
from bitwright.sim import ProgramJob, Simulator, run_program, standard_stalls
from bitwright.sim.engines import check_cycles

LIMITS = GraphLimits.everything(blocks=3, channels=10, image=9)
#: Small ones: strips, chains and what moves outside happen in small networks. The first is the one
#: of the default tier, whose simulator test_engine.py builds, too.
CONFIGS = {
    "2x8x8": SMALL,
    "4x8x8": EngineConfig(pixels=4, feature_words=256, weight_rows=64, parameter_rows=32),
    "16x8x8": EngineConfig(pixels=16, feature_words=256, weight_rows=64, parameter_rows=32),
    "8x16x16": EngineConfig(
        pixels=8,
        lanes=16,
        outputs=16,
        feature_words=256,
        weight_rows=64,
        parameter_rows=64,
        post_lanes=2,
    ),
    "2x8x8, two post lanes": replace(SMALL, post_lanes=2),
    "e256": ENGINES["e256"],
}


@dataclass
class Bench:
    """An engine's simulator, built when it is first needed, and what was compared on it."""

    folder: Path
    built: dict[str, Simulator] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def simulator(self, name: str) -> Simulator:
        if name not in self.built:
            config = CONFIGS[name]
            paired = config.post_lanes == 2  # two pixels a multiplier
            emit_engine(config, self.folder / name, dsps=config.lanes // 2, paired=paired)
            self.built[name] = Simulator.build(self.folder / name)
        return self.built[name]

    def compare(self, name: str, graph: Graph, seed: int) -> None:
        """Two frames, one behind the other, on a memory with stalls; some after a reset in mid-run:
        outputs, memory, and (without a reset, behind which the memory still answers) cycles.
        """
        config = CONFIGS[name]
        try:
            image = compile_graph(graph, config)
        except ModelError:
            self.counts["refused"] += 1
            return
        feeds = random_feeds(graph, 2, np.random.default_rng(seed))
        frames = [{edge: levels[n] for edge, levels in feeds.items()} for n in range(2)]
        before, writes = image.memory(frames[0]), [image.writes(frame) for frame in frames]
        stalls = standard_stalls(seed % 1000 + 1)[seed % 4]
        reset = 40 + 37 * seed % 3000 if seed % 3 == 0 else None
        job = ProgramJob(before.words.tobytes(), writes=writes, pause=seed % 5, reset_at=reset)
        runs = run_program(self.simulator(name), job, stalls)
        timing = simulate(
            image.program, config, stalls.memory, before.words.size, seed=stalls.seed, runs=2,
            pause=seed % 5,
        )  # fmt: skip
        expected = graph.run(feeds)
        for number, run in enumerate(runs):
            assert (run.code, run.error) == (0, 0)
            if number:
                patched(before, writes[number])
            after = Memory(before.words.copy(), before.written.copy())
            emulate(image.program, after, config)
            check_memory(image.program, before, after, run)
            if reset is None:
                check_cycles(image.program, run, timing, number)
            found = image.read(run.memory)
            for edge, levels in expected.items():
                assert np.array_equal(found[edge], levels[number]), edge
            before = Memory(run.memory.reshape(before.words.shape).copy(), after.written)
            self.counts["frames"] += 1
            self.counts["instructions"] += len(image.program)
            self.counts["cycles"] += run.cycles
        self.counts["networks"] += 1
        self.counts["resets"] += reset is not None

    def fail(self, name: str, graph: Graph, seed: int, share: float, words: int) -> None:
        """A run with errors in so many words, a share of the way through the memory, or in an
        output.
        """
        try:
            image = compile_graph(graph, CONFIGS[name])
        except ModelError:
            self.counts["refused"] += 1
            return
        feeds = random_feeds(graph, 1, np.random.default_rng(seed))
        word, frame = image.config.word_bytes, {e: levels[0] for e, levels in feeds.items()}
        places = (int(share * (image.words - 1)), image.outputs[0].word)
        low = word * places[seed % 3 == 0]
        job = ProgramJob(
            image.memory(frame).words.tobytes(), writes=[image.writes(frame)] * 2,
            again=seed % 50 if seed % 2 else None, faults={0: (low, low + words * word)},
        )  # fmt: skip
        stalls = standard_stalls(seed % 1000 + 1)[seed % 4]
        bad, good = run_program(self.simulator(name), job, stalls)
        expected = graph.run(feeds)
        assert (bad.error >> 3, bad.error & 1) == (seed % 2, 0)
        assert good.error & ~8 == 0
        for edge, levels in expected.items():
            assert np.array_equal(image.read(good.memory)[edge], levels[0]), edge
            if not bad.error & 6:  # nothing asked for these words
                assert np.array_equal(image.read(bad.memory)[edge], levels[0]), edge
        for bit, what in enumerate(("opcode", "read", "write", "start")):
            self.counts[what] += bad.error >> bit & 1
        self.counts["networks"] += 1


def patched(memory: Memory, writes: dict[int, bytes]) -> None:
    lanes = memory.words.shape[1]
    for at, data in writes.items():
        memory.put(at // lanes, np.frombuffer(data, np.uint8).reshape(-1, lanes))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("engines"))


def fault_law(bench: Bench, examples: int) -> Counter[str]:
    """A memory that answers with errors, somewhere, in the first of two runs; a second start in it:
    the run ends and says so, the next one is right.
    """
    bench.counts.clear()

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate,),
    )  # fmt: skip
    @given(integer_graphs(LIMITS), st.integers(0, 10**6), st.floats(0, 1), st.integers(1, 200))
    def hold(graph: Graph, seed: int, share: float, words: int) -> None:
        bench.fail("2x8x8", graph, seed, share, words)

    hold()
    return bench.counts


def law(bench: Bench, names: tuple[str, ...], examples: int) -> Counter[str]:
    bench.counts.clear()

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate,),
    )  # fmt: skip
    @given(integer_graphs(LIMITS), st.sampled_from(names), st.integers(0, 10**6))
    def hold(graph: Graph, name: str, seed: int) -> None:
        bench.compare(name, graph, seed)

    hold()
    return bench.counts


def test_compiled_networks_on_the_rtl(bench: Bench) -> None:
    counts = law(bench, ("2x8x8",), 40)
    assert counts["networks"] >= 12 and counts["resets"] >= 2, counts


def test_a_memory_that_answers_with_errors(bench: Bench) -> None:
    counts = fault_law(bench, 40)
    assert min(counts[what] for what in ("read", "write", "start")) >= 2, counts


@pytest.mark.slow
def test_many_memories_that_answer_with_errors(bench: Bench) -> None:
    counts = fault_law(bench, 400)
    assert counts["networks"] >= 120, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_many_compiled_networks_on_the_rtl(bench: Bench, name: str) -> None:
    counts = law(bench, (name,), 300)
    assert counts["networks"] >= 120, counts
