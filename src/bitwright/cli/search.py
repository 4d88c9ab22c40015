# SPDX-License-Identifier: Apache-2.0
"""`bitwright search` and `bitwright ristretto quantize`: their options and what they print."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli.options import DataName, Json, Shape, Subject, Weights, parse_shape
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.explore.searches import SearchReport
    from bitwright.papers.ristretto.run import RistrettoResult


class Metric(StrEnum):
    """What must stay good."""

    TOP1 = "top1"
    AGREEMENT = "agreement"
    VERIFICATION = "verification"


class Trimming(StrEnum):
    """Ristretto's kinds of arithmetic."""

    MINIFLOAT = "minifloat"
    DYNAMIC_FIXED_POINT = "dynamic_fixed_point"
    INTEGER_POWER_OF_2_WEIGHTS = "integer_power_of_2_weights"


class Parity(StrEnum):
    """Sound arithmetic, or what the public code does on CPU or GPU."""

    MENDED = "mended"
    CPU = "cpu"
    GPU = "gpu"


class Minimise(StrEnum):
    """What is made small under an accuracy budget."""

    SIZE = "size"
    MEMORY = "memory"
    BOPS = "bops"


MetricName = Annotated[
    Metric | None,
    typer.Option("--metric", help="By default top1; verification for networks of embeddings."),
]


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
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("search"),
    weights: Weights = None,
    input_shape: Shape = None,
    metric: MetricName = None,
    minimise: Annotated[
        Minimise, typer.Option("--minimise", help="What an accuracy budget makes small.")
    ] = Minimise.MEMORY,
    images: Annotated[
        int, typer.Option("--images", min=2, help="For sensitivities and calibration.")
    ] = 128,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.0, help="Measure no further network after this time."),
    ] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Fold batch norms first.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the calibration images.")] = 0,
    json: Json = False,
) -> None:
    """Find the format of every layer: the best network within a budget, as a policy."""
    from bitwright.explore.searches import SearchRequest, run_search

    output = Output(json)
    request = SearchRequest(
        subject,
        budget,
        out,
        candidates=candidates,
        activations=activations,
        data=data,
        weights=weights,
        input_shape=parse_shape(input_shape),
        metric=None if metric is None else metric.value,
        minimise=minimise.value,
        images=images,
        minutes=minutes,
        fold=fold,
        seed=seed,
    )
    with output.progress() as progress:
        report = run_search(request, progress)
    if json:
        output.value(report.to_json())
    else:
        _show_search(output, report, out)


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


ristretto = typer.Typer(
    name="ristretto",
    help="Ristretto's search of bit widths for Caffe networks (and any other model).",
    no_args_is_help=True,
)


@ristretto.callback()
def _ristretto() -> None:
    """Ristretto's search of bit widths for Caffe networks (and any other model)."""


@ristretto.command()
def quantize(  # noqa: PLR0913, PLR0917 - one argument an option
    model: Annotated[
        str, typer.Option("--model", help="The float network: a .prototxt (or another model).")
    ],
    trimming_mode: Annotated[Trimming, typer.Option("--trimming_mode", help="The arithmetic.")],
    data: DataName = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", help="Its numbers: the .caffemodel.")
    ] = None,
    model_quantized: Annotated[
        Path | None, typer.Option("--model_quantized", help="The quantized .prototxt to write.")
    ] = None,
    error_margin: Annotated[
        float, typer.Option("--error_margin", help="Largest drop of accuracy, in percent.")
    ] = 2.0,
    iterations: Annotated[int, typer.Option("--iterations", help="Batches an evaluation.")] = 50,
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Images a batch.")] = 32,
    gpu: Annotated[
        int | None, typer.Option("--gpu", min=0, help="Number of a GPU; without, the CPU.")
    ] = None,
    parity: Annotated[
        Parity, typer.Option("--parity", help="cpu, gpu: just as the public code computes.")
    ] = Parity.MENDED,
    exponent_bits: Annotated[
        int, typer.Option("--exponent_bits", min=1, max=6, help="Of power-of-two weights.")
    ] = 3,
    metric: MetricName = None,
    input_shape: Shape = None,
    json: Json = False,
) -> None:
    """Halve the widths of groups of layers as long as the accuracy stays within the margin."""
    from bitwright.explore.searches import RistrettoRequest, run_ristretto

    output = Output(json)
    request = RistrettoRequest(
        model,
        weights,
        model_quantized,
        trimming_mode.value,
        data,
        error_margin=error_margin,
        iterations=iterations,
        batch_size=batch_size,
        metric=None if metric is None else metric.value,
        parity=parity.value,
        exponent_bits=exponent_bits,
        gpu=gpu,
        input_shape=parse_shape(input_shape),
    )
    with output.progress() as progress:
        result = run_ristretto(request, progress)
    if json:
        output.value(result.to_json())
    else:
        _show_ristretto(output, result, model_quantized)


def _show_ristretto(output: Output, result: RistrettoResult, written: Path | None) -> None:
    output.say(result.outcome.log())
    shown = {path: param.to_dict() for path, param in result.params.items()}
    names = dict.fromkeys(name for fields in shown.values() for name in fields)
    rows = [(path, *(fields.get(n, "-") for n in names)) for path, fields in shown.items()]
    output.table("quantization_param", ("layer", *names), rows)
    if written is not None:
        output.say(f"wrote {written}, and the report beside it")
