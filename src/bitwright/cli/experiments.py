# SPDX-License-Identifier: Apache-2.0
"""`bitwright sweep`: one recipe at every point of a grid; `bitwright study`: what each phase of
distillation is worth.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli.options import (
    Assign,
    Data,
    Json,
    Ray,
    RecipeArgument,
    Threads,
    command_line,
    out_place,
    parse_bits,
    recipe_source,
    resolve,
)
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.explore.sweep import SweepRequest
    from bitwright.jobs import JobResult, OnResult
    from bitwright.pipeline.recipe_yaml import Document

_FAILED = 1


def sweep(  # noqa: PLR0913, PLR0917 - one argument an option
    recipe: RecipeArgument,
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=V1,V2]...", help="More axes, as for --over."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=V1,V2",
            help="bits, alpha, temperature, lr, seeds=N, or any field of the recipe "
            "(train.float.epochs=5,10); a..b is a range. Several: the grid of all.",
        ),
    ] = None,
    until: Annotated[
        str, typer.Option("--until", help="The last step of every point.")
    ] = "quantize",
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Points at a time; by default one a core."),
    ] = None,
    threads: Threads = None,
    ray: Ray = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Longest time for a point, in seconds.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the sweep; by default sweeps/NAME.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the points; nothing runs or is written.")
    ] = False,
    data: Data = None,
    assign: Assign = None,
    json: Json = False,
) -> None:
    """Run a recipe at every point of a grid, in parallel: one table with means over seeds.

    Restartable: finished points stay finished, interrupted ones go on where they stopped.
    """
    from bitwright.explore.sweep import SweepRequest, check_folder, run_sweep
    from bitwright.explore.sweep_axes import grid, parse_axes

    output = Output(json)
    axes = parse_axes([*(over or []), *(more or [])])
    name, document, base_dir = _document(recipe, data, assign)
    folder = out_place(out, f"sweeps/{name}")
    request = SweepRequest(
        name,
        axes,
        grid(document, base_dir, axes),
        folder,
        until=until,
        workers=workers,
        ray=ray,
        threads=threads,
        timeout_s=timeout,
        command=command_line(),
    )
    check_folder(folder, name)
    if dry_run:
        _list(output, request)
        return
    with output.progress() as progress:
        found = run_sweep(request, progress, _teller(output, len(request.points)))
    if not output.answered(found.to_json()):
        output.results(found.table)
        output.say(f"report: {found.paths['html']}")
    if found.failures:
        raise typer.Exit(_FAILED)


def _document(
    recipe: str, data: Path | None, assign: list[str] | None
) -> tuple[str, Document, Path]:
    """Name, values and folder of the recipe, which by itself is known to be right."""
    from bitwright.pipeline.recipe import load_document, recipe_from_document

    file, base_dir = recipe_source(recipe)
    document = load_document(file, assign or [], data_dir=data)
    checked = recipe_from_document(document, base_dir)
    return checked.name, document, checked.base_dir


def _list(output: Output, request: SweepRequest) -> None:
    """The points, before anything is done."""
    rows = [(point.title, point.folder) for point in request.points]
    if output.json_wanted:
        fields = [{"point": title, "run_dir": folder} for title, folder in rows]
        output.value({"out": str(request.out), "until": request.until, "points": fields})
        return
    count = f"{len(rows)} points of {request.name}, until {request.until}"
    output.table(count, ("point", f"run directory below {request.out / 'points'}"), rows)


def _teller(output: Output, total: int) -> OnResult:
    """A line for every point that is finished."""
    number = 0

    def told(result: JobResult) -> None:
        nonlocal number
        number += 1
        output.say(f"[{number}/{total}] {result.name}: {_words(result)}")

    return told


def _words(result: JobResult) -> str:
    if result.failure is not None:
        return f"failed: {result.failure.reason} (log: {result.log})"
    if result.was_done:
        return "done before"
    again = f", redone {result.attempts - 1} times" if result.attempts > 1 else ""
    return f"{result.seconds:.1f} s{again}"


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
    from bitwright.base.places import held
    from bitwright.explore.study import StudyRequest, run_study

    output = Output(json)
    loaded = resolve(recipe, None, data, assign).recipe
    folder = out_place(out, f"studies/{loaded.name}")
    request = StudyRequest(
        loaded,
        folder,
        seeds=seeds,
        bits=() if bits is None else parse_bits(bits),
        workers=workers,
        threads=threads,
        ray=ray,
        command=command_line(),
    )
    if arms is not None:
        request = replace(request, arms=tuple(part.strip() for part in arms.split(",")))
    with held(folder), output.progress() as progress:
        found = run_study(request, progress)
    if output.answered(found.to_json()):
        return
    output.results(replace(found.table, notes=()))
    for failure in found.failures:
        output.say(f"left out: {failure}")
    output.say(f"results: {found.paths['html']}")
