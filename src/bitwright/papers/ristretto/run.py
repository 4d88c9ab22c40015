# SPDX-License-Identifier: Apache-2.0
"""Ristretto's search on a torch model: ranges, evaluation of settings, formats, size, report."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from bitwright.base.errors import ModelError
from bitwright.explore.search.metrics import Metric
from bitwright.explore.sizes import SizeReport, Stored
from bitwright.interop.caffe.quantization_param import Precision, QuantizationParam
from bitwright.models.modes import evaluating
from bitwright.papers.ristretto.behaviour import Behaviour
from bitwright.papers.ristretto.layers import LayerRule, layers_of, with_rules
from bitwright.papers.ristretto.search import (
    FLOAT_BITS,
    Outcome,
    Parity,
    Setting,
    Tell,
    TrimmingMode,
    check_margin,
    search,
)
from bitwright.quantize.ptq.ranges import BATCHES, LayerRange, RangeReport, measure_ranges
from bitwright.quantize.ptq.samples import Samples
from bitwright.quantize.range_formulas import (
    activation_il,
    exponent_window,
    fraction_length,
    parameter_il,
)
from bitwright.report.table import Column, Table

DEFAULT_MARGIN = 2.0
_SIGN = 1
_MOST_MANTISSA = 23
_ALONE = {
    "in": (True, False, False),
    "out": (False, True, False),
    "params": (False, False, True),
    "all": (True, True, True),
}


@dataclass(frozen=True)
class RistrettoResult:
    """What the search found for a model.

    Attributes:
        outcome: trials, choice, accuracies.
        ranges: of every layer.
        rules: what becomes of each layer in the final network.
        metric: name of what was maximised.
        behaviour: whose arithmetic was simulated.
    """

    outcome: Outcome
    ranges: RangeReport
    rules: Mapping[str, LayerRule]
    metric: str
    parity: Parity
    behaviour: Behaviour = field(repr=False)

    @property
    def params(self) -> dict[str, QuantizationParam]:
        """``quantization_param`` of each layer, by path."""
        return {path: rule.param for path, rule in self.rules.items()}

    def model(self, model: nn.Module) -> nn.Module:
        """The quantized network; parameters are those of the model given."""
        return with_rules(model, self.rules)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.outcome.to_json(),
            "metric": self.metric,
            "parity": self.parity.value,
            "ranges": self.ranges.to_dict(),
            "quantization_param": {path: p.to_dict() for path, p in self.params.items()},
        }

    def to_markdown(self) -> str:
        """A report: log, and the formats of every layer."""
        fields = list(dict.fromkeys(k for p in self.params.values() for k in p.to_dict()))
        columns = (Column("layer", "layer"), *(Column(name, name) for name in fields))
        rows = tuple({"layer": path, **p.to_dict()} for path, p in self.params.items())
        return "\n".join(
            [
                "# Ristretto search",
                "",
                f"Metric: {self.metric}; arithmetic: {self.parity.value}.",
                "",
                "```",
                self.outcome.log(),
                "```",
                "",
                Table("", columns, rows).to_markdown(),
                self.ranges.to_markdown(),
            ]
        )


def search_ristretto(  # noqa: PLR0913 - the options of the public tool
    model: nn.Module,
    metric: Metric,
    samples: Samples,
    *,
    mode: TrimmingMode | str = TrimmingMode.DYNAMIC_FIXED_POINT,
    margin: float = DEFAULT_MARGIN,
    parity: Parity | str = Parity.MENDED,
    batches: int = BATCHES,
    weight_exponent_bits: int = 3,
    device: torch.device | str | None = None,
    tell: Tell = lambda _: None,
) -> RistrettoResult:
    """Ristretto's search on a float model; the model is left as it is.

    Args:
        model: any network with convolutions and dense layers.
        metric: what must not drop; how many batches it takes is its own affair.
        samples: for the ranges; training images, of which ``batches`` batches are run.
        mode: the kind of arithmetic.
        margin: largest drop of the metric, in percent (hundredths).
        parity: the mended arithmetic, or what the public CPU or GPU code does; see `Behaviour`.
        weight_exponent_bits: of power-of-two weights, besides the sign: 3 and 5 are usual.
        device: where networks are evaluated; None: where the model is. Ranges are always taken on
            the CPU, and ties are rounded to even on either, so the choice does not depend on it.
        tell: called with each trial as it is done.

    Raises:
        RecipeError: the margin lies outside 0 .. 100.
        DataError: the samples do not fit the model.
        ModelError: it has no convolution or dense layer, or weights that are not finite.
    """
    check_margin(margin)
    wanted, whose = TrimmingMode(mode), Parity(parity)
    behaviour = Behaviour.of(whose)
    if not layers_of(model):
        raise ModelError(
            "has no convolution or dense layer",
            where=type(model).__name__,
            hint="only Conv2d and Linear have weights to quantize",
        )
    ranges = measure_ranges(model, samples, batches=batches)
    here = model if device is None else copy.deepcopy(model).to(device)
    maker = RuleMaker(wanted, ranges, behaviour, weight_exponent_bits)

    def evaluate(setting: Setting) -> float:
        return metric(with_rules(here, maker.rules(setting)))

    outcome = search(
        wanted,
        evaluate,
        margin=margin,
        exponent=ranges.exponent_bits if wanted is TrimmingMode.MINIFLOAT else 0,
        weight_bits=_SIGN + weight_exponent_bits,
        tell=tell,
    )
    rules = maker.rules(outcome.chosen)
    return RistrettoResult(outcome, ranges, rules, metric.name, whose, behaviour)


@dataclass(frozen=True)
class RuleMaker:
    """From a setting and the ranges to the rule of each layer."""

    mode: TrimmingMode
    ranges: RangeReport
    behaviour: Behaviour
    weight_exponent_bits: int = 3

    def rules(self, setting: Setting) -> dict[str, LayerRule]:
        """Rules of the layers of which something is quantized."""
        made = {}
        for layer in self.ranges.layers:
            weights = setting.conv_params if layer.type == "Conv2d" else setting.fc_params
            if weights is None and setting.activations is None:
                continue
            made[layer.path] = self.rule(layer, weights, setting.activations, setting.exponent)
        return made

    def rule(
        self, layer: LayerRange, weights: int | None, features: int | None, exponent: int = 0
    ) -> LayerRule:
        """The rule of one layer; None keeps float."""
        make = {
            TrimmingMode.DYNAMIC_FIXED_POINT: self._fixed,
            TrimmingMode.MINIFLOAT: self._minifloat,
            TrimmingMode.INTEGER_POWER_OF_2_WEIGHTS: self._power_of_two,
        }[self.mode]
        rule = make(layer, weights or FLOAT_BITS, features or FLOAT_BITS, exponent)
        quantized = features is not None
        return replace(rule, inputs=quantized, outputs=quantized, weights=weights is not None)

    def _feature_fields(self, layer: LayerRange, bits: int) -> dict[str, int]:
        spare = not self.behaviour.clip_half
        return {
            "bw_layer_in": bits,
            "bw_layer_out": bits,
            "fl_layer_in": fraction_length(bits, activation_il(layer.input, spare_bit=spare)),
            "fl_layer_out": fraction_length(bits, activation_il(layer.output, spare_bit=spare)),
        }

    def _fixed(self, layer: LayerRange, weights: int, features: int, _: int) -> LayerRule:
        param = QuantizationParam(
            **self._feature_fields(layer, features),
            bw_params=weights,
            fl_params=fraction_length(weights, parameter_il(layer.weight)),
        )
        return LayerRule(param, self.behaviour)

    def _minifloat(self, layer: LayerRange, weights: int, _: int, exponent: int) -> LayerRule:
        mantissa = min(weights - _SIGN - exponent, _MOST_MANTISSA)
        param = QuantizationParam(
            precision=Precision.MINIFLOAT, mant_bits=mantissa, exp_bits=exponent
        )
        if self.behaviour.fixed_exponents:
            return LayerRule(param, self.behaviour)
        shifts = [
            _shift(largest, exponent, mantissa)
            for largest in (layer.input, layer.weight, layer.output)
        ]
        return LayerRule(param, self.behaviour, True, True, True, *shifts)

    def _power_of_two(self, layer: LayerRange, _: int, features: int, __: int) -> LayerRule:
        window = exponent_window(layer.weight, self.weight_exponent_bits)
        param = QuantizationParam(
            precision=Precision.INTEGER_POWER_OF_2_WEIGHTS,
            **self._feature_fields(layer, features),
            exp_min=window[0],
            exp_max=window[1],
        )
        return LayerRule(param, self.behaviour)


def _shift(largest: float, exponent: int, mantissa: int) -> int:
    """Base-2 logarithm of the smallest scale at which nothing saturates."""
    if largest == 0:
        return 0
    top = (2.0 - 2.0**-mantissa) * 2.0 ** ((1 << exponent) - 1 - ((1 << (exponent - 1)) - 1))
    return math.ceil(math.log2(largest / top))


def ristretto_sensitivity(
    model: nn.Module,
    metric: Metric,
    samples: Samples,
    *,
    bits: int = 8,
    mode: TrimmingMode | str = TrimmingMode.DYNAMIC_FIXED_POINT,
    parity: Parity | str = Parity.MENDED,
    batches: int = BATCHES,
) -> list[dict[str, Any]]:
    """Each layer alone, and in it input, output and parameters alone, at one width.

    Returns:
        Rows (layer, operand, bits, accuracy, lost) in the order of the network; operands are
        ``in``, ``out``, ``params`` and ``all``.

    Raises:
        DataError, ModelError: as `search_ristretto`.
    """
    behaviour = Behaviour.of(Parity(parity))
    ranges = measure_ranges(model, samples, batches=batches)
    wanted = TrimmingMode(mode)
    maker = RuleMaker(wanted, ranges, behaviour)
    exponent = ranges.exponent_bits if wanted is TrimmingMode.MINIFLOAT else 0
    baseline = metric(model)
    rows = []
    for layer in ranges.layers:
        whole = maker.rule(layer, bits, bits, exponent)
        for operand, (inputs, outputs, weights) in _ALONE.items():
            rule = replace(whole, inputs=inputs, outputs=outputs, weights=weights)
            accuracy = metric(with_rules(model, {layer.path: rule}))
            rows.append(
                {
                    "layer": layer.path,
                    "operand": operand,
                    "bits": bits,
                    "accuracy": accuracy,
                    "lost": baseline - accuracy,
                }
            )
    return rows


def ristretto_size(
    model: nn.Module, rules: Mapping[str, LayerRule], sample_shape: tuple[int, ...]
) -> SizeReport:
    """The size of a network that Ristretto quantized: features are the inputs of its layers.

    Batch norms stay float, as they do in its networks.
    """
    layers = layers_of(model)
    shapes: dict[str, tuple[int, int]] = {}

    def note(path: str) -> Any:
        def hook(_: nn.Module, given: tuple[torch.Tensor, ...], made: torch.Tensor) -> None:
            shapes[path] = (given[0][0].numel(), made[0].numel())

        return hook

    handles = [layer.register_forward_hook(note(path)) for path, layer in layers.items()]
    try:
        with evaluating(model):
            model(torch.zeros((1, *sample_shape)))
    finally:
        for handle in handles:
            handle.remove()
    entries: list[Stored] = []
    read, made = [0, 0], [0, 0]
    for path, (count_in, count_out) in shapes.items():
        bits = _bits_of(rules.get(path))
        entries.append(Stored(path, "activation", bits.name, count_in, bits.inputs))
        entries.append(Stored(path, "weight", bits.name, layers[path].weight.numel(), bits.weights))
        bias = layers[path].bias
        if bias is not None:
            entries.append(Stored(path, "bias", bits.name, bias.numel(), bits.bias))
        read = [read[0] + count_in, read[1] + count_in * bits.inputs]
        made = [made[0] + count_out, made[1] + count_out * bits.outputs]
    entries += [
        Stored("batch norm", "batch_norm", "float32", 4 * norm.num_features, FLOAT_BITS)
        for norm in model.modules()
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    ]
    parameters = sum(e.count for e in entries if not e.is_feature)
    return SizeReport(tuple(entries), parameters, (read[0], read[1]), (made[0], made[1]))


class _Bits(NamedTuple):
    name: str
    inputs: int
    weights: int
    outputs: int
    bias: int


def _bits_of(rule: LayerRule | None) -> _Bits:
    if rule is None:
        return _Bits("float32", *(FLOAT_BITS,) * 4)
    param, bias = rule.param, FLOAT_BITS
    reads, makes = param.bw_layer_in, param.bw_layer_out
    if param.precision is Precision.MINIFLOAT:
        name = f"e{param.exp_bits}m{param.mant_bits}"
        reads = weights = makes = 1 + param.exp_bits + param.mant_bits
        bias = weights if rule.behaviour.bias_as_weight else bias
    elif param.precision is Precision.INTEGER_POWER_OF_2_WEIGHTS:
        weights = 1 + (param.exp_max - param.exp_min).bit_length()
        name = f"po2_{weights}"
        if rule.behaviour.float_features:
            reads = makes = FLOAT_BITS
    else:
        name, weights = "dfp", param.bw_params
        bias = weights if rule.behaviour.bias_as_weight else bias
    quantized = (rule.inputs, rule.weights, rule.outputs, rule.weights)
    found = zip((reads, weights, makes, bias), quantized, strict=True)
    return _Bits(name, *(bits if kept else FLOAT_BITS for bits, kept in found))
