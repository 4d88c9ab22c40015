# SPDX-License-Identifier: Apache-2.0
"""`bitwright ristretto`: its options and what it prints."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli.options import DataName, Json, MetricName, Shape, Weights, parse_shape
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.papers.ristretto.run import RistrettoResult


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
    from bitwright.papers.ristretto.request import RistrettoRequest, run_ristretto

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
        metric=metric,
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


@ristretto.command()
def sensitivity(  # noqa: PLR0913, PLR0917 - one argument an option
    model: Annotated[
        str, typer.Option("--model", help="The float network: a .prototxt (or another model).")
    ],
    trimming_mode: Annotated[Trimming, typer.Option("--trimming_mode", help="The arithmetic.")],
    bits: Annotated[int, typer.Option("--bits", min=1, max=32, help="Width of what is tried.")] = 8,
    data: DataName = None,
    weights: Weights = None,
    parity: Annotated[
        Parity, typer.Option("--parity", help="cpu, gpu: just as the public code computes.")
    ] = Parity.MENDED,
    metric: MetricName = None,
    input_shape: Shape = None,
    json: Json = False,
) -> None:
    """Quantize each layer alone, and in it input, output and parameters alone."""
    from bitwright.papers.ristretto.request import RistrettoRequest, run_sensitivity

    request = RistrettoRequest(
        model,
        weights,
        None,
        trimming_mode.value,
        data,
        metric=metric,
        parity=parity.value,
        input_shape=parse_shape(input_shape),
    )
    table = run_sensitivity(request, bits)
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
