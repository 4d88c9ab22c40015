# SPDX-License-Identifier: Apache-2.0
"""The fast executor equals the interpreter: random networks, all backends, kernels, threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import GraphLimits, draw_levels, integer_graphs

from bitwright.base.errors import GraphError, ToolError
from bitwright.base.native import find_compiler
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds
from bitwright.ir.executor import Executor, Op, native_status
from bitwright.ir.executor.compiler import Library, build_library, native_library
from bitwright.ir.executor.layout import Feature

WIDE_LIMITS = GraphLimits(image=6, channels=70, blocks=2)


@pytest.fixture(scope="session")
def native() -> Library:
    """The kernels of this machine."""
    found = native_library()
    if found is None:
        pytest.skip(native_status().note)
    return found


@pytest.fixture(scope="session")
def generic() -> Library:
    """The same kernels in portable C, as other processors run them."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    return build_library(compiler, ("-O1", "-DBW_GENERIC"))


#: Each in one process of those side by side, which compiles it once.
SHIMS = [
    pytest.param(name, marks=pytest.mark.xdist_group(name))
    for name in ("SHIM_AVX512", "SHIM_AVXVNNI")
]


@pytest.fixture(scope="session", params=SHIMS)
def newer(request, tmp_path_factory) -> Library:
    """The paths for AVX-512 and AVX-VNNI over an emulation of those instructions."""
    compiler = find_compiler()
    if compiler is None or not (native_library() and native_library().has(Feature.AVX2)):
        pytest.skip("needs a C compiler and AVX2")
    shim = Path(__file__).parent / "avx512_shim.h"
    flags = ("-O2", "-mavx2", "-Wno-psabi", f"-D{request.param}", "-include", str(shim))
    return build_library(compiler, flags, tmp_path_factory.mktemp("kernels"))


def assert_equal(graph: Graph, executor: Executor, feeds: dict[str, np.ndarray]) -> None:
    expected = graph.run(feeds)
    got = executor.run(feeds)
    assert list(got) == list(graph.outputs)
    for edge in graph.outputs:
        assert got[edge].dtype == np.int64
        np.testing.assert_array_equal(got[edge], expected[edge], err_msg=str(executor.kernels))


