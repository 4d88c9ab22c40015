# SPDX-License-Identifier: Apache-2.0
"""Ristretto's search as one call: subject, search, files. No torch until the search begins."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.base.errors import DataError, RecipeError, ToolError
from bitwright.base.files import atomic_write
from bitwright.base.progress import Progress
from bitwright.data import Dataset
from bitwright.explore.subject import Subject, find_subject
from bitwright.papers.ristretto.behaviour import Parity
from bitwright.papers.ristretto.search import TrimmingMode, check_margin
from bitwright.report.table import Column, Kind, Table

if TYPE_CHECKING:
    from bitwright.explore.search.metrics import Metric
    from bitwright.papers.ristretto.run import RistrettoResult

_RANGE_IMAGES = 640


@dataclass(frozen=True)
class RistrettoRequest:
    """What `bitwright ristretto quantize` is asked; the options of the public tool and ours.

    Attributes:
        model, weights: the float network: prototxt and caffemodel (or another model's).
        model_quantized: the prototxt to write; None: only the report.
        trimming_mode: see `TrimmingMode`.
        error_margin: in percent.
        iterations: batches an evaluation.
        batch_size: images a batch.
        data: data set, as for `find_subject`.
        parity: mended, cpu or gpu.
        exponent_bits: of power-of-two weights.
        gpu: number of the device to run on; None: the CPU.
    """

    model: str
    weights: Path | None
    model_quantized: Path | None
    trimming_mode: str
    data: str | None
    error_margin: float = 2.0
    iterations: int = 50
    batch_size: int = 32
    metric: str | None = None
    parity: str = "mended"
    exponent_bits: int = 3
    gpu: int | None = None
    input_shape: tuple[int, int, int] | None = None
    seed: int = 0


def run_ristretto(request: RistrettoRequest, progress: Progress) -> RistrettoResult:
    """Run Ristretto's search; write the quantized prototxt and, beside it, the report.

    Raises:
        BitwrightError: what is wrong; then no file has been written.
    """
    check_margin(request.error_margin)
    if request.model_quantized is not None and not request.model.endswith(".prototxt"):
        raise RecipeError(
            "a quantized prototxt is written from a prototxt",
            where="--model_quantized",
            hint="name a .prototxt with --model, or leave --model_quantized out",
        )
    subject, metric = _prepared(request)
    from bitwright.papers.ristretto.run import search_ristretto

    result = search_ristretto(
        subject.model,
        metric,
        _samples(subject),
        mode=request.trimming_mode,
        margin=request.error_margin,
        parity=request.parity,
        weight_exponent_bits=request.exponent_bits,
        device=_device(request.gpu),
        tell=lambda trial: progress(f"{trial.group.value}, {trial.bits} bits", 0, 0),
    )
    if request.model_quantized is not None:
        write_ristretto(Path(request.model), request.model_quantized, result)
    return result


def run_sensitivity(request: RistrettoRequest, bits: int) -> Table:
    """Each layer alone, and in it input, output and parameters alone, at one width.

    Raises:
        BitwrightError: what is wrong.
    """
    subject, metric = _prepared(request)
    from bitwright.papers.ristretto.run import ristretto_sensitivity

    rows = ristretto_sensitivity(
        subject.model,
        metric,
        _samples(subject),
        bits=bits,
        mode=request.trimming_mode,
        parity=request.parity,
    )
    columns = (
        Column("layer", "layer"),
        Column("operand", "operand"),
        Column("bits", "bits", Kind.NUMBER),
        Column("accuracy", metric.name, Kind.SHARE),
        Column("lost", "lost", Kind.SHARE),
    )
    return Table(f"{subject.name}: one operand at a time", columns, tuple(rows))


def _prepared(request: RistrettoRequest) -> tuple[Subject, Metric]:
    """The subject with as many validation images as are asked for, and what is measured."""
    _one_of(request.trimming_mode, [mode.value for mode in TrimmingMode], "--trimming_mode")
    _one_of(request.parity, [parity.value for parity in Parity], "--parity")
    if request.iterations < 1:
        raise RecipeError(
            f"{request.iterations} batches an evaluation", where="--iterations", hint="at least 1"
        )
    subject = find_subject(
        request.model,
        data=request.data,
        weights=request.weights,
        input_shape=request.input_shape,
        seed=request.seed,
    )
    from bitwright.explore.search.metrics import metric_for

    if subject.validation is not None:
        count = min(len(subject.validation), request.iterations * request.batch_size)
        part = subject.validation.take(range(count))
        subject = replace(subject, validation=part, batch_size=request.batch_size)
    return subject, metric_for(subject, request.metric)


def _samples(subject: Subject) -> Dataset:
    """Training images for the ranges."""
    return subject.train.take(range(min(len(subject.train), _RANGE_IMAGES)))


def write_ristretto(source: Path, target: Path, result: RistrettoResult) -> None:
    """Write the quantized prototxt and the reports beside it.

    Raises:
        DataError: a folder is in the way, or the source has no such layer.
    """
    from bitwright.interop.caffe.quantized import quantized_prototxt

    if target.is_dir():
        raise DataError("is a folder", where=str(target), hint="name a .prototxt file")
    text = quantized_prototxt(source, result.params)
    atomic_write(target.with_suffix(".json"), json.dumps(result.to_json(), indent=1) + "\n")
    atomic_write(target.with_suffix(".md"), result.to_markdown())
    atomic_write(target, text)


def _one_of(value: str, allowed: list[str], where: str) -> None:
    if value not in allowed:
        raise RecipeError(f"unknown {value!r}", where=where, hint=f"one of {', '.join(allowed)}")


def _device(gpu: int | None) -> str | None:
    if gpu is None:
        return None
    import torch

    if not torch.cuda.is_available() or gpu >= torch.cuda.device_count():
        raise ToolError(
            f"there is no GPU {gpu} here", where="--gpu", hint="leave --gpu out to use the CPU"
        )
    return f"cuda:{gpu}"
