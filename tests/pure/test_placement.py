# SPDX-License-Identifier: Apache-2.0
"""A network of which the accelerator takes only a part: the reasons, and the same integers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hw_networks import rounded_network
from tests.strategies import GraphLimits, integer_graphs

from bitwright.base.errors import (
    DataError,
    GraphError,
    ModelError,
    NoHardware,
    RunError,
    TargetError,
)
from bitwright.cli import entry
from bitwright.engine.compiler import compile_graph
from bitwright.engine.compiler.front import network_of
from bitwright.engine.config import ENGINES
from bitwright.formats import parse_format
from bitwright.hw.template import template
from bitwright.ir import (
    INTEGER,
    Graph,
    GraphBuilder,
    TensorType,
    load_graph,
    random_feeds,
    save_graph,
)
from bitwright.ir.footprint import held_bytes
from bitwright.lower import placement
from bitwright.lower.placement import ACCELERATOR, HOST, macs_of, place_graph
from bitwright.lower.split import Run
from bitwright.pipeline.designs import split
from bitwright.pipeline.designs.folder import DesignSettings, open_design
from bitwright.pipeline.designs.split import open_split, placement_for, write_split
from bitwright.pipeline.recipe_hardware import HardwareSection


def network_with(steps: tuple[int, ...] = (1, 3, 1)) -> Graph:
    """Convolutions, each with an activation; levels of one with a step of 3 lie 3 apart, for which
    no block is made.
    """
    builder, random = GraphBuilder("net", INTEGER), np.random.default_rng(5)
    edge = builder.input("x", TensorType((6, 6, 3), parse_format("uint4"), (1.0,), 0, 15))
    columns = 3
    for number, step in enumerate(steps):
        weight = random.integers(-7, 8, (4, 3, 3, columns))
        edge = builder.add(
            "conv", (edge,), name=f"conv{number}", params={"weight": weight},
            attrs={"padding": (1, 1, 1, 1), "weight_format": "int4"},
        )  # fmt: skip
        edge = builder.add(
            "threshold", (edge,), name=f"act{number}",
            params={"thresholds": np.sort(random.integers(-90, 90, (4, 5)), axis=1)},
            attrs={"step": step, "format": "uint4"},
        )  # fmt: skip
        columns = 4
    flat = builder.add("flatten", (edge,), name="flat")
    weight = random.integers(-7, 8, (5, 144))
    scores = builder.add("dense", (flat,), name="scores", params={"weight": weight},
                         attrs={"weight_format": "int4"})  # fmt: skip
    return builder.finish(scores)


def require_same(graph: Graph, found: dict[str, np.ndarray], feeds: dict[str, np.ndarray]) -> None:
    expected = graph.run(feeds)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[edge], expected[edge]) for edge in expected)


def test_what_has_no_hardware_runs_on_the_host() -> None:
    graph = network_with()
    with pytest.raises(NoHardware, match="step 3") as refused:
        template(graph)
    assert refused.value.node == "act1"
    found = place_graph(graph, template)
    assert [part.place for part in found.parts] == [ACCELERATOR, HOST, ACCELERATOR]
    assert found.reasons == {"act1": refused.value.message}
    feeds = random_feeds(graph, 4, np.random.default_rng(0))
    require_same(graph, found.runner().run(feeds), feeds)
    seen: list[Graph] = []

    def built(part: Graph) -> Run:
        seen.append(part)
        return template(part).run

    require_same(graph, found.runner(built).run(feeds), feeds)
    assert [sorted(node.name for node in part) for part in seen] == [
        ["act0", "conv0", "conv1"], ["act2", "conv2", "flat", "scores"],
    ]  # fmt: skip


def test_one_part_alone_is_the_one_with_the_most_products() -> None:
    graph = network_with((1, 3, 1, 1))
    found = place_graph(graph, template, most=1)
    (part,) = found.accelerated
    assert {node.name for node in part.graph} >= {"conv2", "conv3", "scores"}
    assert "one of 2 parts" in found.reasons["conv0"]
    assert macs_of(part.graph) == 2 * 36 * 4 * 36 + 5 * 144
    feeds = random_feeds(graph, 2, np.random.default_rng(0))
    require_same(graph, found.runner().run(feeds), feeds)


def test_parts_that_multiply_nothing_stay_on_the_host() -> None:
    def only_pools(graph: Graph) -> None:
        for node in graph:
            if node.op in ("conv", "dense"):
                raise NoHardware("no multipliers", node=node.name)

    found = place_graph(network_with(), only_pools)
    assert found.accelerated == ()
    assert "nothing is multiplied" in found.reasons["act0"]


def test_sums_that_round_are_products_too() -> None:
    graph = rounded_network(np.random.default_rng(3), layers=1)
    found = place_graph(graph, template)
    assert found.reasons == {} and [part.place for part in found.parts] == [ACCELERATOR]
    (node,) = graph
    assert macs_of(graph) == graph.types[node.output].size * node.params["weight"][0].size


def test_a_graph_of_refused_operations_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(graph: Graph) -> None:
        raise NoHardware("not this one", node=graph.nodes[0].name)

    graph = network_with((1,) * 6)
    assert place_graph(graph, never).accelerated == ()
    monkeypatch.setattr(placement, "_MOST_ASKED", 30)
    with pytest.raises(ModelError, match="operations are refused"):
        place_graph(graph, never)


@given(integer_graphs(GraphLimits()), st.sets(st.sampled_from(
    ["conv", "dense", "threshold", "requant", "max_pool", "add", "concat", "flatten", "lookup"]
)), st.sampled_from([None, 1, 2]))  # fmt: skip
def test_whatever_is_refused_the_integers_stay(
    graph: Graph, refused: set[str], most: int | None
) -> None:
    def accept(part: Graph) -> None:
        for node in part:
            if node.op in refused:
                raise NoHardware(f"no {node.op}", node=node.name)

    found = place_graph(graph, accept, most)
    assert most is None or len(found.accelerated) <= most
    for part in found.parts:
        on_host = {node.name for node in part.graph} <= set(found.reasons)
        assert on_host == (part.place == HOST)
        if part.place == ACCELERATOR:
            accept(part.graph)
    feeds = random_feeds(graph, 2, np.random.default_rng(0))
    require_same(graph, found.runner().run(feeds), feeds)


@given(integer_graphs(GraphLimits()))
def test_drawn_networks_on_the_engine(graph: Graph) -> None:
    """What it takes can be compiled; what it refuses is named."""
    config = ENGINES["e128"]
    try:
        found = place_graph(graph, lambda part: network_of(part, config))
    except ModelError as error:
        assert not isinstance(error, NoHardware)  # an input of too many bits is no node's fault
        return
    for part in found.accelerated:
        compile_graph(part.graph, config)
    feeds = random_feeds(graph, 2, np.random.default_rng(0))
    require_same(graph, found.runner().run(feeds), feeds)


def test_the_verb_writes_design_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = network_with()
    save_graph(graph, tmp_path / "net.bwg")
    out = tmp_path / "parts"
    call = ["split", str(tmp_path / "net.bwg"), "--out", str(out), "--most", "2", "--json"]
    assert entry.run([*call, "--target", "ecp5-25k"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [part["place"] for part in told["parts"]] == [ACCELERATOR, HOST, ACCELERATOR]
    assert "step 3" in told["reasons"]["act1"]
    design = open_design(out / "part-2-accelerator")
    assert design.settings.hardware.target == "ecp5-25k"
    assert design.graph.inputs == ("act1",)
    feeds = random_feeds(graph, 3, np.random.default_rng(1))
    require_same(graph, open_split(out).runner().run(feeds), feeds)
    changed = out / "part-1-host" / "graph.bwg"
    part = load_graph(changed, {"integer": INTEGER})
    (node,) = (n for n in part if "thresholds" in n.params)
    other = replace(node, params={**node.params, "thresholds": node.params["thresholds"] + 40})
    builder = GraphBuilder(part.name, INTEGER)
    for edge in part.inputs:
        builder.input(edge, part.types[edge])
    for each in part:
        builder.append(other if each is node else each)
    save_graph(builder.finish(*part.outputs), changed)
    with pytest.raises(DataError, match="its parts are not those of the graph beside it"):
        open_split(out)  # of the same names, with other numbers
    save_graph(part, changed)
    said = json.loads((out / "parts.json").read_text())
    (out / "parts.json").write_text(json.dumps(said | {"parts": []}))
    with pytest.raises(DataError, match="its parts are not those of the graph beside it"):
        open_split(out)
    (out / "parts.json").write_text(json.dumps(said))
    elsewhere = (out / "parts.json").read_text().replace('"host"', '"host/../part-1-host"')
    for wrong in ("{}", elsewhere):
        (out / "parts.json").write_text(wrong)
        with pytest.raises(DataError, match="no description of parts"):
            open_split(out)


def test_a_part_replaces_nothing_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_graph(network_with(), tmp_path / "net.bwg")
    mine = tmp_path / "out" / "part-2-accelerator"
    mine.mkdir(parents=True)
    (mine / "levels.npz").write_text("mine")
    call = ["split", str(tmp_path / "net.bwg"), "--out", str(tmp_path / "out"), "--most", "2"]
    assert entry.run(call) == 8
    assert "exists already: holds levels.npz" in capsys.readouterr().err
    assert [path.name for path in mine.iterdir()] == ["levels.npz"]
    assert entry.run([*call, "--force"]) == 0
    assert entry.run(call) == 8 and entry.run([*call, "--force"]) == 0


def test_levels_between_the_parts_are_those_of_the_data(tmp_path: Path) -> None:
    graph = network_with()
    feeds = random_feeds(graph, 3, np.random.default_rng(2))
    found = placement_for(graph, HardwareSection(), most=2)
    write_split(found, DesignSettings(), tmp_path, feeds)
    design = open_design(tmp_path / "part-2-accelerator")
    assert design.levels is not None
    between = graph.run(feeds, edges=True)["act1"]
    assert np.array_equal(design.levels["act1"], between)


def test_levels_between_the_parts_have_their_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`split` of a folder whose 156 kB of levels are 20 large frames took 13.6 GB."""
    graph = network_with()
    feeds = random_feeds(graph, 7, np.random.default_rng(2))
    each = held_bytes(graph, edges=True)
    monkeypatch.setattr(split, "AT_A_TIME", 2 * each)
    found = placement_for(graph, HardwareSection(), most=2)
    write_split(found, DesignSettings(), tmp_path / "out", feeds, stranger="net")
    design = open_design(tmp_path / "out" / "part-2-accelerator")
    assert design.levels is not None
    between = graph.run({"x": feeds["x"][:2]}, edges=True)["act1"]
    assert np.array_equal(design.levels["act1"], between)
    monkeypatch.setattr(split, "room_for", lambda chosen: each - 1)
    with pytest.raises(GraphError, match="one frame takes"):
        write_split(found, DesignSettings(), tmp_path / "no", feeds, stranger="net")
    write_split(found, DesignSettings(), tmp_path / "own", feeds)


def test_a_part_is_written_behind_no_link(tmp_path: Path) -> None:
    """`split --out F` of a stranger's folder wrote and dropped files where a part led."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "levels.npz").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-2-accelerator").symlink_to(elsewhere)
    found = placement_for(network_with(), HardwareSection(), most=2)
    with pytest.raises(RunError, match="symbolic link"):
        write_split(found, DesignSettings(), tmp_path / "out")
    assert [path.name for path in elsewhere.iterdir()] == ["levels.npz"]


def test_nothing_for_the_accelerator_is_an_error() -> None:
    graph = network_with((3,))
    with pytest.raises(TargetError, match="nothing of this network"):
        placement_for(activation_of(graph), HardwareSection())
    builder = GraphBuilder("wire", INTEGER)
    wire = builder.finish(builder.input("x", graph.types[graph.only_input]))
    with pytest.raises(TargetError, match="it does nothing"):
        placement_for(wire, HardwareSection())


def activation_of(graph: Graph) -> Graph:
    """A graph of its first activation alone."""
    builder = GraphBuilder("act", INTEGER)
    node = graph.node("act0")
    builder.input(node.inputs[0], graph.types[node.inputs[0]])
    builder.append(node)
    return builder.finish(node.output)
