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
        "simd": int(rng.choice([1, window])),
    }  # fmt: skip
    params = {"weight": weight}
    if rng.integers(0, 2):
        params["bias"] = rng.integers(-20, 20, pe * fold)
    shape = (_pick(rng, 1, 2), _pick(rng, 1, 2), pe * fold * window)
    return _one("depthwise", (_tensor(shape, kind, rng),), attrs, params)


def _kind(rng: Rng) -> str:
    return str(rng.choice(["int3", "uint4", "bipolar", "int6"]))


def _add(rng: Rng) -> Graph:
    pe = _pick(rng, 1, 3)
    shape = (_pick(rng, 1, 3), 2, pe * _pick(rng, 1, 3))
    factors = tuple(int(f) for f in rng.choice([-9, -2, 1, 3, 7, 100], 2))
    tensors = _tensor(shape, _kind(rng), rng), _tensor(shape, _kind(rng), rng)
    return _one("add", tensors, {"pe": pe, "multipliers": factors})


def _concat(rng: Rng) -> Graph:
    pe = _pick(rng, 1, 3)
    shape = _pick(rng, 1, 3), 2
    tensors = tuple(_tensor((*shape, pe * _pick(rng, 1, 3)), _kind(rng), rng) for _ in range(2))
    return _one("concat", tensors, {"pe": pe})


def _pool(op: str) -> Callable[[Rng], Graph]:
    def make(rng: Rng) -> Graph:
        pe, window = _pick(rng, 1, 3), _pick(rng, 0, 4)
        channels = pe * _pick(rng, 1, 3) * max(1, window)
        shape = (_pick(rng, 1, 3), _pick(rng, 1, 3), channels)
        attrs: dict[str, Attr] = {"pe": pe, "window": window}
        return _one(op, (_tensor(shape, _kind(rng), rng),), attrs)

    return make


def _upsample(rng: Rng) -> Graph:
    pe = _pick(rng, 1, 3)
    shape = (_pick(rng, 1, 3), _pick(rng, 1, 3), pe * _pick(rng, 1, 3))
    factor = (_pick(rng, 1, 3), _pick(rng, 1, 3))
    return _one("upsample", (_tensor(shape, _kind(rng), rng),), {"pe": pe, "factor": factor})


def _lookup(rng: Rng) -> Graph:
    pe = _pick(rng, 1, 3)
    shape = (_pick(rng, 1, 3), 2, pe * _pick(rng, 1, 3))
    kind = _tensor(shape, _kind(rng), rng)
    if rng.integers(0, 2) and not kind.is_bipolar:
        kind = TensorType(shape, None, kind.scale, kind.lo + 1, kind.hi)
    out = parse_format(_kind(rng))
    rows = int(rng.choice([1, shape[2]]))
    table = rng.integers(out.min_level, out.max_level + 1, (rows, kind.hi - kind.lo + 1))
    table = np.where(table == 0, out.max_level, table)
    attrs: dict[str, Attr] = {
        "pe": pe, "format": out.name, "ram_style": str(rng.choice(["block", "distributed"])),
    }  # fmt: skip
    return _one("lookup", (kind,), attrs, {"table": table})


def _top_k(rng: Rng) -> Graph:
    k = _pick(rng, 1, 4)
    pe = 1 if k > 1 else _pick(rng, 1, 3)
    classes = pe * _pick(rng, k, 7)
    return _one("top_k", (_tensor((classes,), _kind(rng), rng),), {"pe": pe, "k": k})


MAKERS: dict[str, Callable[[Rng], Graph]] = {
    "depthwise": _depthwise,
    "add": _add,
    "concat": _concat,
    "pool_sum": _pool("pool_sum"),
    "pool_max": _pool("pool_max"),
    "upsample": _upsample,
    "lookup": _lookup,
    "top_k": _top_k,
}


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


@pytest.mark.parametrize("seed", range(2))
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
