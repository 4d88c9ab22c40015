# SPDX-License-Identifier: Apache-2.0
"""The verbs that bring networks and images in and take networks out: `import`, `export` and
`database`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bitwright.base.claims import claimed
from bitwright.base.errors import RecipeError
from bitwright.cli import show
from bitwright.cli.options import Classes, Force, Json, Shape, hardware_of, parse_shape
from bitwright.cli.output import Output

ImportedFile = Annotated[
    Path,
    typer.Argument(
        help="A QONNX, QCDQ or QDQ file; a packed model (.bwq); or a float model: .prototxt "
        "(Caffe), .h5 or .keras, .safetensors."
    ),
]
Format = Literal["qonnx", "qdq", "artifact", "caffe", "keras", "safetensors", "packed"]


ImportFolder = Annotated[
    Path, typer.Option("--out", help="Folder for the graph or the model, and the report.")
]
InputType = Annotated[
    str | None, typer.Option(help="The input holds integers of this format, such as uint8 pixels.")
]
InputScale = Annotated[float, typer.Option(help="Real value of the input's 1.")]
InputLayout = Annotated[
    Literal["NCHW", "NHWC"] | None,
    typer.Option(help="Layout of the input; detected if not given."),
]
AlsoTarget = Annotated[
    str | None, typer.Option(help="Also choose a folding for this target and write RTL.")
]
Simulated = Annotated[
    int, typer.Option(min=0, help="Compare the RTL with the graph on random frames.")
]
Rate = Annotated[
    float | None, typer.Option("--fps", help="Frames a second to reach, as small as can be.")
]
Fill = Annotated[
    float | None, typer.Option("--fill", help="Share of the target to fill, as fast as can be.")
]
Budget = Annotated[
    str | None, typer.Option("--budget", help="The same in counts: lut=8000,bram=20,dsp=0.")
]
Clock = Annotated[float | None, typer.Option("--clock-mhz", help="Clock to implement for, in MHz.")]
Compared = Annotated[
    int, typer.Option(min=0, help="Run the file itself (QONNX) on random frames, too.")
]
CaffeWeights = Annotated[
    Path | None, typer.Option(help="Float models: the .caffemodel of a .prototxt.")
]
ModelName = Annotated[
    str | None,
    typer.Option(help="Float models: the zoo's name or module:function of these weights."),
]
LastLayer = Annotated[
    str | None, typer.Option("--output", help="Float models: the layer to end at.")
]
IgnoreExtra = Annotated[
    bool, typer.Option("--ignore-extra", help="Caffe: ignore layers that only the caffemodel has.")
]


def import_(  # noqa: PLR0913, PLR0917 - one option each
    file: ImportedFile,
    out: ImportFolder,
    input_type: InputType = None,
    input_scale: InputScale = 1.0,
    input_layout: InputLayout = None,
    target: AlsoTarget = None,
    simulate: Simulated = 0,
    fps: Rate = None,
    fill: Fill = None,
    budget: Budget = None,
    clock_mhz: Clock = None,
    compare: Compared = 0,
    weights: CaffeWeights = None,
    model: ModelName = None,
    classes: Classes = None,
    input_shape: Shape = None,
    output_layer: LastLayer = None,
    ignore_extra: IgnoreExtra = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Import a quantized ONNX or packed file as an integer graph, or a model of Caffe or Keras."""
    from bitwright.models.catalog import PACKED
    from bitwright.pipeline.import_network import (
        import_graph,
        import_model,
        import_packed,
        is_model_file,
    )

    output = Output(json)
    of_float = {
        "--weights": weights,
        "--model": model,
        "--classes": classes,
        "--input-shape": input_shape,
        "--output": output_layer,
    }
    if file.suffix.lower() == PACKED:
        _refuse_float(file, of_float)
        _show_graph(output, file, out, import_packed(file, out, force=force))
        return
    if is_model_file(file):
        _refuse_hardware(file, {"--target": target, "--input-type": input_type})
        report = import_model(
            file,
            out,
            weights=weights,
            model=model,
            classes=classes,
            input_shape=parse_shape(input_shape),
            output=output_layer,
            ignore_extra=ignore_extra,
            force=force,
        )
        _show_float(output, file, out, report)
        return
    _refuse_float(file, of_float)
    with output.progress() as progress:
        report = import_graph(
            file,
            out,
            input_type=input_type,
            input_scale=input_scale,
            input_layout=input_layout,
            hardware=hardware_of(target, fps, fill, budget, clock_mhz),
            simulate=simulate,
            compare=compare,
            force=force,
            progress=progress,
        )
    _show_graph(output, file, out, report)


def _refuse_float(file: Path, given: dict[str, Any]) -> None:
    """A quantized network's file says all of it.

    Raises:
        RecipeError: an option says something that only a float network leaves open.
    """
    named = [option for option, value in given.items() if value is not None]
    if named:
        raise RecipeError(
            f"{file.name} is a quantized network, whose file says that itself",
            where=", ".join(named),
            hint="leave it out",
        )


