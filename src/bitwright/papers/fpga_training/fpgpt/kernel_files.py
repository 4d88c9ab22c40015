# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of FPGPT as files, and which of them runs a convolution (2.4.9, 2.4.10).

A kernel is one TOML file with its compile-time parameters; a folder of them is a library that
networks share: before one is built, it is looked for here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bitwright.base.described import Strict, read_described
from bitwright.base.errors import DataError, ModelError
from bitwright.base.files import atomic_write
from bitwright.base.folders import make_folder
from bitwright.papers.fpga_training.fpgpt.cycles import cycles
from bitwright.papers.fpga_training.fpgpt.kernel import (
    SIZES,
    Kernel,
    Numbers,
    fits,
    kernel_for,
)
from bitwright.papers.fpga_training.jobs import ConvolutionJob

_Count = Annotated[int, Field(ge=1, le=1 << 40)]
_MOST = 10_000
_SAVED = re.compile(r"kernel-\d+\.toml")


class KernelFile(Strict):
    """Parameters of a kernel as its file has them; `Kernel` says what each is.

    Attributes:
        bits, dsp, reduction: of its numbers (`Numbers`).
    """

    columns: _Count
    rows: _Count
    span: _Count
    channel: _Count
    kern_burst: Annotated[int, Field(ge=0, le=1 << 40)]
    weight_gradient: bool
    band: _Count
    kern_words: _Count
    kern_groups: _Count
    out_blocks: _Count
    bits: Annotated[int, Field(ge=2, le=32)]
    dsp: _Count
    reduction: Annotated[int, Field(ge=0, le=64)]

    def kernel(self) -> Kernel:
        """The kernel that it describes."""
        own = {"bits", "dsp", "reduction"}
        return Kernel(
            **self.model_dump(exclude=own), numbers=Numbers(self.bits, self.dsp, self.reduction)
        )


@dataclass(frozen=True)
class Library:
    """Kernels that have been built, in the order of their files."""

    kernels: tuple[Kernel, ...]

    def find(self, job: ConvolutionJob, numbers: Numbers) -> Kernel:
        """The kernel of these numbers with which a convolution takes least cycles, of those that it
        fits.

        Raises:
            ModelError: it fits none; which parameter of the nearest one is too small.
        """
        able = [k for k in self.kernels if k.numbers == numbers and fits(k, job)]
        if able:
            return min(able, key=lambda kernel: int(cycles(job, kernel).total))
        raise ModelError(
            f"none of {len(self.kernels)} kernels runs the {job.product.value} of {job.layer!r}: "
            + self._why_none(job, numbers),
            hint="build a kernel for it (`explore.best_kernel`), or leave the layer to the CPU",
        )

    def _why_none(self, job: ConvolutionJob, numbers: Numbers) -> str:
        variant = "weight gradients" if job.is_weight_gradient else "forward and input gradients"
        kind = (job.is_weight_gradient, numbers)
        same = [k for k in self.kernels if (k.weight_gradient, k.numbers) == kind]
        if not same:
            return f"none was built for {variant} in {numbers}"
        faults = []
        for kernel in same:
            port = kernel.band * kernel.numbers.bits
            own = kernel_for(job, kernel.columns, kernel.rows, kernel.numbers, port)
            faults.append(
                [
                    f"{name} {getattr(kernel, name)}, it needs {getattr(own, name)}"
                    for name in SIZES
                    if getattr(kernel, name) < getattr(own, name)
                ]
            )
        nearest = min(faults, key=len)
        return f"the nearest was built for {'; '.join(nearest)}"

    def save(self, folder: Path) -> list[Path]:
        """Write one file a kernel, ``kernel-NN.toml``, in place of those that were saved before; to
        add to a library, save the kernels of both.

        Raises:
            DataError: a file cannot be written.
        """
        make_folder(folder)
        for old in folder.glob("kernel-*.toml"):
            if _SAVED.fullmatch(old.name):
                old.unlink()
        digits = max(2, len(str(len(self.kernels) - 1)))  # so that names are in their order
        paths = []
        for number, kernel in enumerate(self.kernels):
            values = {name: getattr(kernel, name) for name in SIZES}
            values |= {"band": kernel.band, "weight_gradient": kernel.weight_gradient}
            numbers = kernel.numbers
            values |= {"bits": numbers.bits, "dsp": numbers.dsp, "reduction": numbers.reduction}
            lines = [f"{name} = {str(value).lower()}" for name, value in values.items()]
            paths.append(folder / f"kernel-{number:0{digits}d}.toml")
            atomic_write(paths[-1], "\n".join(lines) + "\n")
        return paths


def load_library(folder: Path) -> Library:
    """The kernels of a folder.

    Raises:
        DataError: it has none, or too many.
        TargetError: a file describes no kernel, with the fields that are wrong.
    """
    paths = sorted(folder.glob("*.toml"))
    if not 0 < len(paths) <= _MOST:
        raise DataError(
            f"{len(paths)} kernels (*.toml), expected 1 to {_MOST}",
            where=str(folder),
            hint="write a library with `Library.save`",
        )
    return Library(tuple(_read(path) for path in paths))


def library_of(kernels: Iterable[Kernel]) -> Library:
    """A library of kernels, each once."""
    return Library(tuple(dict.fromkeys(kernels)))


def _read(path: Path) -> Kernel:
    return read_described(path, path.parent, KernelFile, "kernel").kernel()
