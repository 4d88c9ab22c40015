# SPDX-License-Identifier: Apache-2.0
"""A network for the DPU: what is fused, what the processor gets and why, and the same integers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import GraphLimits, integer_graphs

from bitwright.base.errors import GraphError, RunError, TargetError
from bitwright.cli import entry as cli
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, load_graph, save_graph
from bitwright.ir.graph import random_feeds
from bitwright.lower.split import split_graph
from bitwright.papers.dpu.architecture import load_architecture
from bitwright.papers.dpu.calibration import calibrated
from bitwright.papers.dpu.compiler import CPU, ENGINE, Compiled, compile_graph
from bitwright.papers.dpu.cycles import latency_ms, works_of
from bitwright.papers.dpu.resources import find_board
from bitwright.papers.dpu.search import full_architecture, search
from bitwright.papers.dpu.tables import draw, nodes_table, summary
from bitwright.report.svg import standalone

FULL = full_architecture()


class Net:
    """A network in the engine's integers, layer by layer."""

    def __init__(self, shape: tuple[int, ...] = (8, 8, 4), kind: str = "int8") -> None:
        self.builder = GraphBuilder("net", INTEGER)
        self.rng = np.random.default_rng(0)
        number = parse_format(kind)
        self.edge = self.builder.input(
            "x", TensorType(shape, number, (0.5,), number.min_level, number.max_level)
        )

    def add(self, op: str, inputs: tuple[str, ...] = (), **attrs: object) -> Net:
        params = attrs.pop("params", {})
        name = self.builder.unique(op)
        self.edge = self.builder.add(
            op,
            inputs or (self.edge,),
            name=name,
            attrs=attrs,
            params=params,  # type: ignore[arg-type]
        )
        return self

    def conv(
        self, rows: int, kernel: tuple[int, int] = (3, 3), groups: int = 1, stride: int = 1
    ) -> Net:
        columns = self.builder.types[self.edge].channels // groups
        weight = self.rng.integers(-128, 128, (rows, *kernel, columns))
        pads = (kernel[0] // 2, kernel[1] // 2) * 2
        return self.add(
            "conv", stride=(stride, stride), padding=pads, dilation=(1, 1), groups=groups,
            weight_format="int8", weight_scale=(0.5,), params={"weight": weight},
        )  # fmt: skip

    def requant(self, multiplier: object = 1, offset: object = 0, **attrs: object) -> Net:
        given = {"shift": 9, "rounding": "half_up", "lo": 0, "hi": 127, "format": "uint7"} | attrs
        rows = [np.atleast_1d(np.asarray(v, np.int64)) for v in (multiplier, offset)]
        return self.add(
            "requant", scale=(0.5,), params=dict(zip(("multiplier", "offset"), rows, strict=True)),
            **given,
        )  # fmt: skip

    def finish(self) -> Graph:
        return self.builder.finish(self.edge)


def same(compiled: Compiled, frames: int = 3) -> bool:
    """Whether the parts together give the integers of the whole."""
    feeds = random_feeds(compiled.graph, frames, np.random.default_rng(1))
    wanted, got = compiled.graph.run(feeds), compiled.runner().run(feeds)
    return all(np.array_equal(wanted[edge], got[edge]) for edge in wanted)


def only_reason(net: Net, arch: str | None = None) -> str:
    """Why the one fused node that the processor gets is there."""
    compiled = compile_graph(net.finish(), FULL if arch is None else load_architecture(arch))
    assert same(compiled)
    (item,) = compiled.outside
    return "; ".join(item.reasons)


def test_a_product_takes_its_requantization_along() -> None:
    compiled = compile_graph(
        Net().conv(8).requant().conv(4).requant(lo=-128, format="int8").finish(), FULL
    )
    assert [len(n.node.nodes) for n in compiled.nodes] == [2, 2]
    assert [n.node.activation for n in compiled.nodes] == ["relu", ""]
    assert compiled.count(ENGINE) == 1 and not compiled.outside
    assert same(compiled)


REASONS: list[tuple[Callable[[], Net], str | None, str]] = [
    (lambda: Net().conv(8).requant().requant(shift=0), None, "follows no product"),
    (lambda: Net().conv(8).requant().conv(8, (1, 1), 8).requant(), None, "follows no product"),
    (lambda: Net().conv(8).requant(multiplier=3), None, "no power of two"),
    (lambda: Net().conv(2).requant(multiplier=[1, 2]), None, "common to all channels"),
    (lambda: Net().conv(2).requant(offset=[1000, 1001]), None, "biases are no int8"),
    (lambda: Net().conv(8).requant(rounding="half_even"), None, "rounds half_even"),
    (lambda: Net(kind="uint8").conv(8).requant(), None, "0 .. 255 are no int8"),
    (lambda: Net().conv(4, groups=4).requant(), "b4096", "depthwise convolution, an option"),
    (lambda: Net().conv(4, groups=2).requant(), None, "in 2 groups"),
    (lambda: Net((40, 40, 1)).conv(1, (17, 17)).requant(), None, "larger than 16 x 16"),
    (lambda: Net((8, 8, 2100)).conv(1, (4, 4)).requant(), None, "2112 words of a bank of 2048"),
    (lambda: Net((12, 12, 1)).conv(1, stride=9).requant(), None, "stride of 9"),
    (
        lambda: Net().add("max_pool", kernel=(1, 2), stride=(1, 2), padding=(0, 0, 0, 0)),
        None,
        "1 x 2 is not square",
    ),
    (
        lambda: Net((9, 9, 2)).add("max_pool", kernel=(9, 9), stride=(9, 9), padding=(0,) * 4),
        None,
        "larger than 8 x 8",
    ),
    (
        lambda: Net().add("sum_pool", kernel=(2, 2), stride=(2, 2), padding=(0,) * 4).requant(),
        "b4096",
        "average pool, an option",
    ),
    (
        lambda: Net().conv(4).requant().add("upsample", factor=(2, 2)),
        None,
        "no operation upsample",
    ),
]


@pytest.mark.parametrize(("net", "arch", "words"), REASONS, ids=[words for _, _, words in REASONS])
def test_what_the_processor_gets_has_its_reason(
    net: Callable[[], Net], arch: str | None, words: str
) -> None:
    assert words in only_reason(net(), arch)


def test_a_power_of_two_that_biases_share_is_the_engines() -> None:
    compiled = compile_graph(Net().conv(2).requant(offset=[127 << 6, -128 << 6]).finish(), FULL)
    assert not compiled.outside


def stand_alone() -> Graph:
    """Convolution, activation alone, convolution: three parts."""
    return Net().conv(8).requant(lo=-128, format="int8").requant(shift=0).conv(4).requant().finish()


def test_parts_are_in_order_and_give_the_same_integers() -> None:
    compiled = compile_graph(stand_alone(), FULL)
    assert [part.place for part in compiled.parts] == [ENGINE, CPU, ENGINE]
    assert same(compiled)
    with pytest.raises(GraphError, match="1 of its nodes run on the processor"):
        works_of(compiled)


def test_it_is_told_as_text_json_and_drawing(tmp_path: Path) -> None:
    compiled = compile_graph(stand_alone(), FULL)
    assert summary(compiled) == (
        "2 DPU subgraphs, 1 of the processor: 1 of 3 fused nodes run there"
    )
    table = nodes_table(compiled)
    assert [row["place"] for row in table.rows] == ["DPU", "processor", "DPU"]
    compiled.save(tmp_path)
    told = json.loads((tmp_path / "compiled.json").read_text())
    assert [part["place"] for part in told["parts"]] == [ENGINE, CPU, ENGINE]
    assert told["nodes"][1]["reasons"]
    part = load_graph(tmp_path / "part-1-cpu.bwg", {"integer": INTEGER})
    assert part.digest == compiled.parts[1].graph.digest
    alone = standalone(draw(compiled))
    drawn = ElementTree.fromstring(alone)
    style = next(element.text or "" for element in drawn.iter() if element.tag.endswith("style"))
    classes = {word for e in drawn.iter() for word in e.get("class", "").split()}
    assert {"flow", "block", "limit"} <= classes
    assert all(f".{word} {{" in style or f".{word}." in style for word in classes)
    texts = [e.text for e in drawn.iter() if e.tag.endswith("text")]
    assert "processor, part 1" in texts and "DPU, part 2" in texts


def test_nothing_that_lies_there_is_written_over(tmp_path: Path) -> None:
    save_graph(stand_alone(), tmp_path / "net.bwg")
    (tmp_path / "out").mkdir()
    there = tmp_path / "out" / "part-1-cpu.bwg"
    there.write_text("mine")
    words = ["dpu", "compile", str(tmp_path / "net.bwg"), "--out", str(tmp_path / "out")]
    assert cli.run(words) != 0
    assert [f.name for f in there.parent.iterdir()] == [there.name] and there.read_text() == "mine"


def test_a_graph_is_no_link_out_of_its_folder(tmp_path: Path) -> None:
    """What is compiled is given away."""
    save_graph(stand_alone(), tmp_path / "mine.bwg")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "graph.bwg").symlink_to(tmp_path / "mine.bwg")
    out = tmp_path / "out"
    assert cli.run(["dpu", "compile", str(theirs), "--out", str(out)]) == RunError.exit_code
    assert not out.exists()


