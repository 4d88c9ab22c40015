# SPDX-License-Identifier: Apache-2.0
"""Float models in and out: files of Caffe, Keras and safetensors, and the models of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.errors import BitwrightError, DataError, MismatchError, RecipeError, RunError
from bitwright.base.files import atomic_write
from bitwright.models.catalog import MODEL_FILES, ModelSpec
from bitwright.pipeline.conversion import REPORT, check_place

if TYPE_CHECKING:
    from torch import nn

    from bitwright.interop.model_files import LoadedModel
    from bitwright.interop.network import Network

MODEL = "model.safetensors"
FLOAT_FORMATS = ("caffe", "keras", "safetensors")
#: Endings of files with weights alone; which model they belong to has to be said.
_WEIGHTS = (".caffemodel", ".pt", ".pth")
Shape = tuple[int, int, int]
_IMAGES = 2
_TOLERANCE = 1e-5


def is_float_model(path: Path) -> bool:
    """Whether `import_model` reads a file with this ending (an ONNX file it does not)."""
    return path.name.lower().endswith((*MODEL_FILES, *_WEIGHTS))


def import_model(  # each is one thing that a file may leave open
    path: Path,
    out: Path,
    *,
    weights: Path | None = None,
    model: str | None = None,
    classes: int | None = None,
    input_shape: Shape | None = None,
    output: str | None = None,
    ignore_extra: bool = False,
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

    Returns:
        The report, as plain values.

    Raises:
        DataError, ModelError: the file is damaged or cannot be understood; nothing is written.
        RunError: the folder holds something else.
    """
    check_place(out)
    _check_files(path, weights, model, input_shape)
    from bitwright.interop.model_files import load_model, save_model

    if model is None or input_shape is None:
        loaded = load_model(
            path, weights=weights, input_shape=input_shape, output=output,
            ignore_extra=ignore_extra, build=_named_model,
        )  # fmt: skip
    else:
        loaded = _into(model, path if weights is None else weights, input_shape, classes)
    out.mkdir(parents=True, exist_ok=True)
    save_model(
        loaded.model, "safetensors", out / MODEL, loaded.input_shape,
        convention=loaded.convention,
    )  # fmt: skip
    report = _report(path, loaded)
    atomic_write(out / REPORT, json.dumps(report, indent=1) + "\n")
    return report


def _check_files(
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
            with file.open("rb"):
                pass
        except OSError as error:
            raise DataError(
                f"cannot be read: {error.strerror}",
                where=str(file),
                hint="name the file with --weights" if file != path else "check the path",
            ) from None


def _into(name: str, weights: Path, input_shape: Shape, classes: int | None) -> LoadedModel:
    from bitwright.interop.model_files import LoadedModel, load_weights
    from bitwright.interop.network import InputConvention

    spec = ModelSpec(name=name)
    module = _named_model(spec, input_shape, classes)
    load_weights(module, weights, input_shape)
    return LoadedModel(module.eval(), input_shape, InputConvention())


def _named_model(spec: ModelSpec, shape: Shape, classes: int | None = None) -> nn.Module:
    from bitwright.models import build_model

    return build_model(spec, classes, shape)


def _report(path: Path, loaded: LoadedModel) -> dict[str, Any]:
    network = loaded.network
    layers = [] if network is None else _layers(network)
    return {
        "file": path.name,
        "model": MODEL,
        "kind": "float model",
        "input_shape": list(loaded.input_shape),
        "input": loaded.convention.to_json(),
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "layers": layers,
    }


def _layers(network: Network) -> list[dict[str, Any]]:
    return [
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


def export_model(source: Path, kind: str, out: Path) -> dict[str, Any]:
    """Write the float model of a run, of an imported folder or of a file for another framework.

    The model is rebuilt from what was written and its outputs compared before the call returns; if
    they differ, the files are removed.

    Raises:
        MismatchError: what was written computes something else: a bug.
        ModelError: something has no counterpart there; nothing is written.
        RunError: the source holds no float model (yet).
    """
    from bitwright.interop.model_files import save_model

    loaded = read_model(source)
    _check_ending(kind, out)
    paths = save_model(
        loaded.model, kind, out, loaded.input_shape, convention=loaded.convention, spec=loaded.spec
    )
    difference = _check_written(loaded, out, paths)
    return {
        "format": kind,
        "path": str(out),
        "largest_difference": difference,
        "bytes": {path.name: path.stat().st_size for path in paths},
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
    }


def _check_written(loaded: LoadedModel, out: Path, paths: tuple[Path, ...]) -> float:
    """The largest difference of the outputs of the model that was written, on random images."""
    import torch

    from bitwright.interop.model_files import load_model

    height, width, channels = loaded.input_shape
    images = torch.rand(
        _IMAGES, channels, height, width, generator=torch.Generator().manual_seed(0)
    )
    try:
        again = load_model(out, build=_named_model).model.eval()
        with torch.no_grad():
            wanted, found = loaded.model.eval()(images), again(images)
        difference = float((wanted - found).abs().max())
        if not difference <= _TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise MismatchError(f"the outputs differ by {difference:g}", where=str(out))
    except BitwrightError:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
    return difference


def _check_ending(kind: str, out: Path) -> None:
    endings = {"caffe": (".prototxt",), "keras": (".h5", ".hdf5"), "safetensors": (".safetensors",)}
    if not out.name.lower().endswith(endings[kind]):
        raise RecipeError(
            f"{out.name} does not end in {' or '.join(endings[kind])}",
            where="--out",
            hint=f"such as {out.stem or 'model'}{endings[kind][0]}",
        )


def read_model(source: Path) -> LoadedModel:
    """The float model of a run directory, of a folder that `import` made, or of a file.

    Raises:
        RunError: there is none.
        DataError, ModelError: the file is damaged or cannot be understood.
    """
    from bitwright.interop.model_files import load_model

    if source.is_dir():
        if (source / MODEL).is_file():
            return load_model(source / MODEL, build=_named_model)
        return _of_run(source)
    if not source.exists():
        raise RunError("does not exist", where=str(source), hint="name a run directory or a file")
    return load_model(source, build=_named_model)


def _of_run(run: Path) -> LoadedModel:
    from bitwright.interop.model_files import LoadedModel
    from bitwright.interop.network import InputConvention
    from bitwright.pipeline.recipe import load_recipe
    from bitwright.pipeline.steps.train import trained_model
    from bitwright.pipeline.steps.workspace import Workspace

    recipe_file = run / "recipe.yaml"
    trained = sorted(run.glob("*-train"))
    if not recipe_file.is_file() or not trained:
        raise RunError(
            "holds no trained model",
            where=str(run),
            hint=f"run `bitwright train {run}` first",
        )
    recipe = load_recipe(recipe_file)
    work = Workspace(recipe)
    model = trained_model(work, trained[0])
    order = {1: "grey", 3: "RGB"}.get(work.data.image_shape[2], "")
    convention = InputConvention(order, work.data.scale)
    return LoadedModel(model, work.data.image_shape, convention, spec=None)


def facts_of(report: Mapping[str, Any]) -> str:
    """One line about an import."""
    shape = " x ".join(map(str, report["input_shape"]))
    order = report["input"]["channel_order"] or "unknown channel order"
    return f"{report['parameters']} parameters; takes {shape} ({order}), input scale " + (
        f"{report['input']['scale']:g}"
    )
