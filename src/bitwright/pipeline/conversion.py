# SPDX-License-Identifier: Apache-2.0
"""Networks in and out: ONNX file -> folder with graph, report and RTL; run or graph -> file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitwright.base.errors import DataError, MismatchError, RecipeError, RunError
from bitwright.base.files import atomic_write
from bitwright.ir import INTEGER, Graph, IntArray, TensorType, load_graph, random_feeds, save_graph
from bitwright.pipeline.run import Progress, no_progress

if TYPE_CHECKING:
    from bitwright.interop.onnx.reader import Imported

GRAPH = "graph.bwg"
REPORT = "import.json"
RTL = "rtl"
FOLDING = "final_hw_config.json"
FORMATS = ("qonnx", "qdq", "artifact")
_CHECK_FRAMES = 4
_SIMULATED = 3
_GOLDEN = 2
_EXPORT_IMAGES = 20


def import_file(
    path: Path,
    out: Path,
    *,
    input_type: str | None = None,
    input_scale: float = 1.0,
    input_layout: str | None = None,
    target: str | None = None,
    simulate: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Import an ONNX file into a folder: the integer graph and a report, with a target RTL too.

    Args:
        out: gets ``graph.bwg``, ``import.json``, and with a target ``rtl/`` and the folding.
        input_type, input_scale, input_layout: see `bitwright.interop.onnx.reader.load`.
        target: a name of ``bitwright list targets``.
        simulate: how many random frames the RTL is compared on, besides the mapping's check.

    Returns:
        The report, as plain values.

    Raises:
        DataError, ModelError: the file cannot be imported; nothing is written.
        RunError: the folder holds something else.
        TargetError: it does not fit the target; the graph is kept.
    """
    from bitwright.interop.onnx.reader import load
    from bitwright.lower import optimise

    if simulate and target is None:
        raise RecipeError("simulating needs RTL", where="--simulate", hint="name a --target")
    check_place(out)
    progress("importing", 0, 0)
    imported = load(
        path,
        input_type=input_type,
        input_scale=input_scale,
        input_layout=input_layout,
        optimised=False,
    )
    graph = optimise(imported.graph, check=_CHECK_FRAMES)
    report = _report(path, imported, graph)
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / RTL, ignore_errors=True)  # of an earlier import
    (out / FOLDING).unlink(missing_ok=True)
    save_graph(graph, out / GRAPH)
    atomic_write(out / REPORT, json.dumps(report, indent=1) + "\n")
    if target is not None:
        report["hardware"] = _hardware(graph, out, target, simulate, progress)
        atomic_write(out / REPORT, json.dumps(report, indent=1) + "\n")
    return report


