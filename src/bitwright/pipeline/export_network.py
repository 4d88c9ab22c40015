# SPDX-License-Identifier: Apache-2.0
"""`bitwright export`: the network of a run, an imported folder or a file -> a file, run again.

The integer graph as QONNX, as QDQ ONNX or as the integer artefact; the float model as a file of
Caffe, Keras or safetensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bitwright.base.bounded import bounded
from bitwright.base.claims import claimed
from bitwright.base.errors import BitwrightError, MismatchError, RecipeError, RunError
from bitwright.base.folders import own_file
from bitwright.base.memory import room_for
from bitwright.base.trust import importable
from bitwright.ir import INTEGER, Graph, IntArray, load_graph
from bitwright.models.catalog import MODEL_FORMATS, PACKED
from bitwright.pipeline.designs.folder import GRAPH
from bitwright.pipeline.import_network import Shape, integer_graph
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.run_files import MODEL, is_run, recipe_folder
from bitwright.pipeline.steps.levels import LEVELS, read_inputs
from bitwright.pipeline.steps.names import step_folder

if TYPE_CHECKING:
    from torch import nn

    from bitwright.interop.model_files import LoadedModel
    from bitwright.interop.network import InputConvention, Network
    from bitwright.pipeline.steps.workspace import Workspace

T = TypeVar("T")

PACKED_FORMAT = "packed"
GRAPH_FORMATS = ("qonnx", "qdq", "artifact")
_GOLDEN = 2
_EXPORT_IMAGES = 20
_IMAGES = 2
_IMAGE_AXES = 3
_ROUNDING = 1e-5  # of the largest output, in float32


def export_network(
    source: Path,
    kind: str,
    out: Path,
    *,
    input_shape: Shape | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write a network in one of `GRAPH_FORMATS`, `MODEL_FORMATS`, or packed.

    See `export_graph`, `export_model`, `export_packed`, which replace what is there.

    Args:
        input_shape: (H, W, C) of an image, where a float model's file leaves it open.
        force: replace what is there.

    Raises:
        RecipeError: an unknown kind, or a shape for what has one: an integer graph.
        RunError: something is there already, or another command is about to write it.
    """
    places = (out, out.with_suffix(".caffemodel")) if kind == "caffe" else (out,)
    if input_shape is not None and (kind in GRAPH_FORMATS or source.is_dir()):
        raise RecipeError(
            "is of the file of a float model, which may leave it open",
            where="--input-shape",
            hint="an integer graph, a run and an imported folder know it; leave it out",
        )
    with claimed(*places, force=force):
        if kind in GRAPH_FORMATS:
            return export_graph(source, kind, out)
        if kind in MODEL_FORMATS:
            return export_model(source, kind, out, input_shape)
        if kind == PACKED_FORMAT:
            return export_packed(source, out, input_shape)
    known = ", ".join((*GRAPH_FORMATS, *MODEL_FORMATS, PACKED_FORMAT))
    raise RecipeError(f"no format {kind!r}", where="--format", hint=known)


def _of_a_file(made: Callable[[], T], source: Path, name: str, *, asked: bool = False) -> T:
    """What is made of a file behind its reader, or of one of this name in a folder that is no run,
    which may be a stranger's: with a bound of memory (`base.bounded`), if its size is not what the
    user ``asked`` for.
    """
    if asked or is_run(source):
        return made()
    return bounded(made, source if source.is_file() else source / name, made=True)


