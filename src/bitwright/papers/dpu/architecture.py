# SPDX-License-Identifier: Apache-2.0
"""Architecture files: one configured DPUCZDX8G, as a compiler must know it.

Eight sizes and the prebuilt design of the ZCU102 come with the package; one of your own is a path
to such a TOML file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from bitwright.base.described import Strict, is_file_name, read_described
from bitwright.base.errors import TargetError
from bitwright.base.files import parse_toml

_FOLDER = Path(__file__).parent / "architectures"
Relu = Literal["relu", "relu6", "leaky_relu"]
Usage = Literal["low", "high"]
_ALWAYS: tuple[Relu, ...] = ("relu", "relu6")
#: Classes that the softmax unit takes (Vailakis 2022, section 6.2).
MOST_LABELS = 1023
#: Cores of one instance of the core generator.
MOST_CORES = 4

_Count = Annotated[int, Field(gt=0, le=1 << 12, strict=True)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Parallelism(Strict):
    """What one core does at a time.

    Attributes:
        pixel: output pixels (PP).
        input_channel: input channels (ICP).
        output_channel: output channels (OCP).
    """

    pixel: _Count
    input_channel: _Count
    output_channel: _Count

    @property
    def operations(self) -> int:
        """Operations a cycle; a multiplication with its addition is two."""
        return 2 * self.pixel * self.input_channel * self.output_channel


class Options(Strict):
    """What a core is built with.

    Attributes:
        ram_usage: high: more on-chip memory.
        channel_augmentation: layers of fewer input channels than ICP fill the rest with further
            pixels of their kernel's row.
        depthwise: depthwise convolutions run on the engine, at half the pixel parallelism.
        average_pool: so do average pools, of square windows.
        relu: activation functions behind a product.
        softmax: a unit for it, one for all cores.
        dsp_usage: low: sums are made in LUTs.
    """

    ram_usage: Usage
    channel_augmentation: bool
    depthwise: bool
    average_pool: bool
    relu: tuple[Relu, ...]
    softmax: bool
    dsp_usage: Usage

    @model_validator(mode="after")
    def _keeps_the_plain_ones(self) -> Options:
        missing = [name for name in _ALWAYS if name not in self.relu]
        if missing:
            raise ValueError(f"relu must name {' and '.join(missing)}: every core has them")
        if len(set(self.relu)) != len(self.relu):
            raise ValueError(f"relu names one twice: {', '.join(self.relu)}")
        return self


class Limits(Strict):
    """The largest operations of a core (AMD, UG1414 1.4.1, "Currently Supported Operators", for
    DPUCZDX8G; of pools, Vailakis 2022, section 6.2).

    Attributes:
        kernel, stride: of a convolution, along each axis.
        pool: side of a window.
        bank_depth: kernel height x kernel width x ceil(input channels / ICP) is at most this.
        channel_groups: input channels are at most so many times ICP, output channels OCP.
    """

    kernel: _Count = 16
    stride: _Count = 8
    pool: _Count = 8
    bank_depth: _Count = 2048
    channel_groups: _Count = 256


class Extra(Strict):
    """What an option adds to a core (low DSP usage saves DSP slices instead)."""

    lut: _Amount = 0
    ff: _Amount = 0
    bram: _Amount = 0
    dsp: _Amount = 0


class Size(Strict):
    """One row of the tables of Vailakis 2022, section 6.2; block RAMs of 36 kbit.

    Attributes:
        high_ram: block RAMs with high RAM usage.
        channel_augmentation, average_pool: LUTs that the option adds.
        depthwise: what that option adds.
        low_dsp: LUTs and flip-flops that low DSP usage adds, DSP slices that it saves.
    """

    pixel: _Count
    input_channel: _Count
    output_channel: _Count
    lut: _Amount
    ff: _Amount
    bram: _Amount
    dsp: _Amount
    high_ram: _Amount
    channel_augmentation: _Amount
    depthwise: Extra
    average_pool: _Amount
    low_dsp: Extra

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(
            pixel=self.pixel,
            input_channel=self.input_channel,
            output_channel=self.output_channel,
        )


class Architecture(Strict):
    """A configured processor.

    Attributes:
        name: of the file.
        description: in words.
        size: a row of the tables, ``B512`` .. ``B4096``.
        parallelism: of a core; must be that of the size.
        cores: of one device.
        clock_mhz: of general logic; with ``dsp_double_rate`` the DSP slices run at twice that.
        dsp_double_rate: a DSP slice makes two products a cycle of general logic.
        watts: of the whole board under load, where somebody has said so; for energies.
        options, limits: see there.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    description: str = ""
    size: str
    parallelism: Parallelism
    cores: Annotated[int, Field(ge=1, le=MOST_CORES, strict=True)]
    clock_mhz: Annotated[float, Field(ge=1e-9, le=1000)]
    dsp_double_rate: bool
    watts: Annotated[float, Field(gt=0, le=10_000)] | None = None
    options: Options
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Architecture:
        known = sizes().get(self.size)
        if known is None:
            raise ValueError(f"size {self.size!r} is not known; there are {', '.join(sizes())}")
        if known.parallelism != self.parallelism:
            want, got = known.parallelism, self.parallelism
            raise ValueError(
                f"{self.size} has parallelism {_triple(want)} (pixel, input_channel, "
                f"output_channel), the file says {_triple(got)}: {got.operations} operations a "
                f"cycle"
            )
        return self

    @property
    def gops(self) -> float:
        """Peak of all cores in 10^9 operations a second."""
        return self.parallelism.operations * self.clock_mhz * self.cores / 1e3

    def changed(self, *, cores: int | None = None, **options: Any) -> Architecture:
        """The same with other cores or options."""
        fields = self.model_dump()
        fields["options"] |= options
        fields["cores"] = self.cores if cores is None else cores
        return Architecture.model_validate(fields)


def _triple(given: Parallelism) -> str:
    return f"({given.pixel}, {given.input_channel}, {given.output_channel})"


@cache
def sizes() -> Mapping[str, Size]:
    """The rows of the tables, from the smallest size to the largest."""
    text = files("bitwright.papers.dpu").joinpath("sizes.toml").read_text(encoding="utf-8")
    return {name: Size.model_validate(row) for name, row in parse_toml(text).items()}


def load_architecture(name: str | Path) -> Architecture:
    """An architecture file: one of the package by its name, in any case, or a path.

    Raises:
        TargetError: unknown name, unreadable file, missing fields, or fields that contradict each
            other (all are named).
    """
    text = str(name)
    known = text if is_file_name(text) else text.lower()
    hint = "`bitwright dpu list` shows those of the package; copy one of them"
    return read_described(known, _FOLDER, Architecture, "architecture", hint=hint)


def list_architectures() -> tuple[Architecture, ...]:
    """Those that come with the package, from small to large."""
    found = [load_architecture(path) for path in sorted(_FOLDER.glob("*.toml"))]
    return tuple(sorted(found, key=lambda a: (a.gops, a.name)))


def plain(size: str) -> Architecture:
    """One core of a size without options.

    Raises:
        TargetError: there is no such size.
    """
    if size not in sizes():
        raise TargetError(f"there is no size {size!r}", hint=f"one of {', '.join(sizes())}")
    return load_architecture(size)


RELUS: tuple[Relu, ...] = get_args(Relu)
