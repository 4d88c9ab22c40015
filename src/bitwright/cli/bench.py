# SPDX-License-Identifier: Apache-2.0
"""`bitwright bench`: its options and what it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.base.errors import RecipeError
from bitwright.cli.options import Data, Json, command_line, held_place, resolve
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.explore.bench.page import Benched
    from bitwright.explore.bench.subject import BenchSubject
    from bitwright.explore.bench.sweep import SweepSettings

_MOST = 1 << 16


def bench(  # noqa: PLR0913, PLR0917 - one argument an option
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run directories behind their step quantize."),
    ],
    data: Data = None,
    batches: Annotated[
        str, typer.Option("--batches", help="Images of a job, by commas; 1 gives the latency.")
    ] = "1,8,32,128",
    threads: Annotated[
        str, typer.Option("--threads", help="Runners beside each other, by commas.")
    ] = "1,2,4,8",
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Processor threads of a batch; by default all."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.01, help="That each measurement lasts, about.")
    ] = 1.0,
    watts: Annotated[
        str | None,
        typer.Option(
            "--watts",
            help="Where the machine does not show its power: cpu=95,gpu=175,dpu=22.8 by default.",
        ),
    ] = None,
    platforms: Annotated[
        str | None,
        typer.Option("--platforms", help="'cpu float32,cpu int8,gpu float32'; by default all."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the results.", show_default="bench"),
    ] = None,
    json: Json = False,
) -> None:
    """Throughput, latency and energy of an image: sweeps of batches and threads, compared."""
    from bitwright.base.processors import available_threads
    from bitwright.explore.bench.page import compared_table, write_bench
    from bitwright.explore.bench.power import counters, parse_watts
    from bitwright.explore.bench.sweep import SweepSettings
    from bitwright.report.table_page import check_folder

    output = Output(json)
    settings = SweepSettings(
        batches=_numbers(batches, "--batches"),
        threads=_numbers(threads, "--threads"),
        workers=workers or available_threads(),
        seconds=seconds,
    )
    constants = parse_watts(watts)
    with held_place(out, "bench") as place:
        check_folder(place)
        results = [_bench(output, run, data, settings, constants, platforms) for run in runs]
        written = write_bench(place, results, _facts(settings, bool(counters())))
    if output.answered({kind: str(place) for kind, place in written.items()}):
        return
    for found in results:
        output.results(compared_table(found))
    output.say(f"wrote {written['html']}")


def _bench(
    output: Output,
    run: str,
    data: Path | None,
    settings: SweepSettings,
    watts: dict[str, float],
    platforms: str | None,
) -> Benched:
    from bitwright.explore.bench.engines import engines_of
    from bitwright.explore.bench.page import Benched
    from bitwright.explore.bench.subject import subject_of_run
    from bitwright.explore.bench.sweep import performances, sweep
    from bitwright.explore.variants import split_names

    job = resolve(run, None, data)
    with output.progress() as progress:
        subject = subject_of_run(job.recipe, job.run_dir, progress)
        wanted = tuple(split_names(platforms))
        engines = engines_of(subject, wanted)
        swept = sweep(
            subject,
            settings,
            engines=engines,
            platforms=() if wanted else None,
            progress=progress,
        )
    notes = (*_accuracy(subject, settings), *swept.notes)
    return Benched(subject.name, swept.points, performances(swept, watts), notes)


def _accuracy(subject: BenchSubject, settings: SweepSettings) -> tuple[str, ...]:
    """What the runners get right, with as many threads as were swept."""
    from bitwright.explore.bench.engines import executor_engine
    from bitwright.explore.bench.sweep import accuracy_of

    if subject.labels is None or not settings.threads:
        return ()
    threads = max(settings.threads)
    share, seconds = accuracy_of(executor_engine(subject), subject.labels, threads)
    images = len(subject.labels)
    return (
        f"cpu int8, {threads} threads: {100 * share:.2f} % of {images} test images right, "
        f"in {seconds:.2f} s.",
    )


def _facts(settings: SweepSettings, metered: bool) -> dict[str, str]:
    import numpy
    import torch

    from bitwright.pipeline.steps.baseline import cpu_name

    return {
        "command": command_line(),
        "processor": cpu_name(),
        "workers": f"{settings.workers} processor threads of a batch, one of a runner's image",
        "power": "measured by RAPL" if metered else "constants: this machine shows none",
        "versions": f"torch {torch.__version__}, numpy {numpy.__version__}",
    }


def _numbers(text: str, where: str) -> tuple[int, ...]:
    """Positive numbers by commas; none of an empty text.

    Raises:
        RecipeError: it is no such list.
    """
    parts = [part for part in text.replace(" ", "").split(",") if part]
    if not all(re.fullmatch(r"[0-9]{1,5}", part) and 1 <= int(part) <= _MOST for part in parts):
        raise RecipeError(
            f"{text!r} is no list of numbers", where=where, hint="such as 1,8,32: each from 1 on"
        )
    return tuple(dict.fromkeys(map(int, parts)))
