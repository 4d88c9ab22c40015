# SPDX-License-Identifier: Apache-2.0
"""Graphs of strangers whose small text asks for work or memory with the square of its length."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.memory_peak import peak
from tests.pace import within

from bitwright.base.errors import DataError, GraphError, ModelError
from bitwright.formats import parse_format
from bitwright.hw.blocks import divisors
from bitwright.hw.options import RateGoal
from bitwright.hw.search import search_folding
from bitwright.hw.template import template
from bitwright.ir import (
    INTEGER,
    Graph,
    GraphBuilder,
    TensorType,
    dot_interval,
    intervals,
    load_graph,
    parse_graph,
    random_feeds,
    save_graph,
    text,
)
from bitwright.ir.node import Node, array_digest, frozen
from bitwright.lower import optimise
from bitwright.lower.pass_tools import without_edges
from bitwright.lower.passes import fuse_thresholds, sink_pool
from bitwright.lower.passes_joins import flatten_concats

MIB = 1 << 20
POOL = {"kernel": (1, 1), "stride": (1, 1)}


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """None of what follows takes seconds where nothing is wrong."""
    with within(8):
        yield


def started(channels: int = 1, kind: str = "uint4") -> tuple[GraphBuilder, str]:
    builder, levels = GraphBuilder("g", INTEGER), parse_format(kind)
    shape = (1, 1, channels)
    return builder, builder.input("x", TensorType(shape, levels, (1.0,), 0, levels.max_level))


def threshold(builder: GraphBuilder, edge: str, *levels: int, kind: str = "uint4") -> str:
    params = {"thresholds": np.array([levels])}
    return builder.add("threshold", (edge,), attrs={"format": kind}, params=params)


def test_a_concatenation_of_a_hundred_thousand_parts_with_scales() -> None:
    """The scales of all parts were added up tuple by tuple: hours, from a line of 300 kB."""
    scales = ",".join(["0x1.0p+0"] * 512)
    kind = f"uint4[1,1,512] * {scales} in [0,15]"
    for count, said in (
        (2_000, r"first of 512 scales\), the rule of concat gives .*first of 1024000 scales"),
        (200_000, "at most 67108864 elements"),
    ):
        node = f"c = c:concat({', '.join(['x'] * count)}) {{}} <> @ : {kind}"
        with pytest.raises(GraphError, match=said):
            parse_graph(
                f"graph g integer\ninput x : {kind}\n{node}\noutput c\n", {}, {"integer": INTEGER}
            )


def test_concatenations_behind_each_other_are_joined_at_the_end() -> None:
    """Each of 10 000 kept the parts of all before it: 400 MB, and with 100 000 40 GB."""
    builder, x = started()
    edge = builder.add("concat", (x, x))
    for _ in range(300):
        edge = builder.add("concat", (edge, x))
    small = builder.finish(edge)
    (whole,) = flatten_concats(small).nodes
    assert whole.inputs == ("x",) * 302
    nodes = [Node("n0", "concat", ("x", "x"), ("n0",))]
    nodes += [Node(f"n{k}", "concat", (f"n{k - 1}", "x"), (f"n{k}",)) for k in range(1, 10_000)]
    graph = Graph("g", INTEGER, ("x",), (nodes[-1].output,), tuple(nodes), long_types(10_001))
    assert peak(lambda: flatten_concats(graph)) < 40 * MIB


def long_types(count: int) -> dict[str, TensorType]:
    (kind,) = started()[0].types.values()
    made = (TensorType((1, 1, k), kind.format, (1.0,), 0, 15) for k in range(2, count + 1))
    return {"x": kind} | {f"n{k}": one for k, one in enumerate(made)}


def test_a_threshold_passes_thousands_of_pools() -> None:
    """The names of the edges between them grew by five signs a pool: 25 GB with 100 000."""
    builder, edge = started()
    for _ in range(2_000):
        edge = builder.add("max_pool", (edge,), attrs=POOL)
    graph = builder.finish(threshold(builder, edge, 3, 5, kind="uint2"))
    sunk = sink_pool(graph)
    assert sunk.nodes[0].op == "threshold" and sunk.outputs == graph.outputs
    assert max(len(name) for name in sunk.types) < 30
    feeds = random_feeds(graph, 9, np.random.default_rng(0))
    assert np.array_equal(graph.run(feeds)[graph.outputs[0]], sunk.run(feeds)[sunk.outputs[0]])


def test_upsamplings_that_do_nothing_are_not_passed_one_by_one() -> None:
    """Thousands of thresholds passed thousands of them: the square, each with new types."""
    builder, edge = started()
    for _ in range(500):
        edge = builder.add("upsample", (edge,), attrs={"factor": (1, 1)})
        edge = threshold(builder, edge, *range(1, 16))
    graph = builder.finish(edge)
    assert sink_pool(graph) is graph
    assert len(optimise(graph).nodes) < 3


def test_ways_through_removed_nodes_are_followed_once() -> None:
    builder, x = started()
    edge = x
    for _ in range(10_000):
        edge = builder.add("max_pool", (edge,), attrs=POOL)
    graph = builder.finish(builder.add("concat", (edge,) * 40_000))
    removed = {node.output: node.inputs[0] for node in graph.nodes[:-1]}
    for order in (removed, dict(reversed(removed.items()))):  # was 400 million steps
        (node,) = without_edges(graph, order, {}).nodes
        assert {*node.inputs} == {"x"}


def test_thresholds_in_a_row_are_composed_for_all_channels_at_once() -> None:
    builder, edge = started(50_000)
    for _ in range(12):
        edge = threshold(builder, edge, *range(1, 16))
    assert len(fuse_thresholds(builder.finish(edge)).nodes) == 1


def test_nodes_are_found_by_their_names() -> None:
    builder, edge = started()
    for _ in range(6_000):
        edge = builder.add("max_pool", (edge,), attrs=POOL)
    graph = builder.finish(edge)
    assert all(graph.node(node.name) is node for node in graph)
    with pytest.raises(GraphError, match=r"no node named 'y'; the graph has max_pool, .*, \.\.$"):
        graph.node("y")


def test_an_edge_that_thousands_read_is_forked_in_the_time_of_their_number() -> None:
    builder, x = started()
    edges = [builder.add("max_pool", (x,), attrs=POOL) for _ in range(3_000)]
    graph = builder.finish(builder.add("concat", (*edges, *edges)))
    assert sum(node.op == "fork" for node in template(graph)) == 5_999


def test_graphs_have_a_largest_number_of_outputs() -> None:
    builder, x = started()
    edge = builder.add("max_pool", (x,), attrs=POOL)
    assert len(builder.finish(*[edge] * 1024).outputs) == 1024
    with pytest.raises(GraphError, match="1025 outputs; at most 1024 are supported"):
        builder.finish(*[edge] * 1025)


def test_divisors_are_found_in_pairs() -> None:
    for number in range(1, 200):
        assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)
    # Took 3 seconds for each block.
    assert [len(divisors((1 << 26) // (1 << k))) for k in range(6)] == [*range(27, 21, -1)]
    assert all(divisors((1 << 26) - k)[-1] == (1 << 26) - k for k in range(6))


@pytest.mark.parametrize("way", ["alone", "first", "last"])
def test_an_input_that_is_only_reshaped_has_no_folding(way: str) -> None:
    """Was an AssertionError."""
    builder, x = started(4)
    edge = builder.add("flatten", (x,))
    edge = builder.add("flatten", (edge,))
    if way == "alone":
        with pytest.raises(ModelError, match="x: it becomes an output as it is"):
            search_folding(builder.finish(edge), RateGoal(1, 64), family="ecp5")
        return
    other = builder.add("max_pool", (x,), attrs={"kernel": (1, 1), "stride": (1, 1)})
    outputs = (edge, other) if way == "first" else (other, edge)
    found = search_folding(builder.finish(*outputs), RateGoal(1, 64), family="ecp5")
    assert found.nodes[other].pe == 1


def saved(words: str, arrays: list[np.ndarray], path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.txt", words)
        for array in arrays:
            body = io.BytesIO()
            np.save(body, array)
            archive.writestr(f"{array_digest(array)}.npy", body.getvalue())
    return path


def test_many_nodes_share_their_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node had a copy of its own, in 64 bits: 50 GB from a file of 64 kB."""
    weight = np.zeros((16, 1 << 16), np.int8)
    lines = ["graph g integer", "input x : uint4[65536] * 0x1.0p+0 in [0,15]"]
    for name in "abcdefgh":
        attrs = '{"weight_format": "int4", "weight_scale": [1.0]}'
        lines.append(
            f"{name} = {name}:dense(x) {attrs} <weight={array_digest(weight)}> @ : "
            "int[16] * 0x1.0p+0 in [0,0]"
        )
    path = saved("\n".join([*lines, "output a b c d e f g h", ""]), [weight], tmp_path / "g.bwg")
    graph = load_graph(path, {"integer": INTEGER})
    assert len({id(node.params["weight"]) for node in graph}) == 1
    assert peak(lambda: load_graph(path, {"integer": INTEGER})) < 48 * MIB  # the array has 8
    monkeypatch.setattr(text, "_MOST_NUMBERS", 1 << 22)
    with pytest.raises(GraphError, match="its nodes read 8388608 numbers of parameters; at most"):
        load_graph(path, {"integer": INTEGER})
    monkeypatch.setattr(text, "_FREE", 1 << 20)
    monkeypatch.setattr(text, "_EXPANSION", 1)
    with pytest.raises(DataError, match=r"g\.bwg: its parameters take too much memory"):
        load_graph(path, {"integer": INTEGER})


