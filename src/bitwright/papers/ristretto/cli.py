# SPDX-License-Identifier: Apache-2.0
"""`bitwright ristretto`: its options and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.base.claims import claimed
from bitwright.cli.options import DataName, Force, Json, MetricName, Shape, Weights, parse_shape
from bitwright.cli.output import Output
from bitwright.papers.ristretto.search import Parity, TrimmingMode, check_margin
from bitwright.report.table import Column, Kind, Table

if TYPE_CHECKING:
    from bitwright.papers.ristretto.run import RistrettoResult


Model = Annotated[
    str, typer.Option("--model", help="The float network: a .prototxt (or another model).")
]
Mode = Annotated[TrimmingMode, typer.Option("--trimming_mode", help="The arithmetic.")]
Whose = Annotated[
    Parity, typer.Option("--parity", help="cpu, gpu: just as the public code computes.")
]

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
    model: Model,
    trimming_mode: Mode,
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
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="Batches an evaluation.")
    ] = 50,
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Images a batch.")] = 32,
    gpu: Annotated[
        int | None, typer.Option("--gpu", min=0, help="Number of a GPU; without, the CPU.")
    ] = None,
    parity: Whose = Parity.MENDED,
    exponent_bits: Annotated[
        int, typer.Option("--exponent_bits", min=1, max=6, help="Of power-of-two weights.")
    ] = 3,
    metric: MetricName = None,
    input_shape: Shape = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Halve the widths of groups of layers as long as the accuracy stays within the margin."""
    from bitwright.papers.ristretto import request

    output = Output(json)
    check_margin(error_margin)
    with claimed(*request.targets(model, model_quantized), force=force):
        subject, measured, samples = request.prepared(
            model, data, weights, parse_shape(input_shape), metric,
            batches=iterations, batch_size=batch_size,
        )  # fmt: skip
        from bitwright.papers.ristretto.run import search_ristretto

        with output.progress() as progress:
            result = search_ristretto(
                subject.model,
                measured,
                samples,
                mode=trimming_mode,
                margin=error_margin,
                parity=parity,
                weight_exponent_bits=exponent_bits,
                device=request.device_of_gpu(gpu),
                tell=lambda trial: progress(f"{trial.group.value}, {trial.bits} bits", 0, 0),
            )
        if model_quantized is not None:
            request.write_ristretto(Path(model), model_quantized, result)
    if json:
        output.value(result.to_json())
    else:
        _show_ristretto(output, result, model_quantized)


@ristretto.command()
def sensitivity(  # noqa: PLR0913, PLR0917 - one argument an option
    model: Model,
    trimming_mode: Mode,
    bits: Annotated[int, typer.Option("--bits", min=1, max=32, help="Width of what is tried.")] = 8,
    data: DataName = None,
    weights: Weights = None,
    parity: Whose = Parity.MENDED,
    metric: MetricName = None,
    input_shape: Shape = None,
    json: Json = False,
) -> None:
    """Quantize each layer alone, and in it input, output and parameters alone."""
    from bitwright.papers.ristretto.request import prepared

    subject, measured, samples = prepared(model, data, weights, parse_shape(input_shape), metric)
    from bitwright.papers.ristretto.run import ristretto_sensitivity

    rows = ristretto_sensitivity(
        subject.model, measured, samples, bits=bits, mode=trimming_mode, parity=parity
    )
    columns = (
        Column("layer", "layer"),
        Column("operand", "operand"),
        Column("bits", "bits", Kind.NUMBER),
        Column("accuracy", measured.name, Kind.SHARE),
        Column("lost", "lost", Kind.SHARE),
    )
    table = Table(f"{subject.name}: one operand at a time", columns, tuple(rows))
    output = Output(json)
    if json:
        output.value(table.to_json())
    else:
        output.table(table.title, [column.heading for column in table.columns], table.cells())


def _show_ristretto(output: Output, result: RistrettoResult, written: Path | None) -> None:
    output.say(result.outcome.log())
    shown = {path: param.to_dict() for path, param in result.params.items()}
    names = dict.fromkeys(name for fields in shown.values() for name in fields)
    rows = [(path, *(fields.get(n, "-") for n in names)) for path, fields in shown.items()]
    output.table("quantization_param", ("layer", *names), rows)
    if written is not None:
        output.say(f"wrote {written}, and the report beside it")


def add_commands(app: typer.Typer) -> None:
    """Add ``ristretto`` to the command line."""
    app.add_typer(ristretto)
