# SPDX-License-Identifier: Apache-2.0
"""The verbs that bring networks in and take them out: `import` and `export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli.options import Json
from bitwright.cli.output import Output


class Format(StrEnum):
    """What `export` writes."""

    QONNX = "qonnx"
    QDQ = "qdq"
    ARTIFACT = "artifact"


class Layout(StrEnum):
    """How the file stores images."""

    NCHW = "NCHW"
    NHWC = "NHWC"


def import_(
    file: Annotated[Path, typer.Argument(help="A QONNX, QCDQ or QDQ file.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the graph and the report.")],
    input_type: Annotated[
        str | None,
        typer.Option(help="The input holds integers of this format, such as uint8 pixels."),
    ] = None,
    input_scale: Annotated[float, typer.Option(help="Real value of the input's 1.")] = 1.0,
    input_layout: Annotated[
        Layout | None, typer.Option(help="Layout of the input; found out if not given.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Also choose a folding for this target and write RTL.")
    ] = None,
    simulate: Annotated[
        int, typer.Option(min=0, help="Compare the RTL with the graph on random frames.")
    ] = 0,
    json: Json = False,
) -> None:
    """Import a quantized ONNX file: the integer graph, and what became of every node."""
    from bitwright.exchange import import_file

    output = Output(json)
    with output.progress() as progress:
        report = import_file(
            file,
            out,
            input_type=input_type,
            input_scale=input_scale,
            input_layout=input_layout.value if input_layout else None,
            target=target,
            simulate=simulate,
            progress=progress,
        )
    if json:
        output.value(report)
        return
    rows = [(row["name"], row["op"], row["from"], row["output"]) for row in report["layers"]]
    output.table(f"{file.name}: {report['graph']}", ("layer", "operation", "from", "output"), rows)
    for note in report["notes"]:
        output.say(f"note: {note}")
    if "hardware" in report:
        found = report["hardware"]
        output.say(f"{found['target']}: {found['interval']} cycles an image; RTL in {out / 'rtl'}")
    output.say(f"wrote {out}; next: bitwright export {out} --format artifact --out FOLDER")


def export(
    source: Annotated[
        Path, typer.Argument(help="A run directory, a folder that `import` made, or a graph file.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write; for artifact a folder.")],
    format_: Annotated[
        Format, typer.Option("--format", help="QONNX, QDQ ONNX, or the integer artefact.")
    ] = Format.QONNX,
    json: Json = False,
) -> None:
    """Write the integer graph for other tools, after running the result with equal integers."""
    from bitwright.exchange import export as export_graph

    output = Output(json)
    result = export_graph(source, format_.value, out)
    if json:
        output.value(result)
        return
    sizes = ", ".join(f"{name} {size} bytes" for name, size in result["bytes"].items())
    output.say(
        f"wrote {result['path']} ({sizes}); {result['compared_values']} values of "
        f"{result['frames']} frames compared, all equal"
    )