def test_what_is_frozen_is_no_window_on_what_may_change() -> None:
    values = np.arange(4)
    copy = frozen(values)
    values[0] = 9
    assert copy[0] == 0 and frozen(copy) is copy
    view = values[:2]
    view.setflags(write=False)
    assert frozen(view) is not view


@pytest.mark.parametrize("ends", [(0, 15), (np.arange(3) - 4, np.arange(3) + 2)])
def test_intervals_in_strips_are_the_same(ends: object, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.integers(-8, 8, (7, 2, 3)), rng.integers(-99, 99, 7)
    lo, hi = ends  # type: ignore[misc]
    whole = dot_interval(weight, lo, hi, bias)
    monkeypatch.setattr(intervals, "_STRIP", 13)
    assert dot_interval(weight, lo, hi, bias) == whole
    assert dot_interval(weight, lo, hi) == dot_interval(weight, lo, hi, 0 * bias)
    with pytest.raises(GraphError, match="sums of 14 products may need more than 62 bits"):
        dot_interval(np.full((1, 14), 1 << 40), 0, 1 << 40)


@pytest.mark.parametrize("op", ["threshold", "lookup", "requant"])
def test_tables_of_one_row_are_counted_for_every_channel(op: str, tmp_path: Path) -> None:
    """256 levels of each of 33 million channels: 64 GB, from a file of 2 kB."""
    builder, edge = started(1 << 20, "uint8")
    attrs: dict[str, object] = {"format": "uint8"}
    if op == "threshold":
        params = {"thresholds": np.arange(1, 256)[np.newaxis]}
    elif op == "lookup":
        params = {"table": np.arange(256)[np.newaxis]}
    else:
        params = {"multiplier": np.ones(1, np.int64), "offset": np.zeros(1, np.int64)}
        attrs |= {"shift": 0, "lo": 0, "hi": 255}
    edge = builder.add(op, (edge,), attrs=attrs, params=params)  # type: ignore[arg-type]
    save_graph(builder.finish(edge), tmp_path / "g.bwg")
    with pytest.raises(
        GraphError, match=r"one frame takes 6\.0 GiB of memory; 1\.0 GiB are allowed"
    ):
        load_graph(tmp_path / "g.bwg", {"integer": INTEGER})
