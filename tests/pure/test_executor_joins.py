# SPDX-License-Identifier: Apache-2.0
"""The fast executor on graphs that fork and join: every operation, several inputs and outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import draw_levels

from bitwright.base.native import find_compiler
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds
from bitwright.ir.executor import Executor, native_status
from bitwright.ir.executor.compiler import Library, build_library, native_library

_FORMATS = ("uint1", "uint4", "uint8", "int3", "int8", "ternary", "bipolar")
_ACTIVATIONS = ("uint2", "uint4", "uint8", "int4", "int8", "bipolar")
_WEIGHTS = ("int2", "int4", "int8", "ternary", "bipolar")


def _source(b: GraphBuilder, name: str, shape: tuple[int, ...], form: str) -> str:
    kind = parse_format(form)
    return b.input(name, TensorType(shape, kind, (1.0,), kind.min_level, kind.max_level))


class _Dag:
    """A random graph: each node reads any edges made so far, so edges have several readers."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
        self.b = GraphBuilder("dag", INTEGER)
        size, form = st.integers(1, 6), st.sampled_from(_FORMATS)
        shape = (draw(size), draw(size), draw(st.sampled_from((1, 2, 3, 17, 33))))
        self.edges = [_source(self.b, "x", shape, draw(form))]
        if draw(st.booleans()):
            other = (*shape[:2], draw(st.integers(1, 4)))
            self.edges.append(_source(self.b, "y", other, draw(form)))

    def kind(self, edge: str) -> TensorType:
        return self.b.types[edge]

    def pick(self, *allowed: str) -> str:
        return self.draw(st.sampled_from(allowed or tuple(self.edges)))

    def small(self) -> list[str]:
        """Edges whose levels fit a few bits: what products and tables read."""
        return [e for e in self.edges if self.kind(e).wire_bits <= 8]

    def grow(self) -> None:
        moves = (self.conv, self.add, self.concat, self.pool, self.rearrange, self.lookup)
        self.draw(st.sampled_from(moves))()

    def conv(self) -> None:
        edge = self.pick(*self.small())
        kind = self.kind(edge)
        height, width, channels = kind.shape
        known = (1, 3, channels) if len(kind.scale) == 1 else (channels,)  # what was concatenated
        groups = self.draw(st.sampled_from([g for g in known if channels % g == 0]))
        rows = groups * (1 if groups == channels else self.draw(st.integers(1, 3)))
        pad = 0 if kind.is_bipolar else self.draw(st.integers(0, 2))
        kernel = tuple(min(3, s + 2 * pad) for s in (height, width))
        form = self.draw(st.sampled_from(_WEIGHTS))
        params = {"weight": draw_levels(self.rng, form, (rows, *kernel, channels // groups))}
        if self.draw(st.booleans()):
            params["bias"] = self.rng.integers(-99, 100, rows)
        attrs = {
            "weight_format": form,
            "groups": groups,
            "padding": (pad,) * 4,
            "stride": (self.draw(st.integers(1, 2)), self.draw(st.integers(1, 2))),
        }
        self.activate(self.b.add("conv", (edge,), attrs=attrs, params=params))

    def activate(self, edge: str) -> None:
        """A sum, its activation, or both; a wide sum that only outputs read stays as it is."""
        what = self.draw(st.sampled_from(("threshold", "requant", "none", "both")))
        if what in ("none", "both"):
            self.edges.append(edge)
        kind = self.kind(edge)
        form = parse_format(self.draw(st.sampled_from(_ACTIVATIONS)))
        if what in ("threshold", "both"):
            rows = self.draw(st.sampled_from((1, kind.channels)))
            steps = (form.max_level - form.min_level) // form.level_step
            drawn = self.rng.integers(kind.lo - 2, kind.hi + 3, (rows, steps))
            attrs = {
                "base": form.min_level,
                "step": form.level_step,
                "format": form.name,
                "scale": (1.0,),
            }
            params = {
                "thresholds": np.sort(drawn, axis=1),
                "flip": self.rng.integers(0, 2, rows),
            }
            self.edges.append(self.b.add("threshold", (edge,), attrs=attrs, params=params))
        elif what == "requant" and form.name != "bipolar":
            rows = self.draw(st.sampled_from((1, kind.channels)))
            attrs = {
                "shift": self.draw(st.integers(0, 9)),
                "rounding": self.draw(st.sampled_from(("half_even", "half_up", "floor"))),
                "lo": form.min_level,
                "hi": form.max_level,
                "format": form.name,
            }
            params = {
                "multiplier": self.rng.integers(-30, 31, rows),
                "offset": self.rng.integers(-500, 501, rows),
            }
            self.edges.append(self.b.add("requant", (edge,), attrs=attrs, params=params))

    def add(self) -> None:
        first = self.pick()
        same = [e for e in self.edges if self.kind(e).shape == self.kind(first).shape]
        factor = st.integers(-300, 300).filter(bool)
        attrs = {"multipliers": (self.draw(factor), self.draw(factor)), "scale": (1.0,)}
        self.activate(self.b.add("add", (first, self.pick(*same)), attrs=attrs))

    def concat(self) -> None:
        first = self.pick()
        size = self.kind(first).shape[:2]
        same = [e for e in self.edges if self.kind(e).shape[:2] == size]
        count = self.draw(st.integers(1, 3))
        self.edges.append(self.b.add("concat", (first, *(self.pick(*same) for _ in range(count)))))

    def pool(self) -> None:
        edge = self.pick()
        height, width, _ = self.kind(edge).shape
        kernel = (min(height, 3), min(width, 2))
        attrs = {"kernel": kernel, "stride": (self.draw(st.integers(1, 2)), 1)}
        padded = self.draw(st.booleans()) and not self.kind(edge).is_bipolar
        attrs["padding"] = (0, kernel[1] - 1, kernel[0] - 1, 0) if padded else (0, 0, 0, 0)
        if self.draw(st.booleans()):
            self.activate(self.b.add("sum_pool", (edge,), attrs=attrs))
        else:
            self.edges.append(self.b.add("max_pool", (edge,), attrs=attrs))

    def rearrange(self) -> None:
        edge = self.pick()
        height, width, _ = self.kind(edge).shape
        if height % 2 == 0 and width % 2 == 0 and len(self.kind(edge).scale) == 1:
            self.edges.append(self.b.add("space_to_depth", (edge,), attrs={"block": 2}))
        elif max(height, width) < 7:
            attrs = {"factor": (self.draw(st.integers(1, 2)), self.draw(st.integers(1, 3)))}
            self.edges.append(self.b.add("upsample", (edge,), attrs=attrs))

    def lookup(self) -> None:
        edge = self.pick(*self.small())
        kind, form = self.kind(edge), self.draw(st.sampled_from(("int8", "uint3", "int16")))
        rows = self.draw(st.sampled_from((1, kind.channels)))
        table = draw_levels(self.rng, form, (rows, kind.hi - kind.lo + 1))
        attrs = {"format": form, "scale": (1.0,)}
        self.edges.append(self.b.add("lookup", (edge,), attrs=attrs, params={"table": table}))

    def finish(self) -> Graph:
        edges = st.sampled_from(self.edges)
        outputs = dict.fromkeys([self.edges[-1], *self.draw(st.lists(edges, max_size=3))])
        last = self.kind(self.edges[-1])
        if len(last.scale) == 1 and self.draw(st.booleans()):
            flat = self.b.add("flatten", (self.edges[-1],))
            k = self.draw(st.integers(1, min(7, last.size)))
            outputs[self.b.add("top_k", (flat,), attrs={"k": k})] = None
        return self.b.finish(*outputs)


@st.composite
def dags(draw: st.DrawFn) -> Graph:
    dag = _Dag(draw)
    for _ in range(draw(st.integers(1, 9), label="nodes")):
        dag.grow()
    return dag.finish()


@pytest.fixture(scope="session")
def generic() -> Library:
    """The kernels in portable C, as other processors run them."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    return build_library(compiler, ("-O1", "-DBW_GENERIC"))


def _equal(graph: Graph, executor: Executor, images: int) -> None:
    feeds = random_feeds(graph, images, np.random.default_rng(images))
    expected, got = graph.run(feeds), executor.run(feeds)
    assert list(got) == list(graph.outputs)
    for edge in graph.outputs:
        np.testing.assert_array_equal(got[edge], expected[edge], err_msg=edge)


@settings(max_examples=150)
@given(dags(), st.integers(1, 4), st.sampled_from((1, 2)))
def test_random_graphs_natively(graph, images, threads):
    if native_library() is None:
        pytest.skip(native_status().note)
    executor = Executor(graph, threads=threads)
    assert executor.backend == "native"
    _equal(graph, executor, images)


@settings(max_examples=60)
@given(dags(), st.integers(1, 3))
def test_random_graphs_in_portable_c(generic, graph, images):
    _equal(graph, Executor(graph, threads=1, library=generic), images)


@settings(max_examples=80)
@given(dags(), st.integers(1, 3))
def test_random_graphs_in_numpy(graph, images):
    _equal(graph, Executor(graph, backend="numpy"), images)


@pytest.mark.parametrize("given_format", ["uint4", "int4", "uint8"])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("channels", [3, 16, 130, 200])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
def test_depthwise(generic, given_format, stride, channels, dilation):
    """Rows long enough for the four-pixel kernel, borders on all sides, partial vectors."""
    rng = np.random.default_rng(channels)
    b = GraphBuilder("depthwise", INTEGER)
    x = _source(b, "x", (9, 23, channels), given_format)
    attrs = {
        "weight_format": "int4",
        "groups": channels,
        "padding": (2, 1, 0, 3),
        "stride": stride,
        "dilation": dilation,
    }
    params = {
        "weight": draw_levels(rng, "int4", (channels, 3, 3, 1)),
        "bias": rng.integers(-9, 10, channels),
    }
    acc = b.add("conv", (x,), attrs=attrs, params=params)
    thresholds = {"thresholds": np.sort(rng.integers(-200, 200, (channels, 15)), axis=1)}
    out = b.add("threshold", (acc,), attrs={"format": "uint4"}, params=thresholds)
    for graph in (b.finish(out), b.finish(acc)):
        for executor in (
            Executor(graph),
            Executor(graph, library=generic, threads=1),
            Executor(graph, backend="numpy"),
        ):
            _equal(graph, executor, 2)


def test_depthwise_sums_at_the_edge_of_sixteen_bits(generic):
    """The int16 kernel is taken only where no partial sum can wrap: extremes of both kinds."""
    for form, peak in (("uint8", 255), ("uint4", 15)):
        b = GraphBuilder("edge", INTEGER)
        x = _source(b, "x", (3, 12, 2), form)
        weight = np.full((2, 3, 3, 1), 127)
        weight[1] = -128
        attrs = {"weight_format": "int8", "groups": 2, "padding": (1, 1, 1, 1)}
        graph = b.finish(b.add("conv", (x,), attrs=attrs, params={"weight": weight}))
        feeds = {"x": np.full((1, 3, 12, 2), peak)}
        for executor in (Executor(graph), Executor(graph, library=generic, threads=1)):
            np.testing.assert_array_equal(
                next(iter(executor.run(feeds).values())), next(iter(graph.run(feeds).values()))
            )
