# SPDX-License-Identifier: Apache-2.0
"""What is told of a compiled network: how each layer is done, and every node that is not."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tests.hw_networks import densenet, resnet, skynet

from bitwright.engine.compiler import compile_graph, compile_program
from bitwright.engine.compiler.front import network_of
from bitwright.engine.compiler.mapping import layer_mappings
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.isa import Bits, Exec, Input, Store
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType
from bitwright.lower.placement import refusals

NETWORKS = {
    "densenet": (densenet(layers=2), ENGINES["e256"]),
    "without lanes of 4 bits": (densenet(layers=2), ENGINES["e256-int8"]),
    "strips": (resnet(1, 16, 8), EngineConfig(pixels=2, feature_words=256)),
    "skynet": (
        skynet(80, 160, 4, requant=True),
        EngineConfig(pixels=2, feature_words=1 << 12),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_told_is_what_the_program_does(name: str) -> None:
    """Lanes of each layer as its INPUTs say, maps that lie outside as LOADs and STOREs say, every
    node but what addresses do is some layer's.
    """
    graph, config = NETWORKS[name]
    made = compile_program(graph, config)
    image = made.image
    assert image.to_bytes() == compile_graph(graph, config).to_bytes()
    rows = {row.layer: row for row in layer_mappings(made.plan)}
    assert len(rows) == sum(len(segment.layers) for segment in made.plan.segments)
    done = [node for row in rows.values() for node in row.nodes]
    free = ("flatten", "concat", "top_k")
    assert sorted(done) == sorted(node.name for node in graph if node.op not in free)
    lanes: dict[str, set[int]] = {}
    given = Input()
    for instruction, layer in zip(image.program, image.layers, strict=True):
        if isinstance(instruction, Input):
            given = instruction
        if isinstance(instruction, Exec):
            lanes.setdefault(layer, set()).add(4 if given.bits == Bits.FOUR else 8)
    assert {name: {row.lanes} for name, row in rows.items() if name in lanes} == lanes
    stored = {
        layer
        for instruction, layer in zip(image.program, image.layers, strict=True)
        if isinstance(instruction, Store)
    }
    for row in rows.values():
        assert (row.target == "memory") <= (row.layer in stored), row
        if row.strips > 1:
            assert row.rows < max(graph.types[e].shape[0] for e in graph.types)
        assert row.layer in row.chain


def test_strips_chains_and_lanes_are_told() -> None:
    rows = {name: layer_mappings(compile_program(*each).plan) for name, each in NETWORKS.items()}
    assert {row.lanes for row in rows["densenet"]} == {4, 8}
    assert {row.lanes for row in rows["without lanes of 4 bits"]} == {8}
    assert any(row.target == "memory" and row.strips > 1 for row in rows["strips"])
    chained = [row for row in rows["skynet"] if len(row.chain) > 1]
    assert chained and any(row.target == "chain" for row in chained)
    assert {row.activation for row in rows["skynet"]} >= {"requantization", "none (sums)"}
    assert rows["densenet"][0].activation == "15 thresholds"


def refused() -> Graph:
    """Two activations that are minifloats, between what has a mapping."""
    builder = GraphBuilder("floats", INTEGER)
    kind = parse_format("uint8")
    edge = builder.input("x", TensorType((4, 4, 8), kind, (0.5,), 0, 255))
    for name in ("one", "two"):
        attrs = {
            "shift": 4, "significant": 4, "smallest": 0, "lo": 0, "hi": 8, "format": "e4m3",
            "scale": (1.0,),
        }  # fmt: skip
        params = {"multiplier": np.array([1]), "offset": np.array([0])}
        edge = builder.add("requant_float", (edge,), name=name, attrs=attrs, params=params)
    return builder.finish(edge)


def test_every_node_without_a_mapping_is_named() -> None:
    found = refusals(refused(), partial(network_of, config=ENGINES["e256"]))
    assert list(found) == ["one", "two"]
    assert all("requant_float is not done by the engine" in why for why in found.values())
    assert not refusals(densenet(), partial(network_of, config=ENGINES["e256"]))
