# SPDX-License-Identifier: Apache-2.0
"""`bitwright import`: a file of another framework -> a folder with the network and a report.

A quantized ONNX file becomes an integer graph, with a target RTL too; a file of Caffe, Keras or
safetensors a float model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitwright.base.bounded import bounded
from bitwright.base.errors import (
    DataError,
    GraphError,
    ModelError,
    RecipeError,
    RunError,
)
from bitwright.base.files import atomic_write, check_free, json_text
from bitwright.base.folders import make_folder, make_way, remove_folder
from bitwright.base.memory import MOST_OF_A_FILE
from bitwright.base.progress import Progress, no_progress
from bitwright.base.regular import open_regular
from bitwright.ir import Graph, TensorType, save_graph
from bitwright.ir.footprint import frames_within
from bitwright.ir.levels import varied, varied_levels
from bitwright.models.catalog import MODEL_FILES, WEIGHT_FILES, ModelSpec
from bitwright.pipeline.designs import steps
from bitwright.pipeline.designs.folder import (
    GRAPH,
    INPUT,
    LOCK,
    SETTINGS,
    Design,
    alone_in,
    parse_settings,
)
from bitwright.pipeline.run_files import MODEL
from bitwright.pipeline.steps.levels import LEVELS
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult

if TYPE_CHECKING:
    from bitwright.interop.model_files import LoadedModel
    from bitwright.interop.onnx.reader import Imported

REPORT = "import.json"
Shape = tuple[int, int, int]
_CHECK_FRAMES = 4
_SIMULATED = 3
#: Bytes of random images that the file itself is run on.
_MOST_IMAGES = MOST_OF_A_FILE // 2
_COPIES = 8  # of an output, by both evaluations and while they are compared


def is_model_file(path: Path) -> bool:
    """Whether `import_model` reads a file: one with these endings, of ONNX a float network.

    Raises:
        DataError, ModelError: an ONNX file that is damaged.
    """
    if path.suffix.lower() == ".onnx":
        from bitwright.interop.onnx.float_network import is_float_file

        found: bool = is_float_file(path)
        return found
    return path.name.lower().endswith((*MODEL_FILES, *WEIGHT_FILES))


def import_graph(  # noqa: PLR0913 - each is one thing that a file may leave open
    path: Path,
    out: Path,
    *,
    input_type: str | None = None,
    input_scale: float = 1.0,
    input_layout: str | None = None,
    hardware: Mapping[str, Any] | None = None,
    simulate: int = 0,
    compare: int = 0,
    force: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Import an ONNX file into a folder: the integer graph and a report, with a target RTL too.

    Args:
        out: gets ``graph.bwg``, ``import.json``, and with hardware ``map/rtl/`` and the folding: a
            design folder (`pipeline.designs`).
        input_type, input_scale, input_layout: see `bitwright.interop.onnx.reader.load`.
        hardware: the section ``hardware`` of a recipe: target, target_fps, ...; None writes no RTL.
        simulate: how many random frames the RTL is compared on, besides the mapping's check.
        compare: how many random images the file itself is run on, by QONNX's executor, against the
            graph; the labels must be equal.
        force: replace an earlier import.

    Returns:
        The report, as plain values.

    Raises:
        DataError, ModelError: the file cannot be imported; nothing is written.
        MismatchError: the file gives other labels than the graph; nothing is written.
        RunError: the folder holds something else, or an earlier import without ``force``, or
            another process works in it.
        ToolError: comparing needs QONNX, which is not installed.
        TargetError: it does not fit the target; the graph is kept.
    """
    from bitwright.interop.onnx.reader import load
    from bitwright.lower import optimise

    sections = {"hardware": dict(hardware or {}), "simulate": {"images": max(simulate, _SIMULATED)}}
    settings = parse_settings(sections, "hardware")
    if simulate and hardware is None:
        raise RecipeError("simulating needs RTL", where="--simulate", hint="name a --target")
    _check_place(out, force)
    progress("importing", 0, 0)
    imported = load(
        path,
        input_type=input_type,
        input_scale=input_scale,
        input_layout=input_layout,
        optimised=False,
    )
    graph = bounded(lambda: optimise(imported.graph, check=_CHECK_FRAMES), path, made=True)
    report = _graph_report(path, imported, graph)
    if compare:
        progress("running the file itself", 0, compare)
        report["compared"] = _compare_with_file(path, imported, compare)
    with _alone_in(out, force):
        save_graph(graph, out / GRAPH)
        _drop_earlier(out, path, {GRAPH})
        _write_report(out, report)
        if hardware is not None:
            design = Design(out, graph, settings)
            design.save()
            report["hardware"] = _hardware(design, simulate > 0, progress)
            _write_report(out, report)
    return report