def check_place(out: Path) -> None:
    """`RunError` if a folder holds anything but an earlier import, which is replaced."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / REPORT).is_file():
        raise RunError(
            "is there already and was not made by `bitwright import`",
            where=str(out),
            hint="name another folder",
        )


def _report(path: Path, imported: Imported, graph: Graph) -> dict[str, Any]:
    return {
        "file": path.name,
        "graph": graph.name,
        "digest": graph.digest,
        "input": {
            "shape": list(imported.input_shape),
            "levels": _brief(graph.types[graph.inputs[0]]),
            "quantized_by": "the host, as the file says" if imported.source else "the caller",
        },
        "outputs": [
            {"file": o.name, "edge": o.edge, "levels": _brief(graph.types[o.edge])}
            for o in imported.outputs
        ],
        "layers": [
            {"name": n.name, "op": n.op, "from": n.source, "output": _brief(graph.types[n.output])}
            for n in graph
        ],
        "nodes": [asdict(row) for row in imported.rows],
        "activation_steps": imported.steps,
        "steps_elsewhere_in_float32": imported.ties,
        "notes": list(imported.notes),
    }


def _brief(kind: TensorType) -> str:
    """A type in a few words: shape, format, interval."""
    shape = " x ".join(map(str, kind.shape))
    name = "int" if kind.format is None else kind.format.name
    return f"{shape}, {name}, {kind.lo} .. {kind.hi} ({kind.wire_bits} bits)"


def _hardware(
    graph: Graph, out: Path, name: str, simulate: int, progress: Progress
) -> dict[str, Any]:
    from bitwright.build.target import load_target
    from bitwright.hw import folding_of
    from bitwright.pipeline.recipe import HardwareSection
    from bitwright.pipeline.steps.map import choose_mapping, describe_mapping
    from bitwright.rtl.emit import emit

    wanted, target = HardwareSection(target=name), load_target(name)
    hardware = choose_mapping(graph, wanted, target, progress)
    feeds = random_feeds(graph, _CHECK_FRAMES, np.random.default_rng(0))
    _require_equal(graph, graph.run(feeds), hardware.run(feeds), "the hardware graph")
    progress("writing the RTL", 0, 0)
    emit(hardware, out / RTL)
    folding_of(hardware).save(out / FOLDING)
    mapped = describe_mapping(hardware, target, wanted.clock_mhz)
    facts: dict[str, Any] = {
        "target": name,
        "interval": mapped.interval,
        "latency": mapped.latency,
        "resources": mapped.resources.to_json(),
        "source": "model",
        "simulated_frames": simulate,
    }
    if simulate:
        progress("simulating", 0, simulate)
        _simulate(graph, out / RTL, simulate)
    return facts


def _simulate(graph: Graph, rtl: Path, frames: int) -> None:
    from bitwright.sim import Simulator

    simulator = Simulator.build(rtl)
    count = max(frames, _SIMULATED)
    feeds = random_feeds(graph, count, np.random.default_rng(1))
    design = simulator.design
    ports = {p.name: feeds[edge] for p, edge in zip(design.inputs, graph.inputs, strict=True)}
    result = simulator.run(simulator.pack(ports), count, None)
    found = {
        edge: result.levels[p.name] for p, edge in zip(design.outputs, graph.outputs, strict=True)
    }
    _require_equal(graph, graph.run(feeds), found, "the simulated RTL")


def _require_equal(
    graph: Graph, expected: Mapping[str, IntArray], found: Mapping[str, IntArray], what: str
) -> None:
    for edge in graph.outputs:
        if not np.array_equal(expected[edge], found[edge]):
            raise MismatchError(f"{what} gives other integers than the graph", where=f"edge {edge}")


def read_source(source: Path) -> tuple[Graph, dict[str, IntArray] | None]:
    """The integer graph of a run directory, an import folder, a ``.bwg`` or an ``.onnx`` file.

    Returns:
        The graph, and for a run the levels of some real images.

    Raises:
        RunError: the folder holds no graph (yet).
        DataError, GraphError, ModelError: the file is broken, or cannot be imported.
    """
    if source.is_dir():
        return _of_folder(source)
    if not source.exists():
        raise RunError("does not exist", where=str(source), hint="name a run directory or a file")
    if source.suffix.lower() == ".onnx":
        from bitwright.interop.onnx.reader import load

        return load(source).graph, None
    return load_graph(source, {"integer": INTEGER}), None


def _of_folder(folder: Path) -> tuple[Graph, dict[str, IntArray] | None]:
    if (folder / GRAPH).is_file():
        return load_graph(folder / GRAPH, {"integer": INTEGER}), None
    lowered = sorted(folder.glob("*-lower"))
    if not lowered or not (lowered[0] / GRAPH).is_file():
        raise RunError(
            "holds no integer graph",
            where=str(folder),
            hint=f"run `bitwright lower {folder}` first, or `bitwright import FILE.onnx`",
        )
    graph = load_graph(lowered[0] / GRAPH, {"integer": INTEGER})
    try:
        from bitwright.pipeline.steps.lower import read_levels

        inputs = read_levels(lowered[0])["inputs"][:_EXPORT_IMAGES]
    except (DataError, KeyError):
        return graph, None
    return graph, {graph.inputs[0]: inputs}


def export(source: Path, kind: str, out: Path) -> dict[str, Any]:
    """Write a graph as QONNX, as QDQ ONNX, or as the integer artefact, each proven before.

    Args:
        source: see `read_source`; a run's real images are part of the proof.
        kind: ``qonnx``, ``qdq`` or ``artifact``.
        out: the file, or for an artefact the folder.

    Raises:
        MismatchError: what was written computes something else; nothing is left.
        GraphError: its numbers do not fit the format.
    """
    graph, feeds = read_source(source)
    if kind == "artifact":
        from bitwright.interop.artifact import export_artifact

        some = None if feeds is None else {edge: v[:_GOLDEN] for edge, v in feeds.items()}
        done = export_artifact(graph, out, feeds=some)
        return {
            "format": kind,
            "path": str(out),
            "digest": graph.digest,
            "bytes": dict(done.files),
            "arena_bytes": done.arena_bytes,
            "frames": done.frames,
            "compared_values": done.values,
        }
    if kind == "qonnx":
        from bitwright.interop.onnx.export_qonnx import export_qonnx

        found = export_qonnx(graph, out, feeds=feeds)
        frames, values = found.frames, found.values
    elif kind == "qdq":
        from bitwright.interop.onnx.export_qdq import export_qdq

        checked = export_qdq(graph, out, feeds=feeds)
        frames, values = checked.frames, checked.values
    else:
        raise RecipeError(f"no format {kind!r}", where="--format", hint=", ".join(FORMATS))
    return {
        "format": kind,
        "path": str(out),
        "digest": graph.digest,
        "bytes": {out.name: out.stat().st_size},
        "frames": frames,
        "compared_values": values,
    }
