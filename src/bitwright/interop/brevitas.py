# SPDX-License-Identifier: Apache-2.0
"""State dicts of Brevitas: weights, batch norms and scales of a model of its layers, by name.

Brevitas' layers keep the parameter names of torch's, and put the state of their quantizers beside
them::

    conv1.weight                                                                 QuantConv2d
    conv1.weight_quant.tensor_quant.scaling_impl.value                           a learned scale
    relu1.act_quant.fused_activation_quant_proxy.tensor_quant.scaling_impl.value QuantReLU

So the model that takes them is the user's own with plain layers in their places: ``nn.Conv2d`` for
QuantConv2d, ``nn.Linear``, ``nn.ReLU``, ``nn.Identity`` for QuantIdentity. Widths are no part of a
state dict: the policy says them, by Brevitas' names if one likes
(`quantize.brevitas_words`). Brevitas itself is not needed.

A scale is ``|value|`` (at least 1e-10), the largest magnitude, by the number of steps up to it:
``2^(N-1)`` of signed numbers, one less of narrow ones, ``2^N - 1`` of unsigned ones; all in
float32, so that the scales are Brevitas' bit for bit. Powers of two are kept as logarithms.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.convert import apply
from bitwright.quantize.layers import QuantLayer
from bitwright.quantize.model import QuantizedModel
from bitwright.quantize.policy import Policy
from bitwright.quantize.quantizer import Quantizer
from bitwright.quantize.scale_rules import rows
from bitwright.quantize.spec import QuantSpec, Role, ScaleRule
from bitwright.quantize.straight_through import spread
from bitwright.quantize.trace import trace
from bitwright.quantize.weight_quantizer import WeightQuantizer

NEAREST, UP = "nearest", "up"
_LEAST = 1e-10  # Brevitas' scaling_min_val
_IMPL = r"tensor_quant\.scaling_impl\.(?:value|learned_value)"
_ACTIVATION = re.compile(rf"(?P<path>.+)\.act_quant\.(?:fused_activation_quant_proxy\.)?{_IMPL}")
_PARAMETER = re.compile(rf"(?P<path>.+)\.(?P<what>weight|bias)_quant\.{_IMPL}")
#: State of quantizers that changes no number here, or only while Brevitas trains. ``.`` takes line
#: ends, too: else a name is followed up to the first of them from each of its parts.
_QUIET = re.compile(r".+\.(?:training|runtime_stats\..+|counter|init_done)", re.DOTALL)
_QUANTIZER = re.compile(r".+\.(?:act|weight|bias|input|output)_quant\..+", re.DOTALL)
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class BrevitasModel:
    """What became of a state dict.

    Attributes:
        model: with the weights and scales, to evaluate, freeze or train on.
        open: paths of quantizers that the state says nothing of: Brevitas has none there. The next
            batch, or a calibration, sets their scales.
        fixed: layers whose integers are fixed, as the rule of the policy gives others: scales that
            are powers of two, of which Brevitas' is another one, or a quotient that float32 rounds
            to the other side of a border between two levels. Training lets them stay;
            `WeightQuantizer.release` ends that.
    """

    model: QuantizedModel
    open: tuple[str, ...]
    fixed: tuple[str, ...]


def load_brevitas(
    model: nn.Module,
    state: Mapping[str, Tensor],
    policy: Policy,
    *,
    sample_shape: tuple[int, ...],
    logarithms: bool = False,
    powers: str = NEAREST,
) -> BrevitasModel:
    """A model with plain layers as the quantized network that Brevitas' state dict is of.

    Args:
        model: the same layers under the same names; it is left as it is.
        state: the state dict, as torch loads it.
        policy: with the widths; its scale rules must be those of the state: ``learned`` where there
            is a scale, else what follows from the weights.
        sample_shape: of one input, (C, H, W) or (C,).
        logarithms: learned scales are kept as logarithms (``restrict_scaling_type`` LOG_FP).
        powers: how exponents of powers of two are rounded: ``nearest``, as Brevitas does where
            ``restrict_scaling_type`` is POWER_OF_TWO, or ``up``, as in its quantizers that are
            named FixedPoint.

    Raises:
        DataError: a key that the model has not, or lacks; a shape or number that does not fit; a
            zero point or a width that was learned.
        ModelError: the model cannot be converted, or parts of a concatenation share a scale here
            that have different ones in the state.
    """
    if powers not in (NEAREST, UP):
        raise DataError(f"unknown powers {powers!r}", where="state", hint=f"{NEAREST} or {UP}")
    kept = _Kept(logarithms, torch.ceil if powers == UP else torch.round)
    plain, scales, parameters = _sorted(state)
    own = copy.deepcopy(model)
    first = _at_input(own)
    for path in scales:
        if path not in first and isinstance(_module(own, path), nn.Identity):
            own.set_submodule(path, nn.Hardtanh(-math.inf, math.inf))
    converted = apply(own, policy, "train", sample_shape=sample_shape)
    assert isinstance(converted, QuantizedModel)
    _load(converted, plain)
    set_by: dict[int, tuple[str, float]] = {}
    for path, value in scales.items():
        quantizer = _quantizer_at(converted, path, first)
        scale = kept.scale(value, quantizer.spec, f"{path}.act_quant")
        _put(quantizer, path, float(scale.reshape(-1)[0]), set_by)
    for (path, what), value in parameters.items():
        _put_parameter(converted, path, what, value, kept)
    quantizers = [(path, m) for path, m in converted.named_modules()
                  if isinstance(m, ActivationQuantizer)]  # fmt: skip
    unset = tuple(path for path, quantizer in quantizers if not quantizer.ready)
    fixed = tuple(path for path, layer in converted.named_modules()
                  if isinstance(layer, QuantLayer) and _fix(layer, kept))  # fmt: skip
    return BrevitasModel(converted.eval(), unset, fixed)


_Scales = dict[str, Tensor]
_Parameters = dict[tuple[str, str], Tensor]


def _sorted(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], _Scales, _Parameters]:
    """Parameters and buffers of torch's layers; scales of activations; those of weights."""
    plain: dict[str, Tensor] = {}
    scales: _Scales = {}
    parameters: _Parameters = {}
    for key, value in state.items():
        if not (isinstance(key, str) and isinstance(value, Tensor) and _is_plain(value)):
            raise DataError(
                f"{key!r:.80} is no tensor of numbers",
                where="state",
                hint="give model.state_dict()",
            )
        if not bool(torch.isfinite(value).all()):
            raise DataError(f"{key!r:.80} holds NaN or infinity", where="state")
        if match := _ACTIVATION.fullmatch(key):
            scales[match["path"]] = value
        elif match := _PARAMETER.fullmatch(key):
            parameters[match["path"], match["what"]] = value
        elif _QUANTIZER.fullmatch(key) and not _QUIET.fullmatch(key):
            raise DataError(
                f"{key!r:.120} has no counterpart here",
                where="state",
                hint="zero points, learned widths, and quantizers of inputs and outputs inside of "
                "a layer are not read: use QuantIdentity, QuantReLU and constant widths",
            )
        elif not _QUIET.fullmatch(key):
            plain[key] = value
    return plain, scales, parameters


