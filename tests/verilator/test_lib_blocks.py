# SPDX-License-Identifier: Apache-2.0
"""Every block class against its module: instance, memories, integers, and each beat's cycle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bitwright.formats import parse_format
from bitwright.hw import HARDWARE, Block, Port, block_of
from bitwright.ir import Attr, Graph, GraphBuilder, IntArray, TensorType
from bitwright.sim import Simulator, StreamSpec, compare, random_stalls, write_module_bench

FRAMES = 9
Rng = np.random.Generator


def _tensor(shape: tuple[int, ...], kind: str, rng: Rng) -> TensorType:
    form = parse_format(kind)
    scale = (float(rng.choice([0.5, 0.25])),)
    return TensorType(shape, form, scale, form.min_level, form.max_level)


def _pick(rng: Rng, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _one(
    op: str,
    tensors: tuple[TensorType, ...],
    attrs: dict[str, Attr],
    params: dict[str, IntArray] | None = None,
) -> Graph:
    builder = GraphBuilder("one", HARDWARE)
    edges = tuple(builder.input(f"x{i}", kind) for i, kind in enumerate(tensors))
    return builder.finish(builder.add(op, edges, attrs=attrs, params=params))


def _depthwise(rng: Rng) -> Graph:
    pe, fold, window = _pick(rng, 1, 3), _pick(rng, 1, 3), _pick(rng, 1, 4)
    kind = str(rng.choice(["int3", "uint4", "bipolar"]))
    weight_kind = str(rng.choice(["int4", "int7", "bipolar"]))
    levels = parse_format(weight_kind)
    weight = rng.integers(levels.min_level, levels.max_level + 1, (pe * fold, window))
    weight = np.where(weight == 0, 1, weight)
    attrs: dict[str, Attr] = {
        "weight_format": weight_kind, "pe": pe, "res_type": str(rng.choice(["lut", "dsp"])),
        "ram_style": str(rng.choice(["block", "distributed"])),
    }  # fmt: skip
    params = {"weight": weight}
    if rng.integers(0, 2):
        params["bias"] = rng.integers(-20, 20, pe * fold)
    shape = (_pick(rng, 1, 2), _pick(rng, 1, 2), pe * fold * window)
    return _one("depthwise", (_tensor(shape, kind, rng),), attrs, params)


MAKERS: dict[str, Callable[[Rng], Graph]] = {"depthwise": _depthwise}


def _spec(port: Port) -> StreamSpec:
    kind = port.type
    return StreamSpec(
        port.lanes, kind.wire_bits, port.beats, port.width, kind.is_signed, kind.is_bipolar
    )


def _bench(block: Block, folder: Path) -> Simulator:
    instance = block.instance()
    files = {name: f"{name}.mem" for name in instance.memories}
    memories = {files[name]: memory.text for name, memory in instance.memories.items()}
    inputs = {port.name: _spec(port) for port in block.inputs}
    outputs = {port.name: _spec(port) for port in block.outputs}
    parameters = {**instance.parameters, **files}
    write_module_bench(folder, instance.module, parameters, inputs, outputs, memories)
    return Simulator.build(folder)


def _frames(kind: TensorType, rng: Rng) -> IntArray:
    levels = rng.integers(kind.lo, kind.hi + 1, (FRAMES, *kind.shape))
    return np.where(levels == 0, 1, levels) if kind.is_bipolar else levels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("op", MAKERS)
def test_block_and_module_agree(op: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    graph = MAKERS[op](rng)
    block = block_of(graph, graph.nodes[0])
    simulator = _bench(block, tmp_path)
    feeds = {edge: _frames(graph.types[edge], rng) for edge in graph.inputs}
    (expected,) = graph.run(feeds).values()
    ports = [port.name for port in block.inputs]
    beats = simulator.pack(dict(zip(ports, feeds.values(), strict=True)))
    free = simulator.run(beats, FRAMES)
    stalled = simulator.run(beats, FRAMES, random_stalls(0.5, seed))
    for result in (free, stalled):
        flat = {"out": expected.reshape(FRAMES, -1)}
        assert compare(flat, {k: v.reshape(FRAMES, -1) for k, v in result.levels.items()}) is None

    firing = block.firing()
    start = np.arange(FRAMES)[:, None] * block.interval
    for name, consume in zip(ports, firing.consumes, strict=True):
        np.testing.assert_array_equal(free.input_cycles[name], (start + consume).ravel())
    made = (start + firing.produce + firing.latency).ravel()
    np.testing.assert_array_equal(free.output_cycles["out"], made)
