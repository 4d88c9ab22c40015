# SPDX-License-Identifier: Apache-2.0
"""Figures and networks of strangers: invented results, wide networks, long tables, numbers that no
machine has.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.memory_peak import peak

from bitwright.base.errors import DataError, GraphError, RecipeError, RunError, TargetError
from bitwright.base.figures import Resources
from bitwright.base.files import json_text
from bitwright.base.native import find_compiler
from bitwright.build.implement import ImplementResult
from bitwright.build.shell import LineTiming, describe
from bitwright.build.simulated import SimulatedBoard
from bitwright.build.target import load_target
from bitwright.cli.output import Output
from bitwright.host.description import FILE
from bitwright.ir import INTEGER, GraphBuilder
from bitwright.ir.types import parse_type
from bitwright.low_precision.costs.devices import load_device
from bitwright.low_precision.costs.given import read_costs
from bitwright.low_precision.costs.model import compare
from bitwright.low_precision.costs.schedule import parse_schedule
from bitwright.papers.bnn_soc import model as networks
from bitwright.papers.bnn_soc.course import Look
from bitwright.papers.bnn_soc.graph import make_design
from bitwright.papers.bnn_soc.kpi import hardware_kpi
from bitwright.papers.bnn_soc.model import Model, decide, judge
from bitwright.papers.bnn_soc.run_folder import Trained
from bitwright.papers.bnn_soc.settings import Settings, initial_weights
from bitwright.papers.bnn_soc.stream import LABELS, labelled
from bitwright.papers.bnn_soc.windows import detect
from bitwright.pipeline import board
from bitwright.pipeline.board import _compare
from bitwright.pipeline.board_subject import find_subject
from bitwright.pipeline.designs.steps import ProofResult
from bitwright.pipeline.steps.results_hardware import MapResult
from bitwright.report.table import Column, Kind, Table, value_from_json
from bitwright.sim.spec import Design, Port

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
NOTHING = Resources()


def network(*sizes: int) -> Model:
    settings = Settings(sizes=sizes)
    return Model(settings, tuple(initial_weights(settings)), (None,) * (len(sizes) - 1))


# --- results that came with a design folder -------------------------------------------------------


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
def test_invented_results_of_a_design_are_no_simulation(tmp_path: Path) -> None:
    """`kpi --design` printed them as such: one cycle, one LUT."""
    model, folder = network(45, 20, 5), tmp_path / "design"
    make_design(model, folder, np.zeros((6, 45), np.uint8), 6)
    trained = Trained("run", model, (Look(24, 0.5, 0.5, 1.0),), 1)
    MapResult(
        target="ecp5-45k", clock_mhz=100, interval=1, latency=1, bottleneck="b",
        resources=Resources(lut=1), capacity=Resources(lut=10), blocks=(), fifos=(),
    ).save(folder / "map")  # fmt: skip
    ProofResult(
        images=6, stall_images=0, stall_patterns=(), compared_values=30, differences=0, interval=1,
        predicted_interval=1, latency=1, predicted_latency=1, high_water={}, cycles=6, real=True,
        metrics={},
    ).save(folder / "simulate")  # fmt: skip
    with pytest.raises(RunError, match="has not been simulated here"):
        hardware_kpi(trained, folder, 0.5)


class _Asked(Exception):
    """The clock that a board was asked for."""


@pytest.mark.parametrize("clock_mhz", [900.0, 9999.0])
def test_an_invented_clock_of_a_design_is_none(
    clock_mhz: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`board run --simulated` told it as the core's, and 9999 MHz was a traceback."""
    folder = tmp_path / "design"
    make_design(network(45, 20, 5), folder, np.zeros((6, 45), np.uint8), 6)
    (folder / "map" / "rtl").mkdir(parents=True)
    (folder / "map" / "rtl" / "design.json").write_text("{}")
    (folder / "implement").mkdir()
    found = ImplementResult(
        "ecp5-45k", "x", "place-and-route", clock_mhz, {}, NOTHING, NOTHING, NOTHING, {}, None,
        True, clock_mhz, 1, {}, {}, (),
    )  # fmt: skip
    (folder / "implement" / "implement.json").write_text(found.to_json())
    for place in (folder, folder / "implement"):
        (place / FILE).write_text(json.dumps({"baud": 1e9}))

    def build(_: Path, *, clock_mhz: float, frames: int) -> SimulatedBoard:
        raise _Asked(clock_mhz)

    monkeypatch.setattr(board, "own_rtl", lambda *_: folder / "map" / "rtl")
    monkeypatch.setattr(board.SimulatedBoard, "build", staticmethod(build))
    with ExitStack() as stack, pytest.raises(_Asked, match="100"):
        board.simulated_board(find_subject(folder), stack)


