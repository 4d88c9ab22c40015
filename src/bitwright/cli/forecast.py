# SPDX-License-Identifier: Apache-2.0
"""`bitwright forecast`: what training a recipe would cost, before it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli.options import (
    Assign,
    Classes,
    Data,
    Json,
    RecipeArgument,
    Shape,
    parse_shape,
    resolve,
)
from bitwright.cli.output import Output


def forecast(  # noqa: PLR0913, PLR0917 - one argument an option
    recipe: RecipeArgument,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help="A described device by name, or a TOML file; repeatable. By default all that come "
            "with Bitwright.",
        ),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            help="Phases such as int8:37,int12:9,float32:45, or the precision.jsonl of a run; "
            "repeatable. By default what the recipe's policy can give.",
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Measure the costs of a step on this machine.")
    ] = False,
    costs: Annotated[
        Path | None,
        typer.Option("--costs", metavar="FILE", help="Given or measured costs, TOML or JSON."),
    ] = None,
    baseline: Annotated[
        int, typer.Option("--baseline-epochs", min=1, help="Of the float32 baseline.")
    ] = 150,
    images: Annotated[
        int | None,
        typer.Option(
            "--images",
            min=1,
            help="Training images; then the data is not loaded.",
        ),
    ] = None,
    classes: Classes = None,
    input_shape: Shape = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for tables and costs; made if missing.")
    ] = None,
    data: Data = None,
    assign: Assign = None,
    json: Json = False,
) -> None:
    """Time and energy of training in low precision: by level, in total, worst and best case.

    Of a run directory that has trained already, measured and modelled time stand side by side.
    """
    from bitwright.base.places import held
    from bitwright.explore.forecast import ForecastRequest
    from bitwright.explore.forecast import forecast as forecast_recipe

    output = Output(json)
    job = resolve(recipe, None, data, assign)
    request = ForecastRequest(
        job.recipe,
        tuple(device or ()),
        costs=costs,
        profile=profile,
        schedules=tuple(schedule or ()),
        baseline_epochs=baseline,
        run_dir=job.run_dir,
        images=images,
        classes=classes,
        input_shape=parse_shape(input_shape),
    )
    with held(out):
        with output.progress() as progress:
            found = forecast_recipe(request, progress)
        paths = found.write(out) if out is not None else {}
    if output.answered({**found.to_json(), "paths": {k: str(v) for k, v in paths.items()}}):
        return
    output.say("; ".join(f"{key}: {value}" for key, value in found.facts.items()))
    for table in found.tables():
        output.results(table)
    if out is not None:
        output.say(f"results: {paths['html']}")
