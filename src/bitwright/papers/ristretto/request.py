# SPDX-License-Identifier: Apache-2.0
"""Ristretto's subject, metric and files, as the command line asks for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.base.errors import DataError, RecipeError, ToolError
from bitwright.base.files import atomic_write, json_text
from bitwright.data import Dataset
from bitwright.explore.subject import Subject, find_subject

if TYPE_CHECKING:
    from bitwright.explore.search.metrics import Metric
    from bitwright.papers.ristretto.run import RistrettoResult

_RANGE_IMAGES = 640


def prepared(
    model: str,
    data: str | None,
    weights: Path | None,
    input_shape: tuple[int, int, int] | None,
    metric: str | None,
    *,
    batches: int = 50,
    batch_size: int = 32,
) -> tuple[Subject, Metric, Dataset]:
    """The subject, what is measured, and training images for the ranges.

    Args:
        model, data, weights, input_shape: as for `find_subject`.
        batches, batch_size: of validation images that an evaluation takes.

    Raises:
        BitwrightError: what is wrong.
    """
    subject = find_subject(model, data=data, weights=weights, input_shape=input_shape, seed=0)
    from bitwright.explore.search.metrics import metric_for

    if subject.validation is not None:
        part = subject.validation.take(range(min(len(subject.validation), batches * batch_size)))
        subject = replace(subject, validation=part, batch_size=batch_size)
    samples = subject.train.take(range(min(len(subject.train), _RANGE_IMAGES)))
    return subject, metric_for(subject, metric), samples


def targets(model: str, target: Path | None) -> list[Path]:
    """The files that are written: the quantized prototxt, and the reports beside it.

    Raises:
        RecipeError: the model is no prototxt, or the very one that would be written.
        DataError: a folder is in the way.
    """
    if target is None:
        return []
    if not model.endswith(".prototxt"):
        raise RecipeError(
            "a quantized prototxt is written from a prototxt",
            where="--model_quantized",
            hint="name a .prototxt with --model, or leave --model_quantized out",
        )
    if target.is_dir():
        raise DataError("is a folder", where=str(target), hint="name a .prototxt file")
    if target.resolve() == Path(model).resolve():
        raise RecipeError(
            "is the float network itself", where="--model_quantized", hint="name another file"
        )
    return [target, *(target.with_suffix(ending) for ending in (".json", ".md"))]


def write_ristretto(source: Path, target: Path, result: RistrettoResult) -> None:
    """Write the quantized prototxt and the reports beside it.

    Raises:
        DataError: the source has no such layer.
    """
    from bitwright.interop.caffe.quantized import quantized_prototxt

    text = quantized_prototxt(source, result.params)
    atomic_write(target.with_suffix(".json"), json_text(result.to_json(), indent=1) + "\n")
    atomic_write(target.with_suffix(".md"), result.to_markdown())
    atomic_write(target, text)


def device_of_gpu(gpu: int | None) -> str | None:
    """The name of a GPU by its number; None: the CPU.

    Raises:
        ToolError: it is not there.
    """
    if gpu is None:
        return None
    import torch

    if not torch.cuda.is_available() or gpu >= torch.cuda.device_count():
        raise ToolError(
            f"there is no GPU {gpu} here", where="--gpu", hint="leave --gpu out to use the CPU"
        )
    return f"cuda:{gpu}"