def _is_plain(value: Tensor) -> bool:
    """Whether it holds real numbers, one for each element, here."""
    return (
        value.layout is torch.strided
        and value.numel() > 0
        and not (value.is_quantized or value.is_complex() or value.is_meta)
    )


def _module(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise DataError(
            f"the state has a quantizer at {path!r:.80}, the model has no layer there",
            where="state",
            hint="put nn.Identity where Brevitas has QuantIdentity, nn.ReLU where it has QuantReLU",
        ) from None


def _at_input(model: nn.Module) -> frozenset[str]:
    """Paths of the layers that do nothing but take the network's input: QuantIdentity there is the
    quantizer of the input.
    """
    return frozenset(
        str(node.target)
        for node in trace(model).nodes
        if node.op == "call_module"
        and isinstance(model.get_submodule(str(node.target)), nn.Identity)
        and all(source.op == "placeholder" for source in node.all_input_nodes)
    )


def _load(converted: QuantizedModel, plain: Mapping[str, Tensor]) -> None:
    """Parameters and buffers by name; what quantizers keep is not among them."""
    own = {path for path, m in converted.named_modules() if isinstance(m, Quantizer)}
    wanted = {
        key: value
        for key, value in converted.state_dict().items()
        if key.rpartition(".")[0] not in own
    }
    extra = [key for key in plain if key not in wanted]
    missing = [key for key in wanted if key not in plain and not key.endswith(_COUNTER)]
    if extra or missing:
        what = f"has {extra[0]!r:.80}, the model has not" if extra else f"lacks {missing[0]!r:.80}"
        raise DataError(
            f"the state {what} (and {len(extra) + len(missing) - 1} more)",
            where="state",
            hint="the model must have the same layers under the same names",
        )
    for key, value in plain.items():
        if value.shape != wanted[key].shape:
            raise DataError(
                f"{key!r:.80} has the shape {tuple(value.shape)}, the model's "
                f"{tuple(wanted[key].shape)}",
                where="state",
            )
    converted.load_state_dict(dict(plain), strict=False)


def _quantizer_at(
    converted: QuantizedModel, path: str, first: frozenset[str]
) -> ActivationQuantizer:
    if path in first:
        found = [m for m in converted.modules()
                 if isinstance(m, ActivationQuantizer) and m.role is Role.INPUT]  # fmt: skip
        if found:
            return found[0]
    module = converted.get_submodule(path) if path not in first else None
    if not isinstance(module, ActivationQuantizer):
        raise DataError(
            f"the state has a scale at {path!r:.80}, where the policy quantizes nothing",
            where="state",
            hint="give the activation there a format",
        )
    return module


@dataclass(frozen=True)
class _Kept:
    """How scales are kept.

    Attributes:
        logarithms: as logarithms of reals.
        rounded: an exponent of two -> the whole one.
    """

    logarithms: bool
    rounded: Callable[[Tensor], Tensor]

    def scale(self, value: Tensor, spec: QuantSpec, where: str) -> Tensor:
        """The scale of what is stored, float32."""
        if not spec.format.is_integer or spec.zero_point:
            raise DataError(f"{spec.format} has no scale of Brevitas", where=where)
        stored = value.detach().to(torch.float32)
        if spec.power_of_two:
            stored = torch.exp2(self.rounded(stored))
        elif self.logarithms:
            stored = torch.exp2(stored)
        return stored.abs().clamp(min=_LEAST) / _steps(spec)

    def scale_of(self, weight: Tensor, spec: QuantSpec) -> Tensor:
        """The scale of a weight whose largest magnitude gives it, float32."""
        reach = rows(weight.detach().to(torch.float32), spec.granularity).abs().amax(dim=1)
        reach = reach.clamp(min=_LEAST)
        if spec.power_of_two:
            reach = torch.exp2(self.rounded(torch.log2(reach)))
        return reach / _steps(spec)


def _steps(spec: QuantSpec) -> float:
    """Brevitas' integer threshold: steps from zero to the largest magnitude."""
    number_format = spec.format
    if spec.power_of_two:
        return float(2 ** (number_format.bits - number_format.signed))
    return float(max(-number_format.min_level, number_format.max_level))


def _put(
    quantizer: ActivationQuantizer, path: str, scale: float, set_by: dict[int, tuple[str, float]]
) -> None:
    owner = quantizer.owner
    other, known = set_by.setdefault(id(owner), (path, scale))
    if known != scale:
        raise ModelError(
            f"{other} and {path} share one scale here, and have {known:g} and {scale:g} in the "
            "state",
            where="state",
            hint="a product that reads a concatenation needs one scale: put a QuantIdentity behind "
            "it, or quantize its parts by one and the same",
        )
    owner.set_scale(scale)


def _put_parameter(
    converted: QuantizedModel, path: str, what: str, value: Tensor, kept: _Kept
) -> None:
    """A learned scale of a weight or bias."""
    quantizer = getattr(_module(converted, path), f"{what}_quantizer", None)
    where = f"{path}.{what}_quant"
    if not isinstance(quantizer, WeightQuantizer) or quantizer.spec.scale is not ScaleRule.LEARNED:
        rule = "nothing" if quantizer is None else quantizer.spec.scale
        raise DataError(
            f"the state has a learned scale, the policy says {rule}",
            where=where,
            hint=f"{what}_scaling_impl_type: PARAMETER_FROM_STATS",
        )
    scale = kept.scale(value, quantizer.spec, where).reshape(-1)
    own = quantizer.trained_state
    if scale.numel() not in (1, own.numel()):
        raise DataError(f"{scale.numel()} scales for {own.numel()}", where=where)
    with torch.no_grad():
        own.copy_(scale.expand_as(own))
    quantizer._is_set = True


@torch.no_grad()
def _fix(layer: QuantLayer, kept: _Kept) -> bool:
    """Fix the integers of a weight where Brevitas has others."""
    quantizer, weight = layer.weight_quantizer, layer.weight
    spec = quantizer.spec
    if not (spec.format.is_integer and spec.scale in (ScaleRule.MAX, ScaleRule.LEARNED)):
        return False
    levels, unit = quantizer.levels(weight)
    wanted = unit
    if spec.scale is ScaleRule.MAX:
        wanted = kept.scale_of(weight, spec).to(torch.float64)
    ratio = weight.to(torch.float32) / spread(wanted.to(torch.float32), weight)
    theirs = ratio.clamp(spec.format.min_level, spec.format.max_level).round().to(torch.float64)
    if torch.equal(theirs, levels) and torch.equal(wanted, unit):
        return False
    quantizer.fix_levels(theirs, wanted)
    return True