@pytest.mark.parametrize("clock_mhz", [9999.0, 1e12])
def test_a_clock_without_a_line_is_refused(clock_mhz: float) -> None:
    port = Port(name="x", width=8, lane_bits=8, lanes=1, beats=1)
    parts = {"top": "top", "clock": "clk", "reset": "rst", "files": ("top.sv",)}
    design = Design(**parts, inputs=(port,), outputs=(port,))
    with pytest.raises(TargetError, match="no board has a core at"):
        describe(design, clock_mhz, LineTiming(1 << 13, clock_mhz * 1e6 / 8, 16))


# --- binarized networks ---------------------------------------------------------------------------


def test_a_network_of_many_classes_has_no_matrix_of_them() -> None:
    """A file of 145 kB with 36 000 classes took 10 GB."""
    model = network(784, 1, 20_000)
    images, labels = np.zeros((3, 784), np.uint8), np.array([7, 7, 9])
    found: list[networks.Decisions] = []
    assert peak(lambda: found.append(judge(model, images, labels))) < 20 * MIB
    told = json.loads(json_text(found[0].to_json()))
    right = found[0].classes[0]
    assert told["confusion"] is None
    assert told["counts"] == [[7, right, 2], [9, right, 1]]


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
def test_frames_pass_wide_layers_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(784, 40_000, 10)
    picture = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    monkeypatch.setattr(networks, "_AT_A_TIME", 16 * MIB)
    assert model.batch == 6
    images = np.random.default_rng(1).integers(0, 256, (50, 784), dtype=np.uint8)
    sums: list[np.ndarray] = []
    product = model.cpu("popcount")
    assert peak(lambda: sums.append(model.sums(images, product))) < 20 * MIB
    one_by_one = [model.sums(image[None], product)[0] for image in images]
    assert np.array_equal(sums[0], one_by_one)
    labels = np.arange(50) % 10
    by_parts, whole = judge(model, images, labels, product), decide(model.settings, sums[0], labels)
    assert (by_parts.argmax, by_parts.strict) == (whole.argmax, whole.strict)
    assert by_parts.confusion is not None and whole.confusion is not None
    assert np.array_equal(by_parts.confusion, whole.confusion)
    assert peak(lambda: detect(model, picture, stride=1, product=product)) < 20 * MIB
    assert peak(lambda: model.signs(0)) < 70 * MIB  # 30 MiB as bytes


def test_sums_that_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitwright.base.memory.machine_memory", lambda: 10_000)
    with pytest.raises(DataError, match="sums of 300 images and 10 classes do not fit"):
        network(784, 4, 10).sums(np.zeros((300, 784), np.uint8))


def test_the_reader_of_networks_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network(784, 4, 10).save(tmp_path / "net.safetensors")
    monkeypatch.setattr("bitwright.base.bounded.SECONDS", 0.0)
    monkeypatch.setattr(networks, "_opened", lambda *_: _busy())
    with pytest.raises(DataError, match="takes more than"):
        Model.load(tmp_path / "net.safetensors")


def _busy() -> None:
    begin = time.process_time()
    while time.process_time() < begin + 20:
        pass


