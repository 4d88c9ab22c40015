# SPDX-License-Identifier: Apache-2.0
"""`bitwright formats matrix`: its options and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli import formats
from bitwright.cli.options import Json, held_place
from bitwright.cli.output import Output


def matrix(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe of kind face-matrix.")
    ] = "face-matrix",
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="Folder with MODEL.safetensors of each network."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The ORL archive, or the folder of LFW.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", help="Parts of row names by commas: '1.0/folded,dfp'."),
    ] = None,
    half: Annotated[
        str | None, typer.Option("--half", help="plain or ours; by default both.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            help="Instead of the rows: k-means with tables of so many entries, for every scope: "
            "'all' (8 .. 4096) or '16,512'. --only then chooses networks.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the results.", show_default="faces"),
    ] = None,
    json: Json = False,
) -> None:
    """Run a whole matrix of experiments on face networks, in tables; or sweep k-means."""
    from bitwright.explore.variants import split_names
    from bitwright.papers.faces.matrix import MatrixRequest, parse_halves, run_matrix
    from bitwright.papers.faces.recipe import load_matrix
    from bitwright.papers.faces.sweep import parse_entries, run_sweep
    from bitwright.pipeline.recipe import find_recipe

    output = Output(json)
    entries = None if sweep is None else parse_entries(sweep)
    path = find_recipe(recipe)
    with held_place(out, "faces") as place:
        request = MatrixRequest(
            load_matrix(path),
            path.parent,
            place,
            data=data,
            weights=weights,
            only=tuple(split_names(only)),
            halves=parse_halves(half),
        )
        if entries is None:
            written = run_matrix(request, output.say)
        else:
            written = run_sweep(request, entries, tell=output.say)
    if json:
        output.value({kind: str(place) for kind, place in written.items()})
        return
    for kind, place in written.items():
        output.say(f"{kind}: {place}")


def add_commands(_: typer.Typer) -> None:
    """Add ``matrix`` to the verbs of ``formats``."""
    formats.app.command()(matrix)
