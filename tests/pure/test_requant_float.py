# SPDX-License-Identifier: Apache-2.0
"""`requant_float`, the activation of minifloats: against the format, and in every executor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.test_artifact import compiled, run

from bitwright.base.errors import GraphError
from bitwright.formats import MinifloatFormat, Rounding, parse_format
from bitwright.interop.artifact import export_artifact
from bitwright.interop.onnx.export_qonnx import qonnx_model
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, kernels
from bitwright.ir.executor import Executor
from bitwright.ir.op_activations import float_rule
from bitwright.lower import certify, check, optimise

FORMATS = ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2<finite,flush>", "e4m0", "e3m4<flush>", "e1m5")
ROUNDINGS = ("half_even", "half_up", "floor")


def float_format(name: str) -> MinifloatFormat:
    found = parse_format(name)
    assert isinstance(found, MinifloatFormat)
    return found


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("shift", [0, 1, 7])
def test_it_is_the_format_itself(name: str, rounding: str, shift: int) -> None:
    """Every integer up to 2^13, and around every power of two beyond."""
    chosen = float_format(name)
    near = [sign * ((1 << k) + d) for k in range(52) for d in range(-3, 4) for sign in (1, -1)]
    x = np.concatenate([np.arange(-(1 << 13), (1 << 13) + 1), near])
    significant, smallest = float_rule(chosen)
    found = kernels.round_float(x, shift, significant, smallest, rounding)
    found = np.clip(found, chosen.min_level, chosen.max_level)
    real = x.astype(np.float64) * chosen.lsb / 2.0**shift
    codes = chosen.encode(real, rounding=Rounding(rounding))
    assert np.array_equal(found, chosen.levels(codes))


@given(st.lists(st.integers(-(2**62) + 1, 2**62 - 1), min_size=1))
def test_bits_of_a_magnitude(values: list[int]) -> None:
    found = kernels.bit_length(np.array(values, dtype=np.int64))
    assert found.tolist() == [abs(value).bit_length() for value in values]


def network(name: str, rounding: str, seed: int, spread: int = 30) -> Graph:
    """A dense layer, a float activation, a dense layer with weights of a float."""
    chosen, rng = float_format(name), np.random.default_rng(seed)
    significant, smallest = float_rule(chosen)
    b = GraphBuilder("floats", INTEGER)
    x = b.input("x", TensorType((5,), parse_format("int8"), (0.1,), -128, 127))
    weight = rng.integers(-7, 8, (6, 5))
    x = b.add("dense", (x,), name="one", attrs={"weight_format": "int4"}, params={"weight": weight})
    attrs = {
        "shift": 3, "significant": significant, "smallest": smallest, "rounding": rounding,
        "lo": 0 if seed % 2 else chosen.min_level, "hi": chosen.max_level, "format": name,
        "scale": (0.25,),
    }  # fmt: skip
    params = {"multiplier": rng.integers(-spread, spread, 6), "offset": rng.integers(-999, 999, 6)}
    x = b.add("requant_float", (x,), name="act", attrs=attrs, params=params)
    grid = float_format("e2m1").grid()
    weight = rng.choice(grid, (3, 6))
    attrs = {"weight_format": "e2m1"}
    x = b.add("dense", (x,), name="two", attrs=attrs, params={"weight": weight})
    return b.finish(x)


@pytest.mark.parametrize("name", FORMATS)
def test_executors_and_certificate(name: str) -> None:
    rng = np.random.default_rng(1)
    for seed, rounding in enumerate(ROUNDINGS):
        graph = network(name, rounding, seed)
        feeds = {"x": rng.integers(-128, 128, (50, 5))}
        wanted = graph.run(feeds)[graph.outputs[0]]
        better = optimise(graph, check=4)
        check(certify(better), better)
        for backend in ("native", "numpy"):
            for one in (graph, better):
                found = Executor(one, threads=1, backend=backend).run(feeds)
                assert np.array_equal(found[graph.outputs[0]], wanted), (backend, rounding)


@pytest.mark.parametrize("name", ["e4m3", "e3m2<finite,flush>"])
def test_the_artefact_replays_it(tmp_path: Path, name: str) -> None:
    for seed, rounding in enumerate(ROUNDINGS[: 3 if name == "e4m3" else 1]):
        folder = tmp_path / f"net{seed}"
        export_artifact(network(name, rounding, seed), folder, frames=4)  # python's replay agrees
        if rounding == "half_even":
            result = run(compiled(folder), folder)
            assert result.returncode == 0, result.stdout + result.stderr


def test_what_is_no_level_is_refused() -> None:
    graph = network("e4m3", "half_even", 0)
    node = graph.node("act")
    source = graph.types[node.inputs[0]]
    for change, message in (
        ({"significant": 3}, "e4m3 has 4 significant bits"),
        ({"smallest": 9}, "e4m3 has 4 significant bits"),
        ({"hi": 17}, "no e4m3 levels"),
        ({"hi": 1 << 40}, "exceed e4m3"),
        ({"format": "int8", "lo": 0, "hi": 7}, "int8 is no float"),
        ({"format": "e8m7", "lo": 0, "hi": 7}, "e8m7 is no float with levels below"),
        ({"rounding": "up"}, "rounding must be one of"),
    ):
        from dataclasses import replace

        wrong = replace(node, attrs={**node.attrs, **change})
        with pytest.raises(GraphError, match=message):
            INTEGER.infer(wrong, (source,))
    dense = graph.node("two")
    wrong = replace(dense, params={"weight": dense.params["weight"] * 0 + 5})
    with pytest.raises(GraphError, match="weight 5 is no level of e2m1"):
        INTEGER.infer(wrong, (graph.types[dense.inputs[0]],))
    pytest.importorskip("qonnx")
    with pytest.raises(GraphError, match="e4m3 activations have no exact ONNX form"):
        qonnx_model(network("e4m3", "half_even", 0, spread=3))