def export_graph(source: Path, kind: str, out: Path) -> dict[str, Any]:
    """Write a graph as QONNX, as QDQ ONNX, or as the integer artefact, each proven before.

    Args:
        source: see `read_graph`; a run's real images are part of the proof.
        kind: one of `GRAPH_FORMATS`.
        out: the file, or for an artefact the folder.

    Raises:
        MismatchError: what was written computes something else; nothing is left.
        GraphError: its numbers do not fit the format.
    """
    from bitwright.interop.artifact import export_artifact
    from bitwright.interop.onnx.export_qdq import export_qdq
    from bitwright.interop.onnx.export_qonnx import export_qonnx

    graph, feeds = read_graph(source)
    room = room_for(chosen=is_run(source))
    done: Any
    more: dict[str, Any] = {}
    if kind == "artifact":
        some = None if feeds is None else {edge: v[:_GOLDEN] for edge, v in feeds.items()}
        done = _of_a_file(lambda: export_artifact(graph, out, feeds=some, room=room), source, GRAPH)
        more = {"bytes": dict(done.files), "arena_bytes": done.arena_bytes}
    else:
        export: Any = export_qonnx if kind == "qonnx" else export_qdq
        done = _of_a_file(lambda: export(graph, out, feeds=feeds, room=room), source, GRAPH)
        more = {"bytes": {out.name: out.stat().st_size}}
    return {
        "format": kind,
        "path": str(out),
        "digest": graph.digest,
        **more,
        "frames": done.frames,
        "compared_values": done.values,
    }


def export_model(
    source: Path, kind: str, out: Path, input_shape: Shape | None = None
) -> dict[str, Any]:
    """Write the float model of a run, of an imported folder or of a file for another framework.

    What was written is read back and compared before the call returns: layers, wiring and numbers
    by ``==`` (`interop.same_network`). If they differ, the files are removed.

    Raises:
        MismatchError: what was written computes something else: a bug.
        ModelError: something has no counterpart there; nothing is written.
        RunError: the source holds no float model (yet).
    """
    from bitwright.interop.model_files import save_model, save_network
    from bitwright.interop.network_from_torch import network_of
    from bitwright.interop.network_to_torch import module_of

    loaded = read_model(source, input_shape)
    _check_ending(out, MODEL_FORMATS[kind])
    model, network = loaded.model, loaded.network

    def made() -> tuple[Network | None, Sequence[Path]]:
        found = network
        if found is None and (kind != "safetensors" or loaded.spec is None):
            found = network_of(model, loaded.input_shape, convention=loaded.convention)
            _check_outputs(model, module_of(found), loaded.input_shape, str(source))
        if found is not None:
            paths = save_network(found, kind, out)
        else:
            paths = save_model(
                model, kind, out, loaded.input_shape,
                convention=loaded.convention, spec=loaded.spec,
            )  # fmt: skip
        try:
            with _modules_of(source):
                _check_written(loaded, found, out)
        except BaseException:
            for path in paths:
                path.unlink(missing_ok=True)
            raise
        return found, paths

    written, paths = _of_a_file(made, source, MODEL, asked=input_shape is not None)
    return {
        "format": kind,
        "path": str(out),
        "bytes": {path.name: path.stat().st_size for path in paths},
        "parameters": sum(p.numel() for p in model.parameters()),
        "compared_values": written.parameters()
        if written is not None
        else sum(values.numel() for values in model.state_dict().values()),
    }


def _check_ending(out: Path, endings: tuple[str, ...]) -> None:
    if not out.name.lower().endswith(endings):
        raise RecipeError(
            f"{out.name} does not end in {' or '.join(endings)}",
            where="--out",
            hint=f"such as {out.stem or 'model'}{endings[0]}",
        )


def export_packed(source: Path, out: Path, input_shape: Shape | None = None) -> dict[str, Any]:
    """Write the quantized model of a run, or of a file that says its formats, weights as codes.

    It is read back and its integer graph compared before the call returns.

    Raises:
        MismatchError: what was written computes something else: a bug; nothing is left.
        ModelError: the model has no integers.
        RunError: the source holds no quantized model (yet).
    """
    from bitwright.interop.packed_model import load_packed_model, save_packed_model

    _check_ending(out, (PACKED,))
    packed = read_quantized(source, input_shape)
    asked = input_shape is not None
    graph = _of_a_file(lambda: integer_graph(packed), source, MODEL, asked=asked)
    report = save_packed_model(out, packed)
    try:
        with _modules_of(source):
            same = integer_graph(load_packed_model(out, trust=None)) == graph
        if not same:
            raise MismatchError("holds another network than was written", where=str(out))
    except BitwrightError:
        out.unlink(missing_ok=True)
        raise
    return {
        "format": PACKED_FORMAT,
        "path": str(out),
        "digest": graph.digest,
        "bytes": {out.name: report.total},
        "weight_bytes": report.codes + report.tables + report.scales + report.exponents,
        "number_bytes": report.numbers,
    }


