# SPDX-License-Identifier: Apache-2.0
"""What the engine cannot run is refused by name, and damaged files are no programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bitwright.base.errors import ModelError, ProgramError
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.emulator import emulate
from bitwright.engine.image import EngineImage
from bitwright.engine.isa import Exec, Halt, Input, Instruction, Load, Output
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType

E256 = ENGINES["e256"]


def network(body: Callable[[GraphBuilder, str], str], name: str = "uint8", size: int = 6) -> Graph:
    builder = GraphBuilder("small", INTEGER)
    kind = parse_format(name)
    shape = (size, size, 8)
    edge = builder.input("x", TensorType(shape, kind, (0.5,), kind.min_level, kind.max_level))
    return builder.finish(body(builder, edge))


def conv(builder: GraphBuilder, edge: str, level: int = 1, weights: str = "int8") -> str:
    weight = np.full((8, 3, 3, builder.types[edge].channels), level)
    attrs = {"weight_format": weights, "weight_scale": (1.0,), "padding": (1, 1, 1, 1)}
    return builder.add("conv", (edge,), name="layer", attrs=attrs, params={"weight": weight})


def requant(builder: GraphBuilder, edge: str, multiplier: int) -> str:
    attrs = {"shift": 30, "lo": 0, "hi": 255, "format": "uint8", "scale": (1.0,)}
    params = {"multiplier": np.array([multiplier]), "offset": np.array([1])}
    return builder.add("requant", (edge,), name="activation", attrs=attrs, params=params)


def minifloat(builder: GraphBuilder, edge: str) -> str:
    attrs = {
        "shift": 4, "significant": 4, "smallest": 0, "lo": 0, "hi": 8, "format": "e4m3",
        "scale": (1.0,),
    }  # fmt: skip
    params = {"multiplier": np.array([1]), "offset": np.array([0])}
    return builder.add("requant_float", (edge,), name="float", attrs=attrs, params=params)


def rounded(builder: GraphBuilder, edge: str) -> str:
    channels = builder.types[edge].channels
    attrs = {"weight_format": "int8", "tile": 1, "drop": 2, "bits": 8}
    params = {"weight": np.ones((2, 1, 1, channels), np.int64)}
    return builder.add("conv_rounded", (edge,), name="rounds", attrs=attrs, params=params)


def sums_added(builder: GraphBuilder, edge: str) -> str:
    first = conv(builder, edge)
    return builder.add("add", (first, first), name="sum", attrs={"multipliers": (1, 1)})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (minifloat, "engine, float: requant_float is not done by the engine"),
        (rounded, r"(?s)rounds: conv_rounded is not done by the engine.*streaming hardware"),
        (sums_added, r"engine, layer: its result in \[0, 18360\] has more than 8 bits.*add"),
        (lambda b, e: conv(b, e, 300, "int10"), "weights .300, 300. have more than 8 bits"),
        (lambda b, e: requant(b, conv(b, e), 200_001), "a multiplier of 19 bits; the engine's"),
    ],
)
def test_what_has_no_mapping(body: Callable[[GraphBuilder, str], str], says: str) -> None:
    with pytest.raises(ModelError, match=says) as error:
        compile_graph(network(body), E256)
    assert error.value.hint


def test_what_does_not_fit() -> None:
    tiny = EngineConfig(feature_words=64, weight_rows=16, parameter_rows=16)
    wide = network(lambda b, e: requant(b, conv(b, e), 9), size=40)
    with pytest.raises(ModelError, match=r"one row of its maps needs .* words; the engine has 64"):
        compile_graph(wide, tiny)

    def dense(builder: GraphBuilder, edge: str) -> str:
        flat = builder.add("flatten", (edge,))
        weight = np.ones((4, builder.types[flat].channels), np.int64)
        attrs = {"weight_format": "int8", "weight_scale": (1.0,)}
        return builder.add("dense", (flat,), attrs=attrs, params={"weight": weight})

    with pytest.raises(ModelError, match="needs 36 rows of weights; the engine has 16"):
        compile_graph(network(dense), tiny)
    with pytest.raises(ModelError, match="more than 8 bits"):
        compile_graph(network(lambda b, e: requant(b, conv(b, e), 9), "int10"), E256)


def test_damaged_files_and_other_images() -> None:
    image = compile_graph(network(lambda b, e: requant(b, conv(b, e), 9)), E256)
    data = image.to_bytes()
    for end in (0, 10, 60, len(data) - 1):
        with pytest.raises(ProgramError):
            EngineImage.from_bytes(data[:end])
    flipped = bytearray(data)
    flipped[-7] ^= 4
    with pytest.raises(ProgramError, match="the digest differs"):
        EngineImage.from_bytes(bytes(flipped))
    with pytest.raises(ProgramError, match=r"shape \(5, 6, 8\); the program is for \(6, 6, 8\)"):
        image.memory({"x": np.zeros((5, 6, 8), np.int64)})
    with pytest.raises(ProgramError, match=r"word .* of the memory was never written"):
        image.results(image.memory())


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ([Exec(), Halt()], "an EXEC needs an INPUT and an OUTPUT"),
        ([Input(pixel=1, patch=2), Output(), Exec(), Halt()], "the weights' rows 0 were never"),
        ([Input(pixel=2, patch=2), Output(), Exec(), Halt()], "read from one bank"),
        ([Input(pixel=1, patch=3), Output(), Exec(), Halt()], "a patch of 8 columns"),
        ([Input(pixel=1, patch=2), Output(), Exec(last_x=5), Halt()], "leave the patch of 1 x 4"),
        ([Load(memory=8), Halt()], "leave the memory of 8 words"),
        ([Load()], "the program has no HALT"),
    ],
)
def test_wrong_programs(program: list[Instruction], says: str) -> None:
    from bitwright.engine.emulator import Memory

    with pytest.raises(ProgramError, match=says):
        emulate(program, Memory.empty(8, E256.lanes), E256)