def _refuse_hardware(file: Path, given: dict[str, Any]) -> None:
    """A float network has no integers yet.

    Raises:
        RecipeError: an option asks for some.
    """
    named = [option for option, value in given.items() if value is not None]
    if named:
        raise RecipeError(
            f"{file.name} is a float network, which has no integers yet",
            where=", ".join(named),
            hint=f"train it in few bits by a recipe with `model: {file.name}` (bitwright init), or "
            "quantize it without training: bitwright.build_model (docs/model-exchange.md)",
        )


def _show_graph(output: Output, file: Path, out: Path, report: dict[str, Any]) -> None:
    if output.answered(report):
        return
    rows = [(row["name"], row["op"], row["from"], row["output"]) for row in report["layers"]]
    output.table(f"{file.name}: {report['graph']}", ("layer", "operation", "from", "output"), rows)
    for note in report["notes"]:
        output.say(f"note: {note}")
    if "compared" in report:
        done = report["compared"]
        ties = done["labels_that_tie"]
        labels = (
            f"labels differ on {ties}, where scores are equal within 1e-5 of the largest" if ties
            else "all labels equal"
        )  # fmt: skip
        output.say(
            f"the file itself, run by QONNX on {done['images']} random frames of "
            f"{done['input_levels']} input levels: {labels}, "
            f"{done['scores_that_differ']} scores differ"
        )
    if "hardware" in report:
        found = report["hardware"]
        output.say(
            f"{found['target']}: {found['interval']} cycles a frame; RTL in {out / 'map' / 'rtl'}"
        )
        show.rates(output, found["rates"])
        if found["proof"]:
            output.say(found["proof"])
    output.say(f"wrote {out}; next: {_next(out, report)}")


def _next(out: Path, report: dict[str, Any]) -> str:
    """What there is still to do with an imported graph."""
    export = f"bitwright export {out} --format artifact --out FOLDER"
    if "hardware" not in report:
        return f"bitwright simulate {out} --target NAME, bitwright implement {out}, or {export}"
    proven = report["hardware"]["simulated_frames"]
    steps = [] if proven else [f"bitwright simulate {out}"]
    steps += [f"bitwright implement {out}", f"bitwright board {out} --simulated"]
    return f"{', '.join(steps)}, or {export}"


def _show_float(output: Output, file: Path, out: Path, report: dict[str, Any]) -> None:
    if output.answered(report):
        return
    columns = ("layer", "operation", "from", "output", "parameters")
    keys = ("name", "op", "from", "output", "parameters")
    if report["layers"]:
        output.table(file.name, columns, [tuple(row[k] for k in keys) for row in report["layers"]])
    shape, given = " x ".join(map(str, report["input_shape"])), report["input"]
    order = given["channel_order"] or "unknown channel order"
    output.say(
        f"{report['parameters']} parameters; takes {shape} ({order}), "
        f"input scale {given['scale']:g}"
    )
    output.say(
        f"wrote {out}; next: bitwright formats compare {out} --data NAME, or a recipe: bitwright "
        f"init my.yaml --model {file}"
    )


def export(
    source: Annotated[
        Path,
        typer.Argument(
            help="A run directory, a folder that `import` made, a graph file or a model file."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write; for artifact a folder.")],
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="The integer graph as QONNX, QDQ ONNX or artefact; the float model as Caffe, "
            "Keras or safetensors; or the quantized model packed.",
        ),
    ] = "qonnx",
    input_shape: Shape = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write the integer graph, or the float model, for other tools; the result is run again."""
    from bitwright.pipeline.export_network import export_network

    output = Output(json)
    shape = parse_shape(input_shape)
    written = export_network(source, format_, out, input_shape=shape, force=force)
    if output.answered(written):
        return
    sizes = ", ".join(f"{name} {size} bytes" for name, size in written["bytes"].items())
    if "weight_bytes" in written:
        output.say(
            f"wrote {written['path']} ({sizes}); {written['weight_bytes']} bytes of weights; read "
            "back, its integers are the same"
        )
        return
    checked = (
        f"{written['parameters']} parameters; read back, all layers and "
        f"{written['compared_values']} values are the same"
        if "parameters" in written
        else f"{written['compared_values']} values of {written['frames']} frames compared, "
        "all equal"
    )
    output.say(f"wrote {written['path']} ({sizes}); {checked}")


def database(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The database to write.")],
    train: Annotated[
        Path, typer.Option("--train", help="List of training images: a line PATH LABEL each.")
    ],
    test: Annotated[Path, typer.Option("--test", help="List of test images.")],
    root: Annotated[
        Path, typer.Option("--root", help="Folder that the paths in the lists start from.")
    ] = Path(),
    input_shape: Shape = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Put images and labels from lists into one file: data of a recipe with `name: database`."""
    from bitwright.data.decoding import Decoding
    from bitwright.data.image_database import TEST, TRAIN, build_database, read_list

    shape = parse_shape(input_shape)
    with claimed(file, force=force):
        decoding = Decoding() if shape is None else Decoding(shape[:2], grey=shape[2] == 1)
        lists = {TRAIN: read_list(train), TEST: read_list(test)}
        count = build_database(file, lists, root, decoding)
    output = Output(json)
    if not output.answered({"database": str(file), "images": count}):
        output.say(f"wrote {count} images to {file}")
