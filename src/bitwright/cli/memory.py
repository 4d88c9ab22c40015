# SPDX-License-Identifier: Apache-2.0
"""`bitwright memory`: how large the parameters of models are at several widths."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from bitwright.base.errors import RecipeError
from bitwright.cli.options import Classes, Json, Shape, parse_shape
from bitwright.cli.output import Output


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
    if json:
        output.value([row.to_json() for row in rows])
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


def parse_bits(text: str) -> tuple[int, ...]:
    """Widths such as ``32,8,4``.

    Raises:
        RecipeError: it is no such list.
    """
    parts = text.replace(" ", "").split(",")
    if not all(re.fullmatch(r"[0-9]{1,2}", part) and 1 <= int(part) <= 64 for part in parts):
        raise RecipeError(
            f"{text!r} is no list of widths",
            where="--bits",
            hint="numbers from 1 to 64, such as 32,8,4",
        )
    return tuple(dict.fromkeys(int(part) for part in parts))