def test_images_of_another_size_are_refused() -> None:
    run = compile_graph(stand_alone(), FULL).runner()
    with pytest.raises(GraphError, match=r"takes images of \(8, 8, 4\), these are of \(9, 8, 4\)"):
        run(np.zeros((1, 9, 8, 4), np.int64))


def test_the_engines_parts_can_be_somebody_elses() -> None:
    compiled, seen = compile_graph(stand_alone(), FULL), []

    def reference(graph: Graph) -> Callable[..., dict[str, np.ndarray]]:
        seen.append(graph.name)
        return graph.run

    feeds = random_feeds(compiled.graph, 2, np.random.default_rng(0))
    got = compiled.runner(reference).run(feeds)
    assert seen == ["net-0", "net-2"]
    for edge, wanted in compiled.graph.run(feeds).items():
        assert np.array_equal(got[edge], wanted)


LIMITS = GraphLimits(add=True, concat=True, sum_pool=True, upsample=True, lookup=True, top_k=True)


@settings(max_examples=25, deadline=None)
@given(integer_graphs(LIMITS), st.integers(0, 3))
def test_any_graph_in_any_parts_is_the_graph(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = {node.name: str(rng.integers(0, 3)) for node in graph}
    parts = split_graph(graph, places)
    feeds = random_feeds(graph, 2, rng)
    values = dict(feeds)
    for part in parts:
        values |= part.graph.run({edge: values[edge] for edge in part.graph.inputs})
    for edge, wanted in graph.run(feeds).items():
        assert np.array_equal(values[edge], wanted)
    assert sum(len(part.graph.nodes) for part in parts) == len(graph.nodes)
    assert same(compile_graph(graph, FULL), 2)


def test_search_takes_only_what_the_network_needs() -> None:
    plainly = Net().conv(32).requant().conv(16).requant().finish()
    found = search(plainly, find_board("zcu102"))
    assert found == tuple(sorted(found, key=lambda c: -c.throughput))
    for candidate in found:
        assert candidate.fit.fits
        assert {"depthwise", "average_pool"}.isdisjoint(candidate.options)
    pooled = Net().conv(4, groups=4).requant()
    pooled = pooled.add("sum_pool", kernel=(2, 2), stride=(2, 2), padding=(0,) * 4).requant()
    for candidate in search(pooled.finish(), find_board("ultra96")):
        assert {"depthwise", "average_pool"} <= set(candidate.options)
        works = works_of(compile_graph(pooled.finish(), candidate.architecture))
        again = latency_ms(works, candidate.architecture, calibrated())
        assert candidate.latency_ms == again


def test_search_on_a_device_too_small_says_what_lacks() -> None:
    with pytest.raises(TargetError, match="none of the sizes fits"):
        search(Net().conv(8).requant().finish(), find_board("ice40-up5k"), clock_mhz=50.0)
    with pytest.raises(GraphError, match="run on the processor"):
        search(stand_alone(), find_board("zcu102"))
