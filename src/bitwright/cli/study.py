# SPDX-License-Identifier: Apache-2.0
"""`bitwright study`: what each phase of distillation is worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli.options import (
    Assign,
    Data,
    Json,
    Ray,
    RecipeArgument,
    Threads,
    command_line,
    resolve,
)
from bitwright.cli.output import Output


def study(  # noqa: PLR0913, PLR0917 - one argument an option
    recipe: RecipeArgument,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many, from 0.")] = 5,
    bits: Annotated[
        str | None,
        typer.Option("--bits", help="Widths instead of the recipe's formats, by commas: 8,4,2,1."),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(
            "--arms",
            help="By commas, of baseline, ptq, ss, ss_equal, ss_ts, qkd; all but ss_equal.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Seeds at a time.")] = 1,
    threads: Threads = None,
    ray: Ray = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the study; by default studies/NAME.")
    ] = None,
    data: Data = None,
    assign: Assign = None,
    json: Json = False,
) -> None:
    """Compare the arms of distillation: float, PTQ, self-study, with a tutor, all three phases.

    Restartable: what the folder holds already is not done again.
    """
    from bitwright.explore.study import StudyRequest, run_study

    output = Output(json)
    loaded = resolve(recipe, None, data, assign).recipe
    folder = Path("studies") / loaded.name if out is None else out
    request = StudyRequest(
        loaded,
        folder,
        seeds=seeds,
        bits=_widths(bits),
        workers=workers,
        threads=threads,
        ray=ray,
        command=command_line(),
    )
    if arms is not None:
        request = replace(request, arms=tuple(part.strip() for part in arms.split(",")))
    with output.progress() as progress:
        found = run_study(request, progress)
    if json:
        output.value(found.to_json())
        return
    output.results(replace(found.table, notes=()))
    for failure in found.failures:
        output.say(f"left out: {failure}")
    output.say(f"results: {found.paths['html']}")


def _widths(text: str | None) -> tuple[int, ...]:
    from bitwright.base.errors import RecipeError

    try:
        return () if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(
            f"expected widths by commas, found {text!r}", where="--bits", hint="such as 8,4,2"
        ) from None