def read_quantized(source: Path, input_shape: Shape | None = None) -> LoadedModel:
    """The quantized model of a run, of a packed file, or of a file that says its formats.

    Raises:
        RunError: there is none.
    """
    from bitwright.interop.packed_model import converted, load_packed_model

    if source.suffix.lower() == PACKED:
        return load_packed_model(source)
    if is_run(source) and sorted(source.glob("*-quantize")):
        return _quantized_of_run(source)
    loaded = read_model(source, input_shape)
    if not loaded.quant:
        raise RunError(
            "holds no quantized model",
            where=str(source),
            hint="name a run directory behind its step `quantize`, or a prototxt of Ristretto",
        )
    asked = input_shape is not None
    return _of_a_file(lambda: converted(loaded), source, MODEL, asked=asked)


def _quantized_of_run(run: Path) -> LoadedModel:
    from bitwright.interop.model_files import LoadedModel, read_spec
    from bitwright.pipeline.steps.quantize import quantized_model
    from bitwright.pipeline.steps.workspace import Workspace

    work = Workspace(load_recipe(run / "recipe.yaml", base_dir=recipe_folder(run)))
    spec, shape = work.recipe.model, work.data.image_shape
    model = quantized_model(work, sorted(run.glob("*-quantize"))[0])
    loaded = LoadedModel(
        model, shape, _convention(work), None, spec.model_copy(update={"weights": None}),
        work.quant, work.num_classes,
    )  # fmt: skip
    if spec.is_file:
        layers = read_spec(spec, work.num_classes, shape)
        loaded = replace(loaded, network=layers.network, spec=layers.spec or loaded.spec)
    return loaded


def _modules_of(source: Path) -> AbstractContextManager[None]:
    """Inside, the user's modules are found as in the run that is exported."""
    return importable(*([recipe_folder(source)] if source.is_dir() else []))


def _check_written(loaded: LoadedModel, network: Network | None, out: Path) -> None:
    """Refuse a file whose model is not, number by number, the one that was written into it.

    Args:
        network: the layers that were written; none where the file names the model.

    Raises:
        MismatchError: it is another one.
    """
    from bitwright.interop.model_files import load_model
    from bitwright.interop.same_network import require_same

    written = load_model(out, trust=None)
    if network is not None:
        assert written.network is not None
        require_same(network, written.network, str(out))
        if not out.name.lower().endswith(MODEL_FORMATS["keras"]) and written.quant != loaded.quant:
            raise MismatchError("says other formats of its layers", where=str(out))
        return
    spec = loaded.spec and loaded.spec.model_copy(update={"weights": None})
    if (written.spec, written.input_shape) != (spec, loaded.input_shape):
        raise MismatchError(f"names another model: {written.spec}", where=str(out))
    for name, values in loaded.model.state_dict().items():
        # Of NaN, which is not equal to itself, nothing is written.
        if not (written.model.state_dict()[name].cpu() == values.cpu()).all():
            raise MismatchError(f"holds other numbers of {name!r}", where=str(out))
    _check_outputs(loaded.model, written.model, loaded.input_shape, str(out), exactly=True)


def _check_outputs(
    wanted: nn.Module, found: nn.Module, shape: Shape, where: str, *, exactly: bool = False
) -> None:
    """Compare two modules of equal numbers on random images: what `forward` does with them, which
    is code of the zoo or the user's own.

    Raises:
        MismatchError: they give something else.
    """
    import torch

    height, width, channels = shape
    generator = torch.Generator().manual_seed(0)
    for _ in range(_IMAGES):  # one by one: they may be large
        image = torch.rand(1, channels, height, width, generator=generator)
        with torch.no_grad():
            expected, made = wanted.eval()(image.clone()), found(image)
        if expected.shape != made.shape:  # torch would spread one value over all of them
            raise MismatchError(
                f"the outputs are {[*made.shape]}, not {[*expected.shape]}", where=where
            )
        # One layer may be computed in two ways, such as a mean of all pixels.
        room = 0.0 if exactly else _ROUNDING * float(expected.abs().max())
        difference = float((expected - made).abs().max())
        same = torch.equal(expected, made) if exactly else isfinite(room) and difference <= room
        if not same:
            raise MismatchError(
                f"the outputs differ by {difference:g}, the largest is "
                f"{float(expected.abs().max()):g}",
                where=where,
            )


