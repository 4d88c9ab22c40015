# SPDX-License-Identifier: Apache-2.0
"""Graphs of strangers that ask for time or memory without end, or say what cannot be."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.pace import within

from bitwright.base import memory
from bitwright.base.errors import FormatError, GraphError
from bitwright.base.names import NameCounter
from bitwright.formats import parse_format
from bitwright.hw.names import identifiers
from bitwright.interop.artifact import export_artifact
from bitwright.interop.artifact.network_h import arena
from bitwright.interop.onnx.export_qonnx import export_qonnx
from bitwright.ir import (
    INTEGER,
    Graph,
    GraphBuilder,
    TensorType,
    kernels,
    load_graph,
    parse_graph,
    print_graph,
    random_feeds,
    save_graph,
)
from bitwright.ir import footprint as measure
from bitwright.ir.executor import Executor
from bitwright.ir.executor.layout import COp
from bitwright.ir.footprint import checked_frames, frames_within, held_bytes, work

SMALL = "uint4[2,2,1] * 0x1.0000000000000p+0 in [0,15]"
UPSAMPLE = '{"factor": [1, 1]} <> @'
MIB = 1 << 20


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """None of what follows takes seconds where nothing is wrong."""
    with within(8):
        yield


def chain(count: int, kind: str = SMALL) -> str:
    """The text of so many nodes that do nothing."""
    lines = ["graph g integer", f"input e0 : {kind}"]
    lines += [f"e{i + 1} = n{i}:upsample(e{i}) {UPSAMPLE} : {kind}" for i in range(count)]
    return "\n".join([*lines, f"output e{count}", ""])


def one(node: str, kind: str = SMALL, out: str = SMALL, name: str = "g") -> str:
    """The text of one node ``p``, such as ``upsample(x) {..} <> @``."""
    return f"graph {name} integer\ninput x : {kind}\np = p:{node} : {out}\noutput p\n"


def read(text: str) -> Graph:
    return parse_graph(text, {}, {"integer": INTEGER})


def saved(text: str, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.txt", text)
    return path


@pytest.mark.parametrize("part", ['"} <', "} <", "{", '{"a":', "> @", " : ", "x, ", "a." * 9])
def test_a_line_is_read_in_the_time_of_its_length(part: str) -> None:
    for line in (f"conv(x) {{}} <{part * 3000}", f"conv(x) {part * 3000}", part * 3000):
        with pytest.raises(GraphError, match="cannot read"):
            read(one(line))


@pytest.mark.parametrize(
    "node",
    [
        'upsample(x) {"factor": [1, 1]}<> @',
        'upsample(x) {"factor": [1, 1]} <> @a b',
        'upsample(x) {"factor": [1, 1]} <>> @',
        'upsample(x) {"factor": [1, 1]} <a> @',
        'upsample(x)  {"factor": [1, 1]} <> @',
        'upsample(x) {"factor": [1, 1]} <>',
        'upsample(x) {"factor": [1, 1]',
    ],
)
def test_a_line_has_all_of_its_parts(node: str) -> None:
    assert print_graph(read(one(f"upsample(x) {UPSAMPLE}"))) == one(f"upsample(x) {UPSAMPLE}")
    with pytest.raises(GraphError, match="cannot read"):
        read(one(node))


def test_lines_and_nodes_have_a_largest_number() -> None:
    with pytest.raises(GraphError, match=r"line 2: \d+ signs; at most"):
        read("graph g integer\n" + "x" * (5 << 20))
    with pytest.raises(GraphError, match="200001 lines; at most 100000"):
        read("graph g integer\n" + "x\n" * 200_000)


@pytest.mark.parametrize(
    ("side", "count", "said"),
    [
        (4096, 2, r"net\.bwg: one frame takes 1\.5 GiB of memory; 1\.0 GiB are allowed"),
        (2000, 9_000, "one frame takes 144.0 thousand million operations"),
    ],
)
def test_frames_that_only_a_file_asks_for(
    side: int, count: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(chain(count, f"uint4[{side},{side},4] * 0x1p+0 in [0,15]"), tmp_path / "net.bwg")
    with pytest.raises(GraphError, match=said):
        load_graph(path, {"integer": INTEGER})
    if count == 2:
        assert load_graph(path, {"integer": INTEGER}, chosen=True)
    monkeypatch.setenv(memory.LARGE, "1")  # what the command line has for it
    assert load_graph(path, {"integer": INTEGER})


def test_a_border_is_an_image_as_well() -> None:
    window = '{"kernel": [4000, 4000], "padding": [%d, %d, 0, 0], "stride": [1, 1]} <> @'
    out = "int[%d,%d,1] * 0x1.0c6f7a0b5ed8dp-24 in [0,240000000]"
    assert work(read(one(f"sum_pool(x) {window % (3998, 3999)}", out=out % (1, 2)))) == 32_000_000
    with pytest.raises(GraphError, match="an image of 9001 x 9002 with its padding"):
        read(one(f"sum_pool(x) {window % (8999, 9000)}", out=out % (5002, 5003)))


def test_the_largest_are_looked_for_among_all(tmp_path: Path) -> None:
    """What the executor does for k of them: it looks at all for each."""
    builder = GraphBuilder("g", INTEGER)
    x = builder.input("x", TensorType((1 << 20,), parse_format("uint4"), (1.0,), 0, 15))
    graph = builder.finish(builder.add("top_k", (x,), attrs={"k": 1 << 19}))
    assert work(graph) == 1 << 39
    save_graph(graph, tmp_path / "net.bwg")
    with pytest.raises(GraphError, match=r"takes 549\.8 thousand million operations"):
        load_graph(tmp_path / "net.bwg", {"integer": INTEGER})


def test_what_frames_take_is_what_the_interpreter_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read(chain(5, "uint4[64,64,1] * 0x1p+0 in [0,15]"))
    frame = 8 * 64 * 64
    assert held_bytes(graph) == 3 * frame  # what it reads, what it makes, one more on the way
    assert held_bytes(graph, edges=True) == 7 * frame  # the input, five results, one on the way
    assert work(graph) == 5 * 64 * 64
    assert frames_within(graph, 9, 6 * frame) == 2
    assert frames_within(graph, 9, 100 * frame) == 9
    with pytest.raises(GraphError, match=r"g: one frame takes 0\.2 MiB"):
        frames_within(graph, 9, 6 * frame, edges=True)
    monkeypatch.setattr(measure, "MOST_OF_A_FILE", 6 * frame)
    assert checked_frames(graph, 9) == 2
    monkeypatch.setattr(measure, "MOST_WORK", 1)
    assert checked_frames(graph, 9) == 1


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_in_strips_is_the_same(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 8, (2, 9, 7, 4))
    weight = rng.integers(-8, 8, (6, 3, 2, 4 // groups))
    arguments = (x, weight, (2, 1), (1, 0, 2, 1), (1, 2), groups)
    whole = kernels.conv2d(*arguments)
    monkeypatch.setattr(kernels, "STRIP", 1)
    np.testing.assert_array_equal(kernels.conv2d(*arguments), whole)
    padded, by_hand = np.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0))), np.zeros_like(whole)
    for place in np.ndindex(whole.shape):
        n, row, column, out = place
        first = out // (6 // groups) * (4 // groups)
        part = padded[n, 2 * row : 2 * row + 3, column : column + 3 : 2]
        by_hand[place] = (part[..., first : first + 4 // groups] * weight[out]).sum()
    np.testing.assert_array_equal(whole, by_hand)


def test_only_what_is_read_later_is_kept() -> None:
    graph = read(chain(3))
    feeds = random_feeds(graph, 2, np.random.default_rng(0))
    assert graph.run(feeds).keys() == {"e3"}
    assert graph.run(feeds, edges=True).keys() == {"e0", "e1", "e2", "e3"}


def test_exports_keep_no_more_edges_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = read(chain(40, "uint4[64,64,1] * 0x1p+0 in [0,15]"))
    for export in (export_artifact, export_qonnx):
        with pytest.raises(GraphError, match=r"one frame takes 1\.3 MiB of memory; 1\.0 MiB are"):
            export(graph, tmp_path / "out", room=MIB)
    monkeypatch.setattr(memory, "MOST_OF_A_FILE", MIB)
    assert export_artifact(graph, tmp_path / "art", room=2 * MIB).frames == 1


def test_time_grows_with_the_nodes_alone() -> None:
    graph = read(chain(4000))
    places, words = arena(graph)
    assert words == 8 and {*places.values()} == {0, 4}
    assert Executor(graph).run({"e0": np.zeros((1, 2, 2, 1), np.int64)})


def test_places_of_tensors_are_the_first_that_are_free() -> None:
    rng = np.random.default_rng(1)
    builder = GraphBuilder("g", INTEGER)
    edges = [builder.input("x", TensorType((4, 4, 1), parse_format("uint4"), (1.0,), 0, 15))]
    for _ in range(60):
        factor = (1, int(rng.integers(1, 4)))
        source = edges[int(rng.integers(max(0, len(edges) - 5), len(edges)))]
        if builder.types[source].size < 500:
            edges.append(builder.add("upsample", (source,), attrs={"factor": factor}))
    graph = builder.finish(*edges[-2:])
    places, words = arena(graph)
    order = [*graph.inputs, *(node.output for node in graph)]
    last = {edge: len(order) if edge in graph.outputs else k for k, edge in enumerate(order)}
    for moment, node in enumerate(graph, start=1):
        last |= {edge: max(moment, last[edge]) for edge in node.inputs}
    for born, edge in enumerate(order):
        begin, size = places[edge], graph.types[edge].size
        taken = {
            word
            for other in order[:born]
            if last[other] >= born
            for word in range(places[other], places[other] + graph.types[other].size)
        }
        fits = [k for k in range(words + 1) if taken.isdisjoint(range(k, k + size))]
        assert begin == fits[0]
    assert words == max(places[e] + graph.types[e].size for e in order)


def test_thousands_of_names_of_one_stem() -> None:
    names = identifiers(chr(0x4E00 + k) + chr(0x4E00 + k // 9000) for k in range(30_000))
    assert len({*names.values()}) == 30_000
    counter, taken = NameCounter(), {"a_2"}
    for name in ("a", "a_3", "a_4", "a_2_2"):
        found = counter.free("a_2" if name == "a_2_2" else "a", taken)
        assert found == name
        taken.add(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (one(f"upsample(x) {UPSAMPLE}", "uint4[2] * 0x1p+0 in [-99,9999]"), "leaves that of uint4"),
        (one(f"upsample(x) {UPSAMPLE}", "uint4[2] * -0x1p+0 in [0,15]"), "must be positive"),
        (one(f"upsample(x) {UPSAMPLE}", "uint4[2] * 0x0p+0 in [0,15]"), "must be positive"),
        (one(f"upsample(x) {UPSAMPLE}", "uint4[2] * inf in [0,15]"), "must be a finite number"),
        (one(f"upsample(x) {UPSAMPLE}", "uint4[2] * nan in [0,15]"), "must be a finite number"),
        (one(f"upsample(x) {UPSAMPLE}", name='a";system("id")'), "no name of a graph"),
        (one(f'upsample(x) {{"factor": [1, {10**30}]}} <> @'), "factor of upsample must be ints"),
        (one('add(x, x) {"multipliers": [1, 1], "scale": [Infinity]} <> @'), "must be floats"),
    ],
)
def test_what_a_graph_says_can_be(text: str, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        read(text)


@pytest.mark.parametrize("shift", [-1, 63, 10**30])
def test_a_shift_is_one_of_64_bits(shift: int) -> None:
    builder = GraphBuilder("g", INTEGER)
    builder.input("x", TensorType((2,), parse_format("uint4"), (1.0,), 0, 15))
    attrs = {"shift": shift, "lo": 0, "hi": 15, "format": "uint4"}
    params = {"multiplier": np.ones(1, np.int64), "offset": np.zeros(1, np.int64)}
    with pytest.raises(GraphError, match=r"shift must be 0 \.\. 62|shift of requant must be int"):
        builder.add("requant", ("x",), attrs=attrs, params=params)


@pytest.mark.parametrize("name", ["mx<" * 300 + "int8" + ",2>" * 300, "cb2:" * 900 + "int8"])
def test_names_of_formats_are_not_nested_without_end(name: str) -> None:
    with pytest.raises(FormatError, match="unknown format"):
        parse_format(name)


def test_tables_of_codebooks_may_be_long() -> None:
    name = f"cb256{{{','.join(str(3 * k - 400) for k in range(256))}}}"
    assert parse_format(name).name == name
    with pytest.raises(FormatError):
        parse_format(f"cb2{{1,{'9' * 5000}}}")


def test_a_number_is_no_name_of_a_format() -> None:
    with pytest.raises(FormatError, match="named by a string"):
        parse_format(1 << 80_000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "attribute", "value"),
    [
        ("conv", "stride", (1, 1, 1)),
        ("conv", "dilation", (1, 1, 5)),
        ("conv", "padding", (0, 0, 0, 0, 0)),
        ("max_pool", "kernel", (1, 1, 1)),
        ("sum_pool", "kernel", (1, 1, 1)),
        ("sum_pool", "stride", (1, 1, 1)),
        ("upsample", "factor", (1, 1, 1)),
    ],
)
def test_lists_have_as_many_numbers_as_are_meant(
    operation: str, attribute: str, value: tuple[int, ...]
) -> None:
    """Rules looked at the first ones, and whoever ran the graph could make nothing of the rest."""
    pool = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0)}
    attrs = {
        "conv": {"weight_format": "int4"},
        "max_pool": pool,
        "sum_pool": pool,
        "upsample": {"factor": (1, 1)},
    }[operation]
    weight = {"weight": np.ones((1, 1, 1, 2), np.int64)} if operation == "conv" else {}
    builder = GraphBuilder("g", INTEGER)
    x = builder.input("x", TensorType((4, 4, 2), parse_format("uint4"), (1.0,), 0, 15))
    builder.add(operation, (x,), attrs=attrs, params=weight)
    with pytest.raises(GraphError, match=f"{attribute} of {operation} has [24] numbers"):
        builder.add(operation, (x,), attrs={**attrs, attribute: value}, params=weight)


def test_the_smallest_integer_is_no_small_multiplier() -> None:
    builder = GraphBuilder("g", INTEGER)
    x = builder.input("x", TensorType((2,), parse_format("uint4"), (1.0,), 0, 15))
    attrs = {"shift": 0, "rounding": "floor", "lo": 0, "hi": 15, "format": "uint4"}
    params = {"multiplier": np.array([-(1 << 63)]), "offset": np.array([0])}
    with pytest.raises(GraphError, match="at most 63 fit"):
        builder.add("requant", (x,), attrs=attrs, params=params)


@pytest.mark.parametrize("field", ["dilation", "stride"])
@pytest.mark.parametrize("number", [2**26 + 1, 2**31 - 2, 2**31, 2**32, 2**63])
def test_numbers_of_a_window_are_those_of_an_image(field: str, number: int) -> None:
    """The executor's are of 32 bits: 2**31 - 2 read beyond its memory, 2**32 divided by nothing."""
    attrs = {"weight_format": "int2", "stride": (1, 1), "padding": (3, 3, 3, 3), "groups": 2,
             "dilation": (1, 1)} | {field: (number, number)}  # fmt: skip
    b = GraphBuilder("g", INTEGER)
    x = b.input("x", TensorType((4, 4, 2), parse_format("uint4"), (1.0,), 0, 15))
    weight = np.ones((2, 1, 1, 1), dtype=np.int64)
    with pytest.raises((GraphError, FormatError), match=r"at most|must be ints"):
        b.add("conv", (x,), name="c", attrs=attrs, params={"weight": weight})


def test_a_plan_takes_no_number_that_its_field_does_not_hold() -> None:
    with pytest.raises(GraphError, match="sh = 4294967297 is no number of 32 bits"):
        COp().sh = (1 << 32) + 1
