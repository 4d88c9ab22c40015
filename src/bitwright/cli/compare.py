# SPDX-License-Identifier: Apache-2.0
"""`bitwright diff`: what it prints, and its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bitwright.base.errors import MismatchError
from bitwright.cli.designs import is_design_folder, refuse_options
from bitwright.cli.options import Data, Json, resolve
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.pipeline.diff.results import DiffReport, StageResult


Until = Literal["quantized", "integers", "graph", "hardware", "rtl"]


def diff(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory of `build`, or a folder of `import` or build_model.",
        ),
    ],
    index: Annotated[int, typer.Option("--index", help="Which test image.")] = 0,
    file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE.npy", help="An input instead: (C, H, W) reals."),
    ] = None,
    until: Annotated[Until, typer.Option("--until", help="The last comparison.")] = "rtl",
    bound: Annotated[
        float,
        typer.Option("--bound", min=0.0, help="Relative difference float/quantized that is named."),
    ] = 0.5,
    data: Data = None,
    json: Json = False,
) -> None:
    """Run one input through every level, from float to RTL, and name the first difference."""
    from bitwright.pipeline.api import diff_run

    output = Output(json)
    if is_design_folder(str(run_dir)):
        from bitwright.pipeline.designs.folder import open_design
        from bitwright.pipeline.designs.steps import diff_design

        refuse_options(run_dir, {"--data": data})
        design = open_design(run_dir.expanduser())
        with output.progress() as progress:
            found = diff_design(design, index=index, file=file, until=until, progress=progress)
        _tell(output, found)
        return
    job = resolve(str(run_dir), None, data)
    with output.progress() as progress:
        report = diff_run(
            job.recipe,
            job.run_dir,
            index=index,
            file=file,
            until=until,
            bound=bound,
            progress=progress,
        )
    _tell(output, report)


def _tell(output: Output, report: DiffReport) -> None:
    if not output.answered(report.to_json()):
        _show(output, report)
    if report.bad is not None:
        raise typer.Exit(MismatchError.exit_code)


def _show(output: Output, report: DiffReport) -> None:
    for stage in report.stages:
        if stage.rows:
            _show_rows(output, stage)
    output.say(f"input: {report.source}")
    for level, words in report.said.items():
        output.say(f"{level}: {words}")
    for stage in report.stages:
        output.say(f"{_title(stage)}: {_verdict(stage)}")
    if report.note:
        output.say(report.note)
    if report.bad is None:
        output.say("no level differs from the one before it where equality is required")
    elif report.bad.first is not None:
        output.say(f"first difference, {_title(report.bad)}: {report.bad.first}")
    else:
        output.say(f"{_title(report.bad)}: {report.bad.problem}")


def _show_rows(output: Output, stage: StageResult) -> None:
    unit = "largest value" if stage.stage == "quantized" else "unit (one level)"
    rows = [
        (row.layer, f"{row.largest:.4g}", f"{row.scale:.6g}", f"{row.differing:.2%}")
        for row in stage.rows
    ]
    columns = ("layer", "largest difference", unit, "values that differ")
    output.table(_title(stage), columns, rows)


def _title(stage: StageResult) -> str:
    from bitwright.pipeline.diff.results import PAIRS

    expected, got = PAIRS[stage.stage]
    return f"{expected} / {got}"


def _verdict(stage: StageResult) -> str:
    if stage.exact and stage.first is None:
        return f"equal, {stage.compared} values" + _problem(stage)
    if stage.exact:
        return f"DIFFERENT: {stage.first}" + _problem(stage)
    beyond = f"beyond {stage.bound:g}" if stage.bound is not None else "different"
    if stage.first is None:
        return f"no value {beyond}, of {stage.compared} (not exact by nature)"
    return f"first value {beyond} (not exact by nature): {stage.first}"


def _problem(stage: StageResult) -> str:
    return f"; {stage.problem}" if stage.problem else ""