def import_model(  # noqa: PLR0913 - each is one thing that a file may leave open
    path: Path,
    out: Path,
    *,
    weights: Path | None = None,
    model: str | None = None,
    classes: int | None = None,
    input_shape: Shape | None = None,
    output: str | None = None,
    ignore_extra: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Import a float model into a folder: ``model.safetensors`` and a report.

    Args:
        path: a model's file, or one of weights alone with ``model``.
        weights: of a ``.prototxt``; by default the ``.caffemodel`` beside it.
        model: a name of the zoo or ``package.module:factory`` that the weights belong to; it needs
            ``input_shape``, and a classifier ``classes``.
        input_shape: (H, W, C) of an image.
        output: the layer to end at.
        ignore_extra: accept numbers for layers that the prototxt does not have.
        force: replace an earlier import.

    Returns:
        The report, as plain values.

    Raises:
        DataError, ModelError: the file is damaged or cannot be understood; nothing is written.
        RunError: the folder holds something else, or an earlier import without ``force``, or
            another process works in it.
    """
    _check_place(out, force)
    _check_files_open(path, weights, model, input_shape)
    from bitwright.interop.model_files import (
        LoadedModel,
        load_model,
        model_from_spec,
    )
    from bitwright.interop.network import InputConvention

    if model is None or input_shape is None:
        loaded = load_model(
            path, weights=weights, input_shape=input_shape, output=output,
            ignore_extra=ignore_extra,
        )  # fmt: skip
    else:
        spec = ModelSpec(name=model, weights=path if weights is None else weights)
        module = model_from_spec(spec, classes, input_shape)
        loaded = LoadedModel(module.eval(), input_shape, InputConvention())
    with _alone_in(out, force):
        return _write_model(path, out, loaded)


def _write_model(path: Path, out: Path, loaded: LoadedModel) -> dict[str, Any]:
    """The model, its integer graph if it has one, and the report, which is given."""
    from bitwright.interop.model_files import save_model, save_network
    from bitwright.interop.packed_model import converted

    if loaded.network is None:
        save_model(
            loaded.model, "safetensors", out / MODEL, loaded.input_shape,
            convention=loaded.convention,
        )  # fmt: skip
    else:
        save_network(loaded.network, "safetensors", out / MODEL)
    report, made = _model_report(path, loaded), {MODEL}
    if loaded.quant:
        report |= {"quant": dict(loaded.quant)}
        try:
            graph = bounded(lambda: integer_graph(converted(loaded)), path, made=True)
        except (GraphError, ModelError) as error:
            report |= {"integers": str(error)}
        else:
            save_graph(graph, out / GRAPH)
            made.add(GRAPH)
            report |= {"integers": "all", "graph": graph.name, "digest": graph.digest}
    _drop_earlier(out, path, made)
    _write_report(out, report)
    return report


def import_packed(path: Path, out: Path, *, force: bool = False) -> dict[str, Any]:
    """Import a packed model into a folder: its integer graph and a report.

    Raises:
        DataError, ModelError: the file is damaged, or its model has no integers.
        RunError: the folder holds something else, or an earlier import without ``force``, or
            another process works in it.
    """
    from bitwright.interop.packed_model import load_packed_model

    _check_place(out, force)
    quantized = load_packed_model(path)
    graph = bounded(lambda: integer_graph(quantized), path, made=True)
    report = {
        "file": path.name,
        "kind": "quantized model",
        "input_shape": list(quantized.input_shape),
        "quant": dict(quantized.quant),
        "graph": graph.name,
        "digest": graph.digest,
        "layers": _graph_layers(graph),
        "notes": [],
    }
    with _alone_in(out, force):
        save_graph(graph, out / GRAPH)
        _drop_earlier(out, path, {GRAPH})
        _write_report(out, report)
    return report


def integer_graph(quantized: LoadedModel) -> Graph:
    """The optimised integer graph of a quantized model.

    Raises:
        GraphError, ModelError: an operand has no integers.
    """
    from bitwright.lower import optimise
    from bitwright.quantize import Policy, apply

    height, width, channels = quantized.input_shape
    policy, shape = Policy.from_dict(quantized.quant), (channels, height, width)
    integers = apply(quantized.model, policy, "freeze", sample_shape=shape)
    graph: Graph = optimise(integers.graph, check=_CHECK_FRAMES)
    return graph


def _write_report(out: Path, report: Mapping[str, Any]) -> None:
    atomic_write(out / REPORT, json_text(report, indent=1) + "\n")


@contextmanager
def _alone_in(out: Path, force: bool) -> Iterator[None]:
    """Hold an import's folder, made if need be. What was free when this import began to read its
    file may be another's by now: it is asked again of a folder that is held.
    """
    make_way(out)
    make_folder(out)
    with alone_in(out):
        _check_place(out, force)
        yield


def _check_place(out: Path, force: bool) -> None:
    """`RunError` if a folder holds anything but an earlier import, or one that is not to go."""
    holds = out.is_dir() and any(entry.name != LOCK for entry in out.iterdir())
    if (holds or (out.exists() and not out.is_dir())) and not (out / REPORT).is_file():
        raise RunError(
            "is there already and was not made by `bitwright import`",
            where=str(out),
            hint="name another folder",
        )
    check_free(out, force=force, what="an import with", but=(LOCK,))


def _drop_earlier(out: Path, source: Path, made: Set[str]) -> None:
    """Drop what an earlier import left and this one has not made; never the file that it reads."""
    for name in (steps.MAP, steps.SIMULATE, steps.IMPLEMENT, steps.REPORT):
        remove_folder(out / name)
    for name in {SETTINGS, LEVELS, INPUT, GRAPH, MODEL} - made:
        if (out / name).resolve() != source.resolve():
            (out / name).unlink(missing_ok=True)


def _check_files_open(
    path: Path, weights: Path | None, model: str | None, input_shape: Shape | None
) -> None:
    """What is missing is said before torch is loaded, which takes seconds."""
    if model is not None:
        if input_shape is None:
            raise RecipeError(
                "a model by name needs the shape of its images",
                where="--model",
                hint="name it: --input-shape HxWxC",
            )
        files: tuple[Path, ...] = (path if weights is None else weights,)
    else:
        spec = ModelSpec(name=str(path), weights=weights)
        if not spec.is_file:
            raise RecipeError(
                f"{path.name} is no model, only its weights",
                where=str(path),
                hint="say which model they belong to: --model NAME --input-shape HxWxC; files that "
                f"hold a model end in {', '.join(MODEL_FILES)}",
            )
        files = spec.files
    for file in files:
        try:
            open_regular(file).close()
        except OSError as error:
            raise DataError(
                f"cannot be read: {error.strerror}",
                where=str(file),
                hint="name the file with --weights" if file != path else "check the path",
            ) from None


def _model_report(path: Path, loaded: LoadedModel) -> dict[str, Any]:
    network, layers = loaded.network, []
    if network is not None:
        layers = [
            {
                "name": layer.name,
                "op": type(layer.op).__name__.lower(),
                "from": ", ".join(layer.inputs),
                "output": " x ".join(map(str, network.shapes[layer.name])),
                "parameters": sum(values.size for values in layer.arrays.values()),
                "notes": dict(layer.notes),
            }
            for layer in network.layers
        ]
    return {
        "file": path.name,
        "model": MODEL,
        "kind": "float model",
        "input_shape": list(loaded.input_shape),
        "input": loaded.convention.to_json(),
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "layers": layers,
    }


def _graph_report(path: Path, imported: Imported, graph: Graph) -> dict[str, Any]:
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
        "layers": _graph_layers(graph),
        "nodes": [asdict(row) for row in imported.rows],
        "activation_steps": imported.steps,
        "steps_elsewhere_in_float32": imported.ties,
        "notes": list(imported.notes),
    }


def _graph_layers(graph: Graph) -> list[dict[str, str]]:
    return [
        {"name": n.name, "op": n.op, "from": n.source, "output": _brief(graph.types[n.output])}
        for n in graph
    ]


def _brief(kind: TensorType) -> str:
    """A type in a few words: shape, format, interval."""
    shape = " x ".join(map(str, kind.shape))
    name = "int" if kind.format is None else kind.format.name
    return f"{shape}, {name}, {kind.lo} .. {kind.hi} ({kind.wire_bits} bits)"


def _hardware(design: Design, simulated: bool, progress: Progress) -> dict[str, Any]:
    """Map what was imported, and prove it on random frames."""
    from bitwright.pipeline.steps.rates import rate_rows
    from bitwright.pipeline.steps.results_run import Results

    mapped = load_result(MapResult, steps.map_design(design, progress))
    facts: dict[str, Any] = {
        "target": mapped.target,
        "interval": mapped.interval,
        "latency": mapped.latency,
        "resources": mapped.resources.to_json(),
        "lut_kind": mapped.lut_kind,
        "rates": [row.model_dump(mode="json") for row in rate_rows(Results(map=mapped))],
        "source": "model",
        "simulated_frames": 0,
        "proof": "",
    }
    if simulated:
        proof = load_result(steps.ProofResult, steps.simulate_design(design, progress))
        facts |= {"simulated_frames": proof.images, "compared_values": proof.compared_values}
        facts |= {"proof": steps.proof_words(proof)}
    return facts


def _compare_with_file(path: Path, imported: Imported, images: int) -> dict[str, Any]:
    """On as many images as were wished for, fewer of large ones."""
    from bitwright.interop.onnx.reader.compare import BATCH, compare, original_outputs

    made = sum(imported.graph.types[output.edge].size for output in imported.outputs)
    size = 8 * max(math.prod(imported.input_shape), _COPIES * made)
    images = min(images, max(1, _MOST_IMAGES // size))
    batch = frames_within(imported.graph, BATCH, MOST_OF_A_FILE, str(path))
    rng, edge = np.random.default_rng(0), imported.graph.only_input
    kind = imported.graph.types[edge]
    if imported.source is None:  # the graph takes levels, and the file the reals that they mean
        given = imported.arranged(varied_levels(kind, images, rng))
        drawn = given * kind.scale[0]
    else:
        low, high = imported.reals_of_levels()
        frames = low + (high - low) * varied((images, *kind.shape), rng)
        given = drawn = imported.arranged(frames.astype(np.float32))
    seen = len(np.unique(imported.levels(given)))
    found = compare(imported, given, original_outputs(path, drawn, batch=batch), batch=batch)
    found.require()
    return {
        "images": found.images,
        "input_levels": seen,
        "labels_that_differ": found.labels,
        "labels_that_tie": found.ties,
        "scores_that_differ": found.scores,
        "largest_difference": found.largest,
    }
