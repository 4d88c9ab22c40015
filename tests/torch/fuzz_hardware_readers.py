# SPDX-License-Identifier: Apache-2.0
"""Readers of files about hardware: programs, engines, processors, boards, what steps leave.

What is read is used as the program uses it: a program is checked, timed and run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.pure.test_build_carries import Netlist
from tests.torch.fuzz_reader import Reader

from bitwright.base.arrays import read_array
from bitwright.base.errors import GraphError, TargetError
from bitwright.base.figures import Figure, Resources, Source
from bitwright.base.files import atomic_write
from bitwright.base.records import EngineLayerRow
from bitwright.build.implement import ImplementResult, ToolRun, read_result
from bitwright.build.netlist_edits import edit_netlist
from bitwright.build.timing import parse_report
from bitwright.build.yosys import instance_resources, parse_statistics
from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.image import load_image
from bitwright.explore.sweep import SCHEMA as SWEEP
from bitwright.explore.sweep import check_folder
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds
from bitwright.low_precision.costs.given import read_costs
from bitwright.low_precision.log import read_log
from bitwright.papers.dpu.architecture import load_architecture
from bitwright.papers.dpu.calibration import calibrated
from bitwright.papers.dpu.compiler import compile_graph as compile_for_dpu
from bitwright.papers.dpu.cycles import works_of
from bitwright.papers.dpu.resources import find_board, require_fit
from bitwright.papers.dpu.tables import fit_table, time_tables
from bitwright.papers.fpga_training.barista.model import FLOAT32
from bitwright.papers.fpga_training.barista.search import best_kernel
from bitwright.papers.fpga_training.devices import load_board
from bitwright.papers.fpga_training.jobs import MatrixJob, Product
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.run_files import SCHEMA, recipe_folder
from bitwright.pipeline.steps.map_engine import describe_program, map_engine
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import EngineResult

PIXELS = (6, 6, 8)


@cache
def network() -> Graph:
    """A convolution, its activation, a pool, a label."""
    builder = GraphBuilder("small", INTEGER)
    kind = parse_format("uint8")
    x = builder.input("x", TensorType(PIXELS, kind, (0.5,), 0, 255))
    attrs = {"weight_format": "int8", "weight_scale": (1.0,), "padding": (1, 1, 1, 1)}
    weight = np.random.default_rng(0).integers(-9, 9, (8, 3, 3, 8))
    x = builder.add("conv", (x,), name="conv", attrs=attrs, params={"weight": weight})
    attrs = {"shift": 12, "lo": 0, "hi": 255, "format": "uint8", "scale": (1.0,)}
    params = {"multiplier": np.array([300]), "offset": np.array([1])}
    x = builder.add("requant", (x,), name="relu", attrs=attrs, params=params)
    attrs = {"weight_format": "int8", "weight_scale": (1.0,)}
    flat = builder.add("flatten", (x,))
    weight = np.random.default_rng(1).integers(-9, 9, (3, 288))
    x = builder.add("dense", (flat,), name="fc", attrs=attrs, params={"weight": weight})
    return builder.finish(x, builder.add("top_k", (x,), attrs={"k": 1}))


def _frames(count: int = 1) -> Any:
    return random_feeds(network(), count, np.random.default_rng(0))


def _program(folder: Path) -> Path:
    atomic_write(folder / "program.bwe", compile_graph(network(), ENGINES["e256"]).to_bytes())
    return folder / "program.bwe"


def _read_program(path: Path) -> object:
    """Checked, timed and run, as the step `map` does it with its own."""
    image = load_image(path)
    check_program(image.program, image.config, image.words)
    describe_program(image, HardwareSection(), chosen=False)
    feeds = {r.edge: np.zeros((1, *r.kind.shape), np.int64) + r.kind.lo for r in image.inputs}
    return image.run(feeds)


def _engine(folder: Path) -> Path:
    (folder / "engine.json").write_text(EngineConfig(pixels=2, feature_words=1 << 12).to_json())
    return folder / "engine.json"


def _read_engine(path: Path) -> object:
    wanted = HardwareSection(kind="engine", engine=str(path))
    return map_engine(network(), wanted, _frames(), path.parent / "map")


def _of_package(place: str, folder: Path) -> Path:
    import bitwright

    source = Path(bitwright.__file__).parent / place
    (folder / source.name).write_bytes(source.read_bytes())
    return folder / source.name


def _read_architecture(path: Path) -> object:
    found = load_architecture(path)
    compiled = compile_for_dpu(network(), found)
    with suppress(TargetError, GraphError):  # it is another size than the board's, or not all of it
        fit_table(require_fit(found, find_board("zcu102")))
        time_tables(works_of(compiled), found, calibrated(), range(1, 5))
    return compiled.to_json()


def _read_training_board(path: Path) -> object:
    """The best kernel for a small product on it."""
    job = MatrixJob("l", Product.FORWARD, 64, 32, 16, 1)
    return best_kernel([job], load_board(path), FLOAT32, range(4, 16), range(4, 16))


def _netlist(folder: Path) -> Path:
    one = Netlist(9)
    low = one.lut(one.inputs[:2], 0b1000)
    sums = one.adder([low, *one.inputs[2:5]], one.inputs[5:9], "0", minus=False, carry=True)
    table = {"creator": "Yosys", "modules": {"top": one.module(sums)}}
    (folder / "netlist.json").write_text(json.dumps(table))
    return folder / "netlist.json"


def _read_netlist(path: Path) -> object:
    edit_netlist(path, "ecp5")
    return instance_resources(path, "ecp5")


def _text(name: str, text: str, folder: Path) -> Path:
    (folder / name).write_text(text)
    return folder / name


def _said(parse: Callable[..., object], path: Path) -> object:
    return parse(path.read_text(errors="replace"), where=str(path))


REPORT = {
    "critical_paths": [
        {"from": "posedge clk", "to": "posedge clk", "path": [
            {"delay": 0.5, "to": {"cell": "a", "port": "Q"}, "type": "clk-to-q"},
            {"delay": 1.3, "net": "a", "sources": ["x.sv:5.2-5.7"],
             "to": {"cell": "b", "port": "A"}, "type": "routing"}]},
    ],
    "fmax": {"clk": {"achieved": 134.5, "constraint": 100.0}},
    "utilization": {"TRELLIS_COMB": {"available": 43848, "used": 623}},
}  # fmt: skip
STATISTICS = {"design": {"num_cells_by_type": {"LUT4": 559, "CCU2C": 23, "TRELLIS_FF": 149}}}
ENGINE_RESULT = EngineResult(
    engine="4x8x8", digest="00", clock_mhz=100.0, instructions=9, memory_bytes=9, cycles=9, macs=9,
    utilisation=0.5, images=2, compared_values=4,
    layers=(EngineLayerRow(name="c", busy=3, waits={"load": 2}, macs=9, utilisation=0.5),),
)  # fmt: skip
LOG = {"epoch": 1, "level": "fixed<8,3>", "reason": "r", "diversity": 1.5, "violations": 0}
COSTS = """
name = "table"
source = "given"
steps = 10
rest = 0.5
[[level]]
name = "int8"
products = [{layer = "a", product = "forward", seconds = 0.25}]
weights = {value = 0.125, spread = 0.5, note = "n"}
[[schedule]]
name = "s"
phases = "int8:3"
"""
RUN = {"schema": SCHEMA, "bitwright": "0", "seed": 0, "recipe_dir": ".."}
PLAN = {"schema": SWEEP, "recipe": "r", "bitwright": "0", "axes": {"a": [1, 2]}}


def _implemented(folder: Path) -> Path:
    none = Resources(lut=1)
    found = ImplementResult(
        "t", "p", "place-and-route", 100.0, {"lut": Figure(1.0, "LUT", Source.SYNTHESIS)}, none,
        none, none, {"i": none}, None, True, 50.0, 1, {"bitstream": "a.bit"},
        {"yosys": ToolRun("yosys", 1.0, 1.0, 5, False)}, ("n",),
    )  # fmt: skip
    return _text("implement.json", found.to_json(), folder)


def _array(folder: Path) -> Path:
    np.save(folder / "x.npy", np.arange(12).reshape(3, 4))
    return folder / "x.npy"


HARDWARE_READERS = (
    Reader("engine program", _program, _read_program, 0.5),
    Reader("engine configuration", _engine, _read_engine, 0.1),
    Reader("DPU architecture", partial(_of_package, "papers/dpu/architectures/zcu102.toml"),
           _read_architecture),
    Reader("training board", partial(_of_package, "papers/fpga_training/devices/u250.toml"),
           _read_training_board),
    Reader("netlist", _netlist, _read_netlist),
    Reader("timing report", partial(_text, "r.json", json.dumps(REPORT)),
           partial(_said, parse_report)),
    Reader("statistics", partial(_text, "s.json", json.dumps(STATISTICS)),
           partial(_said, parse_statistics)),
    Reader("engine result", partial(_text, "result.json", ENGINE_RESULT.model_dump_json()),
           lambda path: load_result(EngineResult, path.parent)),
    Reader("implementation", _implemented, read_result),
    Reader("precision log", partial(_text, "p.jsonl", json.dumps(LOG) + "\n"), read_log),
    Reader("costs", partial(_text, "c.toml", COSTS), read_costs),
    Reader("run", partial(_text, "run.json", json.dumps(RUN)),
           lambda path: recipe_folder(path.parent)),
    Reader("sweep", partial(_text, "plan.json", json.dumps(PLAN)),
           lambda path: check_folder(path.parent, "r")),
    Reader("array", _array, read_array),
)  # fmt: skip
