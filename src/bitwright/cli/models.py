# SPDX-License-Identifier: Apache-2.0
"""`bitwright inspect` and `bitwright memory`: what a model would become, and how large it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.base.errors import ModelError
from bitwright.cli.options import Classes, Data, Json, Shape, parse_bits, parse_shape, resolve
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.pipeline.inspection.results import Inspection, NodeRow


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An .onnx file, a model's file, package.module:factory, a name of the zoo, or "
            "a recipe.",
        ),
    ],
    input_shape: Shape = None,
    classes: Classes = None,
    weight: Annotated[str, typer.Option("--weight", help="Format of weights.")] = "int4",
    activation: Annotated[
        str, typer.Option("--activation", help="Format of activations.")
    ] = "uint4",
    input_format: Annotated[
        str | None, typer.Option("--input-format", help="Format of the input, such as uint8.")
    ] = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Say what every node of a model becomes in hardware, or why not and what to change."""
    from bitwright.pipeline.api import inspect_model
    from bitwright.pipeline.inspection.inspect import is_by_name
    from bitwright.pipeline.run_files import check_only_ours

    is_run = Path(model).is_dir() and ":" not in model
    if is_run and is_by_name(model):
        check_only_ours(model, "a model of the zoo")
    found = inspect_model(
        resolve(model, None, data).recipe if is_run else model,
        input_shape=parse_shape(input_shape),
        classes=classes,
        weight=weight,
        activation=activation,
        input_format=input_format,
        data=data,
    )
    output = Output(json)
    if not output.answered(found.to_json()):
        _show(output, found)
    if not found.is_convertible:
        raise typer.Exit(ModelError.exit_code)


def _show(output: Output, found: Inspection) -> None:
    if found.rows:
        with_lines = any(row.line for row in found.rows)
        columns = ["node", "type", "becomes", "hardware", "bits", "shape"]
        if with_lines:
            columns.insert(2, "line")
        rows = [_cells(row, with_lines) for row in found.rows]
        output.table(found.model, columns, rows)
    for note in found.notes:
        output.say(f"note: {note}")
    if found.is_convertible:
        output.say("every node can be converted")
        return
    count = len(found.problems)
    output.say(f"{count} problem{'s' if count > 1 else ''} in {found.model}:")
    for problem in found.problems:
        place = f"{problem.where}: " if problem.where else ""
        output.say(f"  - {place}{problem.problem}")
        if problem.advice:
            output.say(f"    -> {problem.advice}")


def _cells(row: NodeRow, with_lines: bool) -> list[str]:
    becomes = f"CANNOT: {row.problem}" if row.problem else row.becomes
    shape = "" if row.shape is None else "x".join(map(str, row.shape))
    bits = "" if row.bits is None else str(row.bits)
    cells = [row.node, row.type, becomes, " + ".join(row.blocks), bits, shape]
    if with_lines:
        cells.insert(2, _short(row.line))
    return cells


def _short(line: str) -> str:
    """``folder/file.py:7``: the last two parts of the path."""
    file, colon, number = line.rpartition(":")
    return "/".join(Path(file).parts[-2:]) + colon + number if colon else line


def memory(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Names of the zoo, package.module:factory, or recipes.",
        ),
    ],
    classes: Classes = None,
    input_shape: Shape = None,
    bits: Annotated[str, typer.Option("--bits", help="Widths to list.")] = "32,8,4",
    json: Json = False,
) -> None:
    """Trainable parameters of models, and their memory (MB of 2^20 bytes) at each width."""
    from bitwright.explore.memory import memory_table

    rows = memory_table(
        models, classes=classes, input_shape=parse_shape(input_shape), bits=parse_bits(bits)
    )
    output = Output(json)
    if output.answered([row.to_json() for row in rows]):
        return
    columns = ("model", "image", "classes", "parameters", *(f"{b} bit, MB" for b in rows[0].mb))
    cells = [
        (
            row.model,
            "x".join(map(str, row.input_shape)),
            row.classes or "",
            row.parameters,
            *(f"{size:.2f}" for size in row.mb.values()),
        )
        for row in rows
    ]
    output.table("memory of the parameters", columns, cells, "running statistics and scales apart")
