# SPDX-License-Identifier: Apache-2.0
"""Ranges of every layer: absolute maxima of input, output, weight and bias over some batches.

From them follow integer and fraction lengths and exponent bits by the formulas of Ristretto
(`bitwright.quantize.range_formulas`). Unlike there the bias has a column of its own, since a folded
bias can be far larger than the weights whose format it would share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.models.common import device_of
from bitwright.models.modes import evaluating
from bitwright.quantize.ptq.samples import Samples, calibration_batches, check_fit
from bitwright.quantize.range_formulas import (
    activation_il,
    exponent_bits,
    fraction_length,
    parameter_il,
)

BATCHES = 10


@dataclass(frozen=True)
class LayerRange:
    """Largest magnitudes of one convolution or dense layer.

    Attributes:
        path: of the layer.
        type: Conv2d or Linear.
        input, output, weight, bias: largest magnitudes; the bias' is 0 where there is none.
    """

    path: str
    type: str
    input: float
    output: float
    weight: float
    bias: float

    @property
    def il_input(self) -> int:
        """Integer bits of the input with the sign; the top half octave may clip."""
        return activation_il(self.input)

    @property
    def il_output(self) -> int:
        return activation_il(self.output)

    @property
    def il_parameters(self) -> int:
        """Integer bits of the weights with the sign; nothing clips. The bias does not count."""
        return parameter_il(self.weight)

    @property
    def il_bias(self) -> int:
        return parameter_il(self.bias)

    def fractions(self, bits: int) -> dict[str, int]:
        """``fl = bw - il`` of all four at a width."""
        lengths = {
            "input": self.il_input,
            "output": self.il_output,
            "parameters": self.il_parameters,
            "bias": self.il_bias,
        }
        return {name: fraction_length(bits, il) for name, il in lengths.items()}


@dataclass(frozen=True)
class RangeReport:
    """The ranges of a network.

    Attributes:
        layers: in the order of first use.
        batches, samples: what was run.
    """

    layers: tuple[LayerRange, ...]
    batches: int
    samples: int

    @property
    def exponent_bits(self) -> int:
        """Exponent bits of one small float format for all inputs and outputs, at least 4."""
        return exponent_bits([m for layer in self.layers for m in (layer.input, layer.output)])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [
            asdict(layer)
            | {
                "il_input": layer.il_input,
                "il_output": layer.il_output,
                "il_parameters": layer.il_parameters,
                "il_bias": layer.il_bias,
            }
            for layer in self.layers
        ]
        return {
            "batches": self.batches,
            "samples": self.samples,
            "exponent_bits": self.exponent_bits,
            "layers": rows,
        }

    def to_markdown(self) -> str:
        """A table."""
        lines = [
            "| layer | type | max in | max out | max weight | max bias | il in | il out "
            "| il weight | il bias |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r.path} | {r.type} | {r.input:.4g} | {r.output:.4g} | {r.weight:.4g} "
            f"| {r.bias:.4g} | {r.il_input} | {r.il_output} | {r.il_parameters} | {r.il_bias} |"
            for r in self.layers
        ]
        return "\n".join(lines) + "\n"


def measure_ranges(
    model: nn.Module, data: Samples, *, batches: int = BATCHES, batch_size: int = 64
) -> RangeReport:
    """Run a float model over the first batches and note the largest magnitudes.

    Args:
        batches: how many batches to run at most.
        batch_size: of a data set or tensor.

    Raises:
        DataError: the samples are unusable, or do not fit the model.
        ModelError: the model holds NaN or infinity, or no convolution or dense layer runs.
    """
    used = list(islice(calibration_batches(data, batch_size), batches))
    check_fit(model, used, anywhere=True)
    seen: dict[str, list[float]] = {}
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    handles = [layer.register_forward_hook(_recorder(seen, path)) for path, layer in layers.items()]
    place = device_of(model)
    try:
        with evaluating(model):
            for batch in used:
                model(batch.to(place))
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        raise ModelError(
            "has no convolution or dense layer",
            where=type(model).__name__,
            hint="only Conv2d and Linear have weights to quantize",
        )
    rows = [
        LayerRange(
            path,
            type(layers[path]).__name__,
            *maxima,
            largest(layers[path].weight),
            largest(layers[path].bias),
        )
        for path, maxima in seen.items()
    ]
    return RangeReport(tuple(rows), len(used), sum(len(batch) for batch in used))


def largest(x: Tensor | None) -> float:
    """The largest magnitude of a tensor; 0 of none."""
    return 0.0 if x is None or not x.numel() else float(x.detach().abs().max())


def _recorder(seen: dict[str, list[float]], path: str) -> Any:
    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        row = seen.setdefault(path, [0.0, 0.0])
        row[0] = max(row[0], largest(inputs[0]))
        row[1] = max(row[1], largest(output))

    return note
