# SPDX-License-Identifier: Apache-2.0
"""`bitwright search`: its options and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bitwright.cli.options import (
    DataName,
    Json,
    MetricName,
    Seed,
    Shape,
    Subject,
    Weights,
    held_place,
    parse_shape,
)
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.explore.searches import SearchReport


def search(  # noqa: PLR0913, PLR0917 - one argument an option
    subject: Subject,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            help="size=60kB, memory=12%, bops=1.5G, accuracy=97.5% or drop=1 (points).",
        ),
    ],
    data: DataName = None,
    candidates: Annotated[
        str | None,
        typer.Option("--candidates", help="Formats of weights: int2..int8,e4m3,po2_4,cb16."),
    ] = None,
    activations: Annotated[
        str | None, typer.Option("--activations", help="Formats of activations: uint2..uint8.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the results.", show_default="search"),
    ] = None,
    weights: Weights = None,
    input_shape: Shape = None,
    metric: MetricName = None,
    minimise: Annotated[
        Literal["size", "memory", "bops"],
        typer.Option("--minimise", help="What to minimise under an accuracy budget."),
    ] = "memory",
    images: Annotated[
        int, typer.Option("--images", min=2, help="For sensitivities and calibration.")
    ] = 128,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.0, help="Measure no further network after this time."),
    ] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Fold batch norms first.")] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Find the format of every layer: the best network within a budget, as a policy."""
    from bitwright.explore.searches import SearchRequest, run_search

    output = Output(json)
    with held_place(out, "search") as place:
        request = SearchRequest(
            subject,
            budget,
            place,
            candidates=candidates,
            activations=activations,
            data=data,
            weights=weights,
            input_shape=parse_shape(input_shape),
            metric=metric,
            minimise=minimise,
            images=images,
            minutes=minutes,
            fold=fold,
            seed=seed,
        )
        with output.progress() as progress:
            report = run_search(request, progress)
    if not output.answered(report.to_json()):
        _show_search(output, report, place)


def _show_search(output: Output, report: SearchReport, out: Path) -> None:
    result = report.result
    rows = [
        (r["layer"], r["role"], r["format"], r["bits"], r["values"], f"{r['damage']:.2g}")
        for r in result.rows()
    ]
    columns = ("layer", "role", "format", "bits", "values", "damage")
    output.table(f"formats for {result.goal}", columns, rows)
    best = result.best
    output.say(
        f"{result.metric}: {100 * best.accuracy:.2f} % (float {100 * result.baseline:.2f} %)"
    )
    for key, value in report.final.items():
        output.say(f"{key}: {100 * value:.2f} % (float {100 * report.final_float[key]:.2f} %)")
    output.say(
        f"parameters {best.size / 8000:.4g} kB, with features {best.memory / 8000:.4g} kB, "
        f"{best.bops / 1e6:.4g} M bit operations; {len(result.points)} networks measured in "
        f"{result.seconds:.0f} s"
    )
    for note in result.table.space.notes:
        output.say(f"note: {note}")
    output.say(f"wrote {out}: {', '.join(report.files)}")
