# SPDX-License-Identifier: Apache-2.0
"""The verbs that bring networks in and take them out: `import` and `export`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from bitwright.cli.options import Json, parse_shape
from bitwright.cli.output import Output


class Format(StrEnum):
    """What `export` writes."""

    QONNX = "qonnx"
    QDQ = "qdq"
    ARTIFACT = "artifact"
    CAFFE = "caffe"
    KERAS = "keras"
    SAFETENSORS = "safetensors"
    PACKED = "packed"


class Layout(StrEnum):
    """How the file stores images."""

    NCHW = "NCHW"
    NHWC = "NHWC"


File = Annotated[
    Path,
    typer.Argument(
        help="A QONNX, QCDQ or QDQ file; a packed model (.bwq); or a float model: .prototxt "
        "(Caffe), .h5 or .keras, .safetensors."
    ),
]
Out = Annotated[
    Path, typer.Option("--out", help="Folder for the graph or the model, and the report.")
]
InputType = Annotated[
    str | None,
    typer.Option(help="The input holds integers of this format, such as uint8 pixels."),
]
InputLayout = Annotated[
    Layout | None, typer.Option(help="Layout of the input; detected if not given.")
]
Target = Annotated[
    str | None, typer.Option(help="Also choose a folding for this target and write RTL.")
]
Simulate = Annotated[
    int, typer.Option(min=0, help="Compare the RTL with the graph on random frames.")
]
Compare = Annotated[
    int, typer.Option(min=0, help="Run the file itself (QONNX) on random images, too.")
]
ModelWeights = Annotated[
    Path | None, typer.Option(help="Float models: the .caffemodel of a .prototxt.")
]
ModelName = Annotated[
    str | None,
    typer.Option(help="Float models: the zoo's name or module:function of these weights."),
]
Classes = Annotated[int | None, typer.Option(min=1, help="With --model: how many classes it has.")]
ModelShape = Annotated[
    str | None,
    typer.Option(
        metavar="HxWxC", help="Float models: size of an image, if the file leaves it open."
    ),
]
OutputLayer = Annotated[
    str | None, typer.Option("--output", help="Float models: the layer to end at.")
]
IgnoreExtra = Annotated[
    bool,
    typer.Option("--ignore-extra", help="Caffe: ignore layers that only the caffemodel has."),
]


def import_(  # noqa: PLR0913, PLR0917 - one option each
    file: File,
    out: Out,
    input_type: InputType = None,
    input_scale: Annotated[float, typer.Option(help="Real value of the input's 1.")] = 1.0,
    input_layout: InputLayout = None,
    target: Target = None,
    simulate: Simulate = 0,
    compare: Compare = 0,
    weights: ModelWeights = None,
    model: ModelName = None,
    classes: Classes = None,
    input_shape: ModelShape = None,
    output_layer: OutputLayer = None,
    ignore_extra: IgnoreExtra = False,
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
    if file.suffix.lower() == PACKED:
        _show_graph(output, file, out, import_packed(file, out))
        return
    if is_model_file(file):
        report = import_model(
            file,
            out,
            weights=weights,
            model=model,
            classes=classes,
            input_shape=parse_shape(input_shape),
            output=output_layer,
            ignore_extra=ignore_extra,
        )
        _show_float(output, file, out, report)
        return
    with output.progress() as progress:
        report = import_graph(
            file,
            out,
            input_type=input_type,
            input_scale=input_scale,
            input_layout=input_layout.value if input_layout else None,
            target=target,
            simulate=simulate,
            compare=compare,
            progress=progress,
        )
    _show_graph(output, file, out, report)


def _show_graph(output: Output, file: Path, out: Path, report: dict[str, Any]) -> None:
    if output.json_wanted:
        output.value(report)
        return
    rows = [(row["name"], row["op"], row["from"], row["output"]) for row in report["layers"]]
    output.table(f"{file.name}: {report['graph']}", ("layer", "operation", "from", "output"), rows)
    for note in report["notes"]:
        output.say(f"note: {note}")
    if "compared" in report:
        done = report["compared"]
        output.say(
            f"the file itself, run by QONNX on {done['images']} random images: all labels equal, "
            f"{done['scores_that_differ']} scores differ"
        )
    if "hardware" in report:
        found = report["hardware"]
        output.say(f"{found['target']}: {found['interval']} cycles an image; RTL in {out / 'rtl'}")
    output.say(f"wrote {out}; next: bitwright export {out} --format artifact --out FOLDER")


def _show_float(output: Output, file: Path, out: Path, report: dict[str, Any]) -> None:
    if output.json_wanted:
        output.value(report)
        return
    columns = ("layer", "operation", "from", "output", "parameters")
    keys = ("name", "op", "from", "output", "parameters")
    if report["layers"]:
        output.table(file.name, columns, [tuple(row[k] for k in keys) for row in report["layers"]])
    output.say(_facts(report))
    output.say(f"wrote {out}; next: bitwright formats compare {out} --data NAME")


def _facts(report: Mapping[str, Any]) -> str:
    """One line about an import."""
    shape = " x ".join(map(str, report["input_shape"]))
    order = report["input"]["channel_order"] or "unknown channel order"
    return f"{report['parameters']} parameters; takes {shape} ({order}), input scale " + (
        f"{report['input']['scale']:g}"
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
    ] = Format.QONNX,
    json: Json = False,
) -> None:
    """Write the integer graph, or the float model, for other tools; the result is run again."""
    from bitwright.pipeline.export_network import export_network

    output = Output(json)
    written = export_network(source, format_.value, out)
    if json:
        output.value(written)
        return
    sizes = ", ".join(f"{name} {size} bytes" for name, size in written["bytes"].items())
    if "weight_bytes" in written:
        output.say(
            f"wrote {written['path']} ({sizes}); {written['weight_bytes']} bytes of weights; read "
            "back, its integers are the same"
        )
        return
    checked = (
        f"{written['parameters']} parameters; read back, its outputs differ by "
        f"{written['largest_difference']:g}"
        if "parameters" in written
        else f"{written['compared_values']} values of {written['frames']} frames compared, "
        "all equal"
    )
    output.say(f"wrote {written['path']} ({sizes}); {checked}")