def read_graph(source: Path) -> tuple[Graph, dict[str, IntArray] | None]:
    """The integer graph of a run directory, an import folder, a ``.bwg`` or an ``.onnx`` file.

    Returns:
        The graph, and the levels of some real images of a run or a design folder, if it has any.

    Raises:
        RunError: the folder holds no graph (yet), or, if it is no run, a link out of it instead.
        DataError, GraphError, ModelError: the file is broken, or cannot be imported.
    """
    _check_exists(source)
    if source.suffix.lower() == ".onnx":
        from bitwright.interop.onnx.reader import load

        return load(source).graph, None
    if not source.is_dir():
        return load_graph(source, {"integer": INTEGER}), None
    folder = next((f for f in (source, *source.glob("*-lower")) if (f / GRAPH).is_file()), None)
    if folder is None:
        raise RunError(
            "holds no integer graph",
            where=str(source),
            hint=f"run `bitwright lower {source}` first, or `bitwright import FILE.onnx`",
        )
    for name in () if is_run(source) else (GRAPH, LEVELS):
        own_file(source, str((folder / name).relative_to(source)))
    graph = load_graph(folder / GRAPH, {"integer": INTEGER}, chosen=is_run(source))
    if not (folder / LEVELS).is_file():
        return graph, None
    feeds = read_inputs(folder, graph)
    return graph, {edge: levels[:_EXPORT_IMAGES] for edge, levels in feeds.items()}


def read_model(source: Path, input_shape: Shape | None = None) -> LoadedModel:
    """The float model of a run directory, of a folder that `import` made, or of a file.

    Args:
        input_shape: (H, W, C), where a file leaves it open.

    Raises:
        RunError: there is none, or a link out of its folder.
        DataError, ModelError: the file is damaged or cannot be understood.
    """
    from bitwright.interop.model_files import LoadedModel, load_model

    _check_exists(source)
    if not source.is_dir():
        return load_model(source, input_shape=input_shape)
    if (source / MODEL).is_file():
        return load_model(own_file(source, MODEL))
    work, model = trained_run(source)
    return LoadedModel(model, work.data.image_shape, _convention(work), spec=None)


def trained_run(run: Path, data: Path | None = None) -> tuple[Workspace, nn.Module]:
    """A run directory at work, and its float model.

    Args:
        data: where its data set lies, if no longer where the recipe says.

    Raises:
        RunError: it is no run directory, or has not been trained yet.
    """
    from bitwright.pipeline.steps.train import trained_model
    from bitwright.pipeline.steps.workspace import Workspace

    base, folder = recipe_folder(run), run / step_folder("train")
    if not (is_run(run) and (folder / "step.json").is_file()):
        raise RunError(
            "holds no trained model", where=str(run), hint=f"run `bitwright train {run}` first"
        )
    work = Workspace(load_recipe(run / "recipe.yaml", data_dir=data, base_dir=base))
    return work, trained_model(work, folder)


def _convention(work: Workspace) -> InputConvention:
    from bitwright.interop.network import InputConvention

    if len(work.data.image_shape) != _IMAGE_AXES:
        raise RunError(
            f"is a network of {work.data.train.noun}, and files of other frameworks hold networks "
            "of images here",
            where=work.recipe.name,
            hint="the run's own files (step lower: QONNX; step quantize) hold networks of any kind",
        )
    order = {1: "grey", 3: "RGB"}.get(work.data.image_shape[2], "")
    return InputConvention(order, work.data.scale)


def _check_exists(source: Path) -> None:
    if not source.exists():
        raise RunError("does not exist", where=str(source), hint="name a run directory or a file")