def test_a_frame_has_one_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 12 million rows of five bytes decoded its picture again: 36 minutes and 25 GB."""
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "a", "PNG")
    (tmp_path / LABELS).write_text("file,label,guess\na,3,\n")
    assert [label for _, label in labelled(tmp_path, (28, 28), 10)] == [3]
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "./a", "b"):
        (tmp_path / LABELS).write_text(f"file,label,guess\na,3,\n{name},4,\n")
        with pytest.raises(DataError, match="has a label already, as 'a'"):
            labelled(tmp_path, (28, 28), 10)
    (tmp_path / LABELS).write_text("file,label,guess\na,3,\n")
    monkeypatch.setattr("bitwright.base.bounded.SECONDS", 0.0)
    monkeypatch.setattr("bitwright.papers.bnn_soc.stream._picture", lambda *_: _busy())
    with pytest.raises(DataError, match="takes more than"):
        labelled(tmp_path, (28, 28), 10)


@pytest.mark.parametrize("value", [5e-324, 1e-31, -1.0, math.nan])
def test_a_rate_is_divided_by_a_figure(value: float) -> None:
    with pytest.raises(RecipeError, match="rate_constant"):
        Settings(rate_constant=value)
    assert Settings(rate_constant=0.0).rate_scale_of(0) == Settings().rate_scale
    assert math.isfinite(Settings(rate_constant=1e-30).rate_scale_of(0))


# --- costs and devices ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("macs_per_cycle = 16 ", "macs_per_cycle = 5e-324 "),
        ("macs_per_cycle = 16 ", "macs_per_cycle = 1e308 "),
        ("macs_per_cycle = 16 ", "efficiency = 5e-324\nmacs_per_cycle = 16 "),
        ("pj_per_mac = 78 ", "pj_per_mac = 1e308 "),
        ("bytes_per_second = 25.6e9", "bytes_per_second = 5e-324"),
        ("idle_watts = 2.2\nfull_watts = 8.75", "idle_watts = 1e308\nfull_watts = 1e308"),
        ("clock_ghz = 3.5", "clock_ghz = 1e308"),
        ("cores = 2", "cores = 9223372036854775807"),
        ("launch_seconds = 5e-6", "launch_seconds = 1e308"),
    ],
)
def test_a_device_has_figures_of_a_machine(old: str, new: str, tmp_path: Path) -> None:
    text = (ROOT / "src/bitwright/low_precision/costs/devices/epyc-avx2.toml").read_text()
    assert text.count(old) == 1
    path = tmp_path / "device.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(TargetError, match=new.split(maxsplit=1)[0]):
        load_device(path)


def _costs(path: Path, rest: object, steps: int = 1) -> Path:
    levels = [{"name": name, "products": rest} for name in ("int8", "float32")]
    about = {"name": "x", "source": "given", "steps": steps, "rest": rest, "level": levels}
    path.write_text(json.dumps(about))
    return path


@pytest.mark.parametrize(
    "rest", [1e308, 5e-324, {"value": 1.0, "joules": 1e308}, {"value": 1.0, "spread": 1e200}]
)
def test_costs_are_figures_that_can_be_added(rest: object, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="rest"):
        read_costs(_costs(tmp_path / "costs.json", rest))
    with pytest.raises(RecipeError, match="steps"):
        read_costs(_costs(tmp_path / "costs.json", 1.0, 10**400))


@pytest.mark.parametrize("seconds", [0.0, 1e-100, 1e100])
def test_what_is_forecast_is_json(seconds: float, tmp_path: Path) -> None:
    """Where nothing takes any time, nothing is so many times faster."""
    found = read_costs(_costs(tmp_path / "costs.json", seconds, 1 << 40))
    for one in compare(found.table, [parse_schedule("int8:100000,float32:1")]):
        json.dumps(one.to_json(), allow_nan=False)


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (Column("x", "x", Kind.NUMBER),)
    table = Table("t", columns, ({"x": math.inf}, {"x": math.nan}, {"x": 1.5}))
    Output(True).value({"tables": [table.to_json()], "pair": (-math.inf, 2)})
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [row["x"] for row in told["tables"][0]["rows"]] == [None, None, 1.5]
    assert told["pair"] == [None, 2]
    assert value_from_json({"value": None, "error": None}) is None


# --- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["part", "package", "speed"])
def test_a_word_of_a_target_is_no_option(field: str, tmp_path: Path) -> None:
    """``package = "--run"`` went to the program that places."""
    target = load_target("ecp5-25k")
    path = tmp_path / "mine.toml"
    text = (ROOT / "src/bitwright/build/targets/ecp5-25k.toml").read_text()
    old = f'{field} = "{getattr(target, field)}"'
    assert text.count(old) == 1
    path.write_text(text.replace(old, f'{field} = "--run"'))
    with pytest.raises(TargetError, match=field):
        load_target(path)
    assert load_target("xc7z020").speed == "-1"  # a grade, not an option


@pytest.mark.parametrize("count", [1, 4])
def test_a_board_gives_as_many_values_as_its_graph(count: int) -> None:
    """One value was spread over all: 30 were "compared" where 5 had come; 4 were a traceback."""
    builder = GraphBuilder("g", INTEGER)
    builder.input("x", parse_type("uint4[4] * 0x1p-4 in [0,15]"))
    weights = {"weight": np.zeros((6, 4), np.int64)}
    kinds = {"weight_format": "int8", "weight_scale": (1.0,)}
    graph = builder.finish(builder.add("dense", ("x",), attrs=kinds, params=weights))
    levels = np.ones((5, 4), np.int64)
    (name,) = graph.outputs
    assert _compare(graph, levels, {name: np.zeros((5, 6), np.int64)}) == (30, 0)
    with pytest.raises(GraphError, match=f"gives {count} values .* the graph 6"):
        _compare(graph, levels, {name: np.zeros((5, count), np.int64)})