def network(
    shape: tuple[int, int, int],
    given: str,
    weights: str,
    rows: int,
    after: str | None,
    **attrs: object,
) -> Graph:
    """One convolution, with an activation where ``after`` names a format."""
    rng = np.random.default_rng(sum(shape) + rows)
    kind = parse_format(given)
    b = GraphBuilder("one", INTEGER)
    x = b.input("x", TensorType(shape, kind, (1.0,), kind.min_level, kind.max_level))
    kernel = attrs.pop("kernel", (3, 3))
    groups = int(attrs.get("groups", 1))
    weight = draw_levels(rng, weights, (rows, *kernel, shape[2] // groups))
    bias = rng.integers(-50, 51, rows)
    x = b.add(
        "conv",
        (x,),
        attrs={"weight_format": weights, **attrs},
        params={"weight": weight, "bias": bias},
    )
    if after is None:
        return b.finish(x)
    out = parse_format(after)
    kind_x = b.types[x]
    steps = (out.max_level - out.min_level) // out.level_step
    spread = max(2, (kind_x.hi - kind_x.lo) // 6)
    thresholds = np.sort(rng.integers(-spread, spread, (rows, steps)), axis=1)
    x = b.add(
        "threshold",
        (x,),
        attrs={"base": out.min_level, "step": out.level_step, "format": after, "scale": (1.0,)},
        params={"thresholds": thresholds, "flip": rng.integers(0, 2, rows)},
    )
    return b.finish(x)


@given(integer_graphs(), st.integers(1, 5), st.sampled_from(("native", "numpy")), st.data())
def test_random_networks_equal_the_interpreter(graph, images, backend, data):
    if backend == "native" and native_library() is None:
        backend = "numpy"
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    executor = Executor(graph, threads=data.draw(st.sampled_from((1, 2))), backend=backend)
    assert_equal(graph, executor, random_feeds(graph, images, rng))


@settings(max_examples=25)
@given(integer_graphs(WIDE_LIMITS), st.integers(1, 3))
def test_random_networks_with_many_channels(graph, images):
    rng = np.random.default_rng(images)
    feeds = random_feeds(graph, images, rng)
    for backend in ("auto", "numpy"):
        assert_equal(graph, Executor(graph, threads=1, backend=backend), feeds)


@settings(max_examples=25)
@given(integer_graphs(GraphLimits(image=5, channels=20)), st.sampled_from(list(Op)))
def test_portable_kernels_equal_the_interpreter(generic, graph, kernel):
    only = frozenset({kernel}) if Op.DOT8 <= kernel <= Op.LUT else None
    executor = Executor(graph, threads=1, library=generic, only=only)
    assert_equal(graph, executor, random_feeds(graph, 3, np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("kernel", "given_format", "weights"),
    [(Op.DOT8, "uint8", "int8"), (Op.DOT8, "uint2", "int2"), (Op.XNOR, "bipolar", "bipolar")],
)
def test_paths_of_newer_processors(newer, kernel, given_format, weights):
    assert newer.has(Feature.VNNI)
    assert newer.lanes[Op.DOT8] == (16 if newer.has(Feature.VNNI512) else 8)
    for channels, rows, after in ((3, 9, None), (64, 70, "uint2"), (67, 130, "bipolar")):
        graph = network((5, 4, channels), given_format, weights, rows, after)
        executor = Executor(graph, threads=1, library=newer, only=frozenset({kernel}))
        assert executor.kernels == {"conv": kernel.name.lower()}
        assert_equal(graph, executor, random_feeds(graph, 3, np.random.default_rng(rows)))


KERNELS = [
    (Op.DOT8, "uint8", "int2"),
    (Op.DOT8, "uint4", "int4"),
    (Op.DOT8, "int3", "int3"),
    (Op.DOT8, "int8", "ternary"),
    (Op.DOT16, "uint8", "int8"),
    (Op.DOT16, "int12", "int7"),
    (Op.XNOR, "bipolar", "bipolar"),
    (Op.LUT, "bipolar", "bipolar"),
    (Op.LUT, "uint2", "int2"),
    (Op.LUT, "uint2", "bipolar"),
    (Op.LUT, "uint3", "ternary"),
    (Op.LUT, "int2", "bipolar"),
    (Op.LUT, "uint4", "uint2"),
    (Op.WIDE, "uint16", "int16"),
]


@pytest.mark.parametrize("after", [None, "uint2", "bipolar", "int4"])
@pytest.mark.parametrize("channels", [1, 5, 64, 67])
@pytest.mark.parametrize(("kernel", "given_format", "weights"), KERNELS)
def test_every_kernel_at_every_width(native, kernel, given_format, weights, channels, after):
    for rows, images in ((1, 1), (37, 2), (64, 5)):
        graph = network((5, 4, channels), given_format, weights, rows, after)
        executor = Executor(graph, threads=1, backend="native", only=frozenset({kernel}))
        assert executor.kernels == {"conv": kernel.name.lower()}
        assert_equal(graph, executor, random_feeds(graph, images, np.random.default_rng(rows)))


GEOMETRY = [
    {"kernel": (1, 1)},
    {"kernel": (6, 5)},
    {"kernel": (2, 3), "stride": (2, 1)},
    {"kernel": (3, 2), "stride": (1, 3), "dilation": (2, 1)},
    {"kernel": (2, 2), "dilation": (1, 3)},
    {"kernel": (3, 3), "groups": 2},
    {"kernel": (3, 3), "groups": 4},
    {"kernel": (3, 3), "groups": 8},
]
PADDINGS = [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 0, 1)]


@pytest.mark.parametrize("geometry", GEOMETRY, ids=str)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    ("given_format", "weights"),
    [("uint2", "int2"), ("int4", "int4"), ("bipolar", "bipolar"), ("int2", "int2"),
     ("int16", "int16"), ("uint8", "int8")],
)  # fmt: skip
def test_geometry_on_both_backends(geometry, padding, given_format, weights):
    if given_format == "bipolar" and any(padding):
        pytest.skip("bipolar has no zero to pad with")
    graph = network((6, 5, 8), given_format, weights, 8, "uint2", **geometry, padding=padding)
    feeds = random_feeds(graph, 3, np.random.default_rng(1))
    for backend in ("auto", "numpy"):
        assert_equal(graph, Executor(graph, threads=2, backend=backend), feeds)


def test_first_layers_gather_their_windows(native):
    for padding in PADDINGS:
        graph = network((9, 8, 3), "int8", "int2", 20, "uint2", padding=padding, stride=(2, 1))
        executor = Executor(graph, threads=1, backend="native")
        assert_equal(graph, executor, random_feeds(graph, 2, np.random.default_rng(3)))


def dense(
    weight: np.ndarray, lo: int, hi: int, bias: np.ndarray | None = None, name: str = "int16"
) -> Graph:
    b = GraphBuilder("dense", INTEGER)
    x = b.input("x", TensorType((weight.shape[1],), None, (1.0,), lo, hi))
    params = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return b.finish(b.add("dense", (x,), attrs={"weight_format": name}, params=params))


@pytest.mark.parametrize("backend", ["auto", "numpy"])
@pytest.mark.parametrize(
    ("columns", "weight", "lo", "hi", "bias"),
    [
        (700, 127, 0, 255, 0),  # leaves int16, and every pair of bytes saturates
        (700, 60, 0, 255, 0),  # leaves int16, no pair saturates
        (700, -64, 0, 255, 0),
        (2, 32767, -32768, 32767, 0),  # just below the end of int32
        (3, 32767, -32768, 32767, 0),  # just above
        (2, -32768, -32768, -32768, 0),  # a pair of products is 2^31
        (1, 1, 0, 255, (1 << 31) - 256),
        (1, 1, 0, 255, -(1 << 31)),
        (1, 1, 0, 255, 32767 - 255),  # the result is the end of int16
        (1, 1, 0, 255, -32768),
        (9, 32767, -(1 << 40), 1 << 40, 5),
        (4, 3, 5, 9, 0),  # zero is not in the interval
        (4, 3, -300, -100, 0),
    ],
)
def test_extreme_intervals(backend, columns, weight, lo, hi, bias):
    rows = 5
    graph = dense(np.full((rows, columns), weight), lo, hi, np.full(rows, bias))
    x = np.array([[lo] * columns, [hi] * columns, [lo, hi] * (columns // 2) + [lo] * (columns % 2)])
    assert_equal(graph, Executor(graph, threads=1, backend=backend), {"x": x})


@pytest.mark.parametrize("backend", ["auto", "numpy"])
def test_thresholds_at_the_ends_of_the_accumulator(backend):
    top = 1 << 61
    for bias in (0, 32767 - 2 * 255, (1 << 31) - 2 - 2 * 255, 1 << 45):
        b = GraphBuilder("ends", INTEGER)
        x = b.input("x", TensorType((2,), None, (1.0,), 0, 255))
        x = b.add(
            "dense",
            (x,),
            attrs={"weight_format": "bipolar"},
            params={"weight": np.array([[1, 1], [-1, 1], [1, -1]]), "bias": np.full(3, bias)},
        )
        lo, hi = b.types[x].lo, b.types[x].hi
        thresholds = np.array([[-top, lo, hi], [lo + 1, bias, hi + 1], [-hi - 1, -bias, top]])
        thresholds = np.sort(thresholds, axis=1)
        x = b.add(
            "threshold",
            (x,),
            attrs={"base": -1, "format": "int3"},
            params={"thresholds": thresholds, "flip": np.array([0, 0, 1])},
        )
        graph = b.finish(x)
        feeds = {"x": np.array([[0, 0], [255, 255], [0, 255], [255, 0], [3, 3]])}
        assert_equal(graph, Executor(graph, threads=1, backend=backend), feeds)


@pytest.mark.parametrize("backend", ["auto", "numpy"])
@pytest.mark.parametrize("name", ["uint6", "uint8", "int8", "uint12"])
def test_many_thresholds(backend, name):
    graph = network((4, 4, 6), "uint4", "int4", 11, name)
    feeds = random_feeds(graph, 2, np.random.default_rng(2))
    assert_equal(graph, Executor(graph, threads=1, backend=backend), feeds)


@pytest.mark.parametrize("backend", ["auto", "numpy"])
@pytest.mark.parametrize("shift", [0, 1, 40, 61, 62])
def test_requant_of_wide_values(backend, shift):
    for rounding in ("half_even", "half_up", "floor"):
        b = GraphBuilder("requant", INTEGER)
        x = b.input("x", TensorType((2, 2, 3), None, (1.0,), -(1 << 40), 1 << 40))
        x = b.add(
            "requant",
            (x,),
            attrs={"shift": shift, "rounding": rounding, "lo": -7, "hi": 7, "format": "int4"},
            params={
                "multiplier": np.array([1, -3, 1 << 20]),
                "offset": np.array([0, 1 << 60, -(1 << 60)]),
            },
        )
        graph = b.finish(x)
        feeds = random_feeds(graph, 9, np.random.default_rng(4))
        feeds["x"][0] = np.arange(12).reshape(2, 2, 3) - 6
        assert_equal(graph, Executor(graph, threads=1, backend=backend), feeds)


def classifier() -> Graph:
    """Big enough that two threads share a single image."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("classifier", INTEGER)
    x = b.input("x", TensorType((32, 32, 3), parse_format("uint8"), (1.0,), 0, 255))
    for name, rows, channels in (("int2", 64, 3), ("ternary", 64, 64)):
        params = {"weight": draw_levels(rng, name, (rows, 3, 3, channels))}
        x = b.add("conv", (x,), attrs={"weight_format": name}, params=params)
        thresholds = np.sort(rng.integers(-300, 300, (rows, 3)), axis=1)
        x = b.add("threshold", (x,), attrs={"format": "uint2"}, params={"thresholds": thresholds})
    x = b.add("max_pool", (x,), attrs={"kernel": (4, 4), "stride": (4, 4)})
    x = b.add("flatten", (x,))
    weight = draw_levels(rng, "int2", (10, b.types[x].channels))
    scores = b.add("dense", (x,), attrs={"weight_format": "int2"}, params={"weight": weight})
    return b.finish(scores, b.add("top_k", (scores,)))


@pytest.mark.parametrize("images", [0, 1, 2, 3, 7, 33])
def test_threads_do_not_change_anything(images):
    graph = classifier()
    feeds = random_feeds(graph, images, np.random.default_rng(images))
    expected = Executor(graph, threads=1, backend="numpy").run(feeds)
    for threads in (1, 2, 3):
        got = Executor(graph, threads=threads).run(feeds)
        for edge, value in expected.items():
            np.testing.assert_array_equal(got[edge], value)


@pytest.mark.parametrize("backend", ["auto", "numpy"])
@pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_any_integer_type_may_come_in(backend, dtype):
    graph = network((5, 5, 3), "uint7", "int4", 6, None)
    executor = Executor(graph, threads=1, backend=backend)
    feeds = random_feeds(graph, 4, np.random.default_rng(5))
    expected = graph.run(feeds)["conv"]
    np.testing.assert_array_equal(executor(feeds["x"].astype(dtype))["conv"], expected)
    strided = np.repeat(feeds["x"].astype(dtype), 2, axis=2)[:, :, ::2]
    np.testing.assert_array_equal(executor(strided)["conv"], expected)


@pytest.mark.parametrize("backend", ["auto", "numpy"])
def test_bad_feeds_are_refused(backend):
    graph = network((3, 3, 2), "uint4", "int4", 2, None)
    executor = Executor(graph, threads=1, backend=backend)
    good = np.zeros((2, 3, 3, 2), dtype=np.int64)
    bad = good.copy()
    bad[1, 2, 2, 1] = 16
    with pytest.raises(GraphError, match=r"leave the interval \[0, 15\]"):
        executor(bad)
    with pytest.raises(GraphError, match=r"expected shape \(N, 3, 3, 2\)"):
        executor(good[:, :2])
    with pytest.raises(GraphError, match="expected integers, got float64"):
        executor(good.astype(np.float64))
    with pytest.raises(GraphError, match=r"no value for inputs \['x'\]"):
        executor.run({})
    bipolar = network((3, 3, 2), "bipolar", "bipolar", 2, None)
    with pytest.raises(GraphError, match="got 0"):
        Executor(bipolar, threads=1, backend=backend)(good)
    np.testing.assert_array_equal(executor(good)["conv"], graph.run({"x": good})["conv"])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", [-(1 << 40), 1001, (1 << 31) - 1])
def test_levels_far_outside_are_looked_up_nowhere(level, threads):
    """They were, gigabytes behind the table, before anybody said that they leave the interval."""
    builder = GraphBuilder("g", INTEGER)
    x = builder.input("x", TensorType((1 << 12,), parse_format("uint10"), (1.0,), 0, 1000))
    table = {"table": np.arange(1001)[None, :] - 300}
    graph = builder.finish(
        builder.add("lookup", (x,), attrs={"format": "int16", "scale": (1.0,)}, params=table)
    )
    with pytest.raises(GraphError, match=r"leave the interval \[0, 1000\]"):
        Executor(graph, threads=threads)(np.full((3, 1 << 12), level))


def test_an_edge_may_be_output_and_input_of_the_next_node():
    b = GraphBuilder("twice", INTEGER)
    x = b.input("x", TensorType((4, 4, 3), parse_format("uint4"), (1.0,), 0, 15))
    weight = np.random.default_rng(0).integers(-7, 8, (5, 3, 3, 3))
    acc = b.add("conv", (x,), attrs={"weight_format": "int4"}, params={"weight": weight})
    params = {"thresholds": np.array([[-30, 0, 30]])}
    one = b.add("threshold", (acc,), attrs={"format": "uint2"}, params=params)
    two = b.add("threshold", (acc,), attrs={"format": "uint2"}, params=params, name="again")
    flat = b.add("flatten", (one,))
    graph = b.finish(acc, one, two, flat, x)
    feeds = random_feeds(graph, 3, np.random.default_rng(0))
    for backend in ("auto", "numpy"):
        assert_equal(graph, Executor(graph, threads=1, backend=backend), feeds)


def test_two_inputs():
    b = GraphBuilder("two", INTEGER)
    first = b.input("a", TensorType((3,), parse_format("uint4"), (1.0,), 0, 15))
    second = b.input("b", TensorType((2,), parse_format("int8"), (1.0,), -128, 127))
    params = {"weight": np.array([[1, -2, 3]])}
    one = b.add("dense", (first,), attrs={"weight_format": "int4"}, params=params)
    graph = b.finish(one, b.add("top_k", (second,)))
    feeds = random_feeds(graph, 4, np.random.default_rng(0))
    for backend in ("auto", "numpy"):
        executor = Executor(graph, backend=backend)
        assert_equal(graph, executor, feeds)
        with pytest.raises(GraphError, match="different batch sizes"):
            executor(feeds["a"], feeds["b"][:2])


def test_native_backend_says_when_it_cannot(monkeypatch):
    monkeypatch.setattr("bitwright.ir.executor.executor.native_library", lambda: None)
    graph = network((3, 3, 2), "uint4", "int4", 2, None)
    assert Executor(graph).backend == "numpy"
    with pytest.raises(ToolError, match="native executor is not available"):
        Executor(graph, backend="native")
