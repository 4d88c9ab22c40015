# SPDX-License-Identifier: Apache-2.0
"""Programs, engines and networks of strangers: bounded before they are run or compiled."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pure.test_engine_refused import conv, network, requant

from bitwright.base.errors import BitwrightError, ModelError, ProgramError, TargetError
from bitwright.engine import footprint
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.footprint import check_running
from bitwright.engine.image import EngineImage
from bitwright.engine.isa import Exec, Halt, Input, Instruction, Load, Loop, Output, Store
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps import map_engine
from bitwright.pipeline.steps.map_engine import describe_program

E256 = ENGINES["e256"]
HEAD = 48  # bytes of an image before its table


def image() -> EngineImage:
    return compile_graph(network(lambda b, e: requant(b, conv(b, e), 9)), E256)


def changed(change: Callable[[dict[str, Any]], object], rest: bytes | None = None) -> bytes:
    """The file with another table, and the digest that it has now."""
    data = image().to_bytes()
    (length,) = struct.unpack("<I", data[12:16])
    table = json.loads(data[HEAD : HEAD + length])
    change(table)
    body = json.dumps(table).encode()
    rest = data[HEAD + length :] if rest is None else rest
    return (
        data[:12]
        + struct.pack("<I", len(body))
        + hashlib.sha256(body + rest).digest()
        + (body + rest)
    )


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(table: dict[str, Any]) -> None:
        *way, last = path.split(".")
        place: Any = table
        for key in way:
            place = place[int(key) if key.isdigit() else key]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("words", 1 << 40, "its memory of 1099511627776 words takes"),
        ("words", 1, "does not lie within 1 words"),
        ("words", float("inf"), "words: Input should be a valid integer"),
        ("words", 10**40, "words: "),
        ("instructions", 3, "3 instructions for"),
        ("layers", [], "instructions for 0 layers"),
        ("inputs", [], "inputs: List should have at least 1 item"),
        ("outputs.0.word", 1 << 47, "does not lie within"),
        ("outputs.0.signs", [0, 0], "other channels or planes"),
        ("outputs.0.pixels", 5, "has 5 pixels, and is"),
        ("outputs.0.places", [0, 1, 2, 3, 4, 5, 6, 8], "a channel behind its last plane"),
        ("outputs.0.places", [-1] * 8, "outputs.0.places.0: "),
        ("outputs.0.type", "nonsense", "expected a type such as"),
        ("outputs.0.type", "uint8[70000,70000,8] * 0x1p-1 in [0,255]", "a frame of shape"),
        ("edges", ["nothing"], "it names outputs that nothing gives"),
        ("host", [{"edge": "l", "source": "y", "k": 1 << 40}], "largest of 'y' are asked for"),
        ("macs", [1], "macs: Input should be a valid dictionary"),
        ("config.constants.queue", 0, "queue must lie in 1"),
    ],
)  # fmt: skip
def test_tables_that_contradict_the_file(path: str, value: Any, says: str) -> None:
    with pytest.raises((ProgramError, TargetError), match=says):
        EngineImage.from_bytes(changed(_set(path, value)))


def test_a_table_nested_without_end() -> None:
    data, body = image().to_bytes(), b"[" * 100_000
    head = data[:12] + struct.pack("<I", len(body)) + hashlib.sha256(body).digest()
    with pytest.raises(ProgramError, match="nested deeper"):
        EngineImage.from_bytes(head + body)


LARGE = Exec(groups_y=4095, groups_x=4095, kc=4095, kh=255, kw=255, outputs=255)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ([Load(x=65535, y=4095, z=4095)], "instruction 0 computes with"),
        ([Store(x=65535, y=4095)], "instruction 0 computes with"),
        ([Input(pixel=1, patch=2), Output(), LARGE], "instruction 2 computes with"),
        ([Load(), Loop(count=65535), *[Load(), Loop(count=65535)] * 40], "thousand million op"),
    ],
)
def test_programs_that_ask_for_too_much(program: list[Instruction], says: str) -> None:
    """As the file of an image they are refused, and nothing is computed before."""
    with pytest.raises(ProgramError, match=says):
        check_running([*program, Halt()], E256, 64, "p")


def test_the_programs_that_are_compiled_may_be_run() -> None:
    made = image()
    check_running(made.program, E256, made.words, "p")
    assert EngineImage.from_bytes(made.to_bytes()).to_bytes() == made.to_bytes()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"lanes": 32, "outputs": 32}, "lanes must lie in 8 .. 16"),
        ({"constants": {"burst_words": 0}}, "burst_words must lie in 1"),
        ({"constants": {"queue": 0}}, "queue must lie in 1"),
        ({"constants": {"bytes_per_cycle": 0}}, "bytes_per_cycle must lie in"),
        ({"constants": {"bytes_per_cycle": float("nan")}}, "bytes_per_cycle must lie in"),
        ({"constants": {"exec_start": 10**30}}, "exec_start must lie in"),
        ({"constants": {"fetch": -1}}, "fetch must lie in"),
        ({"pixels": 10**30}, "must be a power of two"),
    ],
)
def test_engines_that_there_cannot_be(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(TargetError, match=says):
        EngineConfig.from_json(json.dumps(fields))


def test_an_engine_nested_without_end() -> None:
    with pytest.raises(TargetError, match="nested deeper"):
        EngineConfig.from_json('{"pixels":' + "[" * 100_000)


def _pools(count: int, shape: tuple[int, int, int] = (4, 4, 8)) -> Graph:
    builder = GraphBuilder("g", INTEGER)
    edge = builder.input("x", TensorType(shape, parse_format("uint8"), (1.0,), 0, 255))
    for _ in range(count):
        attrs = {"kernel": (1, 1), "stride": (1, 1)}
        edge = builder.add("max_pool", (edge,), attrs=attrs)
    return builder.finish(edge)


def test_networks_that_the_engine_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="without an activation follow one another"):
        compile_graph(_pools(2000), E256)
    with pytest.raises(ModelError, match="an image of 5000 x 1; the engine's have at most"):
        compile_graph(_pools(1, (5000, 1, 8)), E256)
    monkeypatch.setattr(footprint, "MOST_MADE", 3)
    with pytest.raises(ModelError, match="more than 3 instructions"):
        compile_graph(_pools(4), E256)


def test_strips_of_pixels_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from bitwright.engine import execute

    made = image()
    feeds = {"x": np.random.default_rng(0).integers(0, 256, (1, 6, 6, 8))}
    whole = made.run(feeds)
    monkeypatch.setattr(execute, "STRIP", 1)
    again = made.run(feeds)
    assert all(np.array_equal(whole[edge], again[edge]) for edge in whole)


def test_an_image_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bitwright.base import memory
    from bitwright.engine.image import load_image

    path = tmp_path / "p.bwe"
    path.write_bytes(image().to_bytes())
    assert load_image(path).program == image().program
    monkeypatch.setattr(memory, "MOST_OF_A_FILE", 100)
    with pytest.raises(BitwrightError, match="has more than 100 bytes"):
        load_image(path)


def slow_memory() -> EngineImage:
    """A small program whose memory outside gives a word in 512 cycles."""
    text = json.dumps({"constants": {"bytes_per_cycle": 1 / 64}})
    body = lambda b, e: requant(b, conv(b, e), 9)  # noqa: E731
    return compile_graph(network(body, size=40), EngineConfig.from_json(text))


def test_cycles_are_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    made = slow_memory()
    whole = describe_program(made, HardwareSection(), chosen=False)
    assert whole.exact and whole.cycles > 1_000_000
    monkeypatch.setattr(map_engine, "MOST_CYCLES", whole.cycles - 1)
    assert describe_program(made, HardwareSection()).cycles == whole.cycles
    with pytest.raises(ProgramError, match=f"does not end within {whole.cycles - 1} cycles"):
        describe_program(made, HardwareSection(), chosen=False)


def test_counting_cycles_can_be_interrupted() -> None:
    def pressed(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        describe_program(slow_memory(), HardwareSection(), pressed)


def test_a_multiplier_is_refused_before_it_is_taken_apart() -> None:
    """10^12 became a list of eight thousand million pieces, 63 GB, and was too large then."""

    def body(builder: GraphBuilder, edge: str) -> str:
        added = builder.add("add", (edge, edge), attrs={"multipliers": (10**9, 1)})
        return requant(builder, added, 1)

    tracemalloc.start()
    with pytest.raises(ModelError, match=r"multipliers .* of an addition are too large"):
        compile_graph(network(body, "uint1"), E256)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def _one_pixel(table: dict[str, Any]) -> None:
    """An input of one pixel, of which words hold a million neighbours."""
    lanes, width = table["config"]["lanes"], 1 << 20
    planes = 1 << 5
    table["inputs"][0] |= {
        "type": "uint8[1,1,1] * 0x1p-1 in [0,255]", "word": 0, "planes": planes, "pixels": width,
        "places": list(range(planes * lanes)), "signs": [0] * planes,
        "columns": {"image": 1, "width": width, "taps": planes * lanes, "step": 1, "left": 0},
    }  # fmt: skip
    table["words"] = planes * width


def _one_place(table: dict[str, Any]) -> None:
    """All channels of an output in one lane."""
    table["outputs"][0]["places"] = [0] * len(table["outputs"][0]["places"])


@pytest.mark.parametrize(
    ("change", "says"),
    [(_one_pixel, "to be laid out"), (_one_place, "two channels at one place")],
)
def test_regions_take_what_the_memory_has(
    change: Callable[[dict[str, Any]], None], says: str
) -> None:
    """Few bytes of a table, and one pixel, became gigabytes."""
    with pytest.raises(ProgramError, match=says):
        EngineImage.from_bytes(changed(change))


def _output_columns(table: dict[str, Any]) -> None:
    """Words of an output's row that are more than its pixels: a host in C, which has room for the
    pixels, wrote behind it.
    """
    region = table["outputs"][0]
    height, width = (int(size) for size in region["type"].split("[")[1].split(",")[:2])
    region["columns"] = {"image": width, "width": width + 3, "taps": 1, "step": 1, "left": 0}
    region["pixels"] = height * (width + 3)
    table["words"] += 1000


@pytest.mark.parametrize(
    ("change", "says"),
    [(_output_columns, "an output has columns"),
     (lambda table: table.update(inputs=2 * table["inputs"]), "have one name"),
     (lambda table: table.update(outputs=2 * table["outputs"]), "have one name")],
)  # fmt: skip
def test_regions_are_what_hosts_make_of_them(
    change: Callable[[dict[str, Any]], None], says: str
) -> None:
    with pytest.raises(ProgramError, match=says):
        EngineImage.from_bytes(changed(change))
