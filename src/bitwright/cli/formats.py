# SPDX-License-Identifier: Apache-2.0
"""`bitwright formats`: list families, show one in numbers, compare a network in many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli.options import (
    DataName,
    Json,
    Seed,
    Shape,
    Subject,
    Weights,
    held_place,
    parse_shape,
)
from bitwright.cli.output import Output

app = typer.Typer(
    name="formats",
    help="Number formats: list them, look at one, compare a network in many.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the families of formats: how they are named, what they mean, examples."""
    from bitwright.cli.listing import show_list

    show_list(Output(json), "formats")


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="FORMAT", help="Such as e4m3, po2_4 or mxfp4.")],
    every: Annotated[
        bool, typer.Option("--all", help="List the codes of up to 16 bits, not only of up to 8.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a format in exact numbers: range, smallest and largest value, every code."""
    from bitwright.explore.show_format import describe_format

    output = Output(json)
    found = describe_format(name, everything=every)
    if output.answered(found.to_json()):
        return
    output.table(name, ("what", "value"), list(found.facts.items()))
    if found.codes is not None:
        output.results(replace(found.codes, title="codes, at scale 1"))


@app.command()
def compare(  # noqa: PLR0913, PLR0917 - one argument an option
    subject: Subject,
    data: DataName = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--formats", help="WEIGHT or WEIGHT/ACTIVATION, by commas: e4m3,int4/uint4,cb16/uint8."
        ),
    ] = None,
    weight_formats: Annotated[
        str | None,
        typer.Option("--weight-formats", help="Each with every one of --activations."),
    ] = None,
    activations: Annotated[
        str | None,
        typer.Option("--activations", help="Formats of activations, instead of the usual ones."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="naive, calibrated, equalized, gptq, adaround; or methods joined by +.",
        ),
    ] = "gptq",
    weights: Weights = None,
    input_shape: Shape = None,
    images: Annotated[
        int, typer.Option("--images", help="Training images for calibration; no labels are used.")
    ] = 256,
    limit: Annotated[
        int | None, typer.Option("--limit", help="Measure on this many test images only.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the results.", show_default="compare"),
    ] = None,
    json: Json = False,
) -> None:
    """Compare a trained network in many formats, without retraining: one table and one plot."""
    from bitwright.explore.compare import CompareRequest, run_compare

    output = Output(json)
    with held_place(out, "compare") as place:
        request = CompareRequest(
            subject,
            place,
            data=data,
            weights=weights,
            input_shape=parse_shape(input_shape),
            formats=formats,
            of_weights=weight_formats,
            of_activations=activations,
            method=method,
            images=images,
            limit=limit,
            seed=seed,
        )
        with output.progress() as progress:
            found = run_compare(request, progress)
    if output.answered(found.to_json()):
        return
    shown = tuple(c for c in found.table.columns if c.key not in ("memory", "method"))
    rows = [{c.key: row.get(c.key) for c in shown} for row in found.table.rows]
    for row in rows:
        row["arithmetic"] = str(row["arithmetic"]).partition(":")[0]  # reasons are in the files
    output.results(replace(found.table, columns=shown, rows=tuple(rows)))
    for kind, path in found.paths.items():
        output.say(f"{kind}: {path}")
