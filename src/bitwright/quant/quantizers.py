# SPDX-License-Identifier: Apache-2.0
"""Quantizer modules: one for weights, one for activations and the input.

Their state (learned scales, running statistics) sits under keys of its own, so a float state dict
loads into a quantized model: the quantizers then start anew, with the next batch.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.errors import ModelError
from bitwright.formats import BipolarFormat, Overflow, Rounding, TernaryFormat
from bitwright.quant.functions import (
    LearnedWeight,
    QuantizeActivation,
    SignActivation,
    Stairs,
    SubstituteWeight,
    quantize_into,
    spread,
    to_levels_,
)
from bitwright.quant.policy import Granularity, QuantSpec, Role, ScaleRule
from bitwright.quant.rounding_torch import encode_levels, quantize_ratio
from bitwright.quant.scales import TERNARY_THRESHOLD, TINY, finish, observed_scale, weight_scale


class Phase(StrEnum):
    """What `apply` prepares a model for: observe, train with quantization, or exact integers."""

    CALIBRATE = "calibrate"
    TRAIN = "train"
    FREEZE = "freeze"


def _load_float_state(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load hook: a state dict without any key of this quantizer is one of a float model.

    Scales that were found for other weights are forgotten then (the next batch sets them); the
    input's scale, which belongs to the data, and constants stay.
    """
    own = {prefix + key: value for key, value in module.state_dict().items()}
    if any(key in state for key in own):
        return
    keep = isinstance(module, ActivationQuantizer) and (
        module.constant or module.role is Role.INPUT
    )
    state.update(own if keep else {k: torch.zeros_like(v) for k, v in own.items()})


class WeightQuantizer(nn.Module):
    """Weight (O, ...) -> quantized weight of the same shape, with straight-through gradients.

    Args:
        spec: what to do; ``learned`` adds a parameter ``scale``, initialised from the first weight.
        channels: output channels O.
    """

    def __init__(self, spec: QuantSpec, channels: int) -> None:
        super().__init__()
        self.spec = spec
        self.phase = Phase.TRAIN
        count = channels if spec.granularity is Granularity.PER_CHANNEL else 1
        if spec.scale is ScaleRule.LEARNED:
            self.scale = nn.Parameter(torch.zeros(count))  # 0: not initialised yet
            self.register_load_state_dict_pre_hook(_load_float_state)

    def forward(self, weight: Tensor) -> Tensor:
        if self.phase is Phase.CALIBRATE:
            return weight
        if not (self.training or torch.is_grad_enabled()):
            return self.frozen_weight(weight)
        if self.spec.scale is ScaleRule.LEARNED:
            return self._learned(weight)
        scale = weight_scale(weight.detach(), self.spec)
        quantized, keep = self._quantize(weight.detach(), scale)
        return SubstituteWeight.apply(weight, quantized, keep)

    @torch.no_grad()
    def current_scale(self, weight: Tensor) -> Tensor:
        """The scale for this weight, (1,) or (O,), as forward uses it."""
        if self.spec.scale is not ScaleRule.LEARNED:
            return weight_scale(weight.detach(), self.spec)
        self._initialise(weight)
        return finish(self.scale.detach(), self.spec)

    @torch.no_grad()
    def levels(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Exact integer levels (O, ...) and the unit of one level (1,) or (O,), both float64.

        The definition for evaluation and freezing: the float32 scale taken to float64, and the
        encode rule of the format there. Stochastic rounding becomes half to even.
        """
        unit = self.current_scale(weight).to(torch.float64) * self.spec.format.lsb
        if self._is_twn:
            return _twn_levels(weight.to(torch.float64), self.spec), unit
        stochastic = self.spec.rounding is Rounding.STOCHASTIC
        levels = encode_levels(
            weight,
            self.spec.format,
            spread(unit / self.spec.format.lsb, weight),
            rounding=Rounding.HALF_EVEN if stochastic else self.spec.rounding,
            overflow=self.spec.overflow,
        )
        return levels, unit

    @torch.no_grad()
    def frozen_weight(self, weight: Tensor) -> Tensor:
        """``unit * levels`` in the weight's dtype."""
        levels, unit = self.levels(weight)
        return (levels * spread(unit, weight)).to(weight.dtype)

    @property
    def _is_twn(self) -> bool:
        """Ternary with Li and Liu's threshold, which is not half a level."""
        return isinstance(self.spec.format, TernaryFormat) and self.spec.scale is ScaleRule.MEAN

    @property
    def _stairs(self) -> Stairs:
        low, high = self.spec.format.min_level, self.spec.format.max_level
        if self.spec.overflow is Overflow.SAT_SYM and low < 0:
            low = -high
        return low, high, self.spec.rounding

    def _quantize(self, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor | None]:
        """Quantized weight and the mask of the gradient (None: it passes everywhere)."""
        spec = self.spec
        unit = spread(scale * spec.format.lsb, weight)
        if isinstance(spec.format, BipolarFormat):
            sign = quantize_ratio(weight / unit, spec.format, rounding=spec.rounding)
            # BinaryConnect clips weights to [-1, 1]; stopping the gradient there does the same.
            return sign.mul_(unit), weight.abs() <= 1
        if self._is_twn:
            return _twn_levels(weight, spec).mul_(unit), None
        if spec.overflow is Overflow.WRAP:
            levels = quantize_ratio(weight / unit, spec.format, 0, spec.rounding, spec.overflow)
            return levels.mul_(unit), None
        ratio = weight / unit
        keep = None
        if spec.scale is not ScaleRule.MAX:
            low, high, _ = self._stairs
            keep = (ratio >= low) & (ratio <= high)
        return to_levels_(ratio, self._stairs).mul_(unit), keep

    def _learned(self, weight: Tensor) -> Tensor:
        self._initialise(weight)
        unit = finish(self.scale.detach(), self.spec) * self.spec.format.lsb
        high = max(self._stairs[1], 1)
        share = weight.numel() / self.scale.numel()
        factor = self.spec.format.lsb / math.sqrt(share * high)
        if isinstance(self.spec.format, BipolarFormat):
            sign = SubstituteWeight.apply(
                weight,
                quantize_ratio(weight.detach(), self.spec.format),
                weight.detach().abs() <= 1,
            )
            return sign * spread(self.scale.abs() * self.spec.format.lsb, weight)
        return LearnedWeight.apply(weight, self.scale, unit, self._stairs, factor)

    @torch.no_grad()
    def _initialise(self, weight: Tensor) -> None:
        if not bool(self.scale.any()):
            self.scale.copy_(weight_scale(weight.detach(), self.spec))

    def extra_repr(self) -> str:
        return f"{self.spec.format}, {self.spec.granularity}, {self.spec.scale_text}"


def _twn_levels(weight: Tensor, spec: QuantSpec) -> Tensor:
    """sign(w) where |w| exceeds 0.7 x its mean, else 0 (Li and Liu 2016, eq. 3 and 6)."""
    magnitude = weight.abs()
    if spec.granularity is Granularity.PER_CHANNEL:
        mean = magnitude.mean(dim=tuple(range(1, weight.dim())), keepdim=True)
    else:
        mean = magnitude.mean()
    return torch.sign(weight) * (magnitude > TERNARY_THRESHOLD * mean)


class ScaleGroup:
    """Quantizers that share one scale: their tensors are concatenated in front of a product.

    The first member owns the scale (a constant one before all others); it begins as, and for
    statistics follows, the largest that any member asks for.
    """

    def __init__(self, members: list[ActivationQuantizer]) -> None:
        self.members = sorted(members, key=lambda member: not member.constant)
        for member in self.members:
            member.join(self)

    @property
    def owner(self) -> ActivationQuantizer:
        return self.members[0]

    @torch.no_grad()
    def refresh(self) -> None:
        """Set the scale to the largest of the members' statistics."""
        largest = torch.stack([m.seen * m.spec.format.lsb for m in self.members]).amax(dim=0)
        self.owner.scale.copy_(largest / self.owner.spec.format.lsb)


class ActivationQuantizer(nn.Module):
    """Activation -> quantized activation; takes the place of a ReLU, hard tanh or nothing.

    Its unsigned formats clamp at zero, so a ReLU needs no pass of its own. The scale is a parameter
    (``learned``) or a running statistic; before the first batch it is 0, and the first batch seen
    in training or calibration sets it.

    Args:
        spec: what to do.
        role: activation or input (whose running maximum only grows).
        clip: the interval in which the replaced activation keeps its output; used while observing.

    Attributes:
        reuse_input: without gradients, overwrite the input (the converter sets this where the input
            is a fresh tensor that nothing else reads).
    """

    def __init__(
        self,
        spec: QuantSpec,
        role: Role = Role.ACTIVATION,
        clip: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        super().__init__()
        self.spec = spec
        self.role = role
        self.clip = clip
        self.phase = Phase.TRAIN
        self.reuse_input = False
        self.constant = spec.scale is ScaleRule.CONST
        start = torch.full((1,), spec.value if self.constant else 0.0)
        if spec.scale is ScaleRule.LEARNED:
            self.scale = nn.Parameter(start)
        else:
            self.register_buffer("scale", start)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self._ready: bool | None = None
        self.__dict__["group"] = None
        #: Of the input: shape of one sample of the last batch.
        self.sample_shape: tuple[int, ...] | None = None
        self.register_load_state_dict_pre_hook(_load_float_state)
        self.register_load_state_dict_post_hook(_forget_ready)

    def join(self, group: ScaleGroup) -> None:
        """Use the scale of a group's owner; an own one remains as a statistic, ``seen``."""
        self.__dict__["group"] = group  # not a child: its members live elsewhere
        if group.owner is not self:
            del self.scale
        self.register_buffer("seen", torch.zeros(1))

    @property
    def owner(self) -> ActivationQuantizer:
        """The quantizer that holds the scale: itself, unless it shares one."""
        return self if self.group is None else self.group.owner

    @property
    def peak(self) -> int:
        """The largest magnitude of a level."""
        return max(-self.spec.format.min_level, self.spec.format.max_level)

    @property
    def ready(self) -> bool:
        """Whether the scale has been set: by a batch, by loading, or because it is constant."""
        if self._ready is None:
            owner = self.owner
            seen = self.group is None or bool(self.seen.any())
            self._ready = owner.constant or (seen and bool(owner.scale.detach().any()))
        return self._ready

    @property
    def unit(self) -> float:
        """Real value of one level, as evaluation and freezing use it.

        Raises:
            ModelError: no batch has been seen yet.
        """
        if not self.ready:
            raise ModelError(
                "an activation quantizer has no scale yet",
                hint="train or calibrate first, or pass example_input",
            )
        owner = self.owner
        return float(finish(owner.scale.detach(), owner.spec)) * owner.spec.format.lsb

    def forward(self, x: Tensor) -> Tensor:
        if self.role is Role.INPUT:
            self.sample_shape = tuple(x.shape[1:])
        if self.phase is Phase.CALIBRATE:
            clipped = x.clamp(*self.clip) if self.clip != (-math.inf, math.inf) else x
            self._observe(clipped.detach())
            return clipped
        if not self.ready or (self.training and self._follows_batches):
            self._observe(x.detach().clamp(*self.clip))
        number_format = self.spec.format
        stairs = (number_format.min_level, number_format.max_level, self.spec.rounding)
        if not torch.is_grad_enabled():
            return self._evaluate(x, stairs)
        if isinstance(number_format, BipolarFormat):
            return SignActivation.apply(x, self.unit)
        owner = self.owner
        if owner.spec.scale is not ScaleRule.LEARNED:
            return QuantizeActivation.apply(x, None, self.unit, stairs, 0.0)
        features = max(1, x.numel() // max(1, x.shape[0]))
        factor = owner.spec.format.lsb / math.sqrt(features * max(1, number_format.max_level))
        return QuantizeActivation.apply(x, owner.scale, self.unit, stairs, factor)

    def _evaluate(self, x: Tensor, stairs: Stairs) -> Tensor:
        """The same function without a gradient: passes over memory that is in the cache already."""
        unit = self.unit
        if isinstance(self.spec.format, BipolarFormat):
            positive = x.ge_(0) if self.reuse_input else (x >= 0).to(x.dtype)
            return positive.mul_(2 * unit).sub_(unit)
        out = x if self.reuse_input else torch.empty_like(x)
        return quantize_into(out, x, unit, stairs)

    @property
    def _follows_batches(self) -> bool:
        return self.owner.spec.scale in (ScaleRule.MAX, ScaleRule.PERCENTILE, ScaleRule.MSE)

    @torch.no_grad()
    def _observe(self, x: Tensor) -> None:
        """Bring the running statistic up to date with one batch.

        While calibrating: the largest (``max``) or the mean of the batches' scales; while training
        an exponential average. The input's maximum only grows: its range is a fact of the data.
        """
        if self.owner.constant:
            return
        kept = self.scale if self.group is None else self.seen
        seen = observed_scale(x, self.spec).to(kept.dtype)
        # A batch of zeros says nothing about the range; an unready quantizer then spans 0 .. 1.
        nothing = 1.0 / (max(1, self.spec.format.max_level) * self.spec.format.lsb)
        seen = torch.where(seen > TINY, seen, kept if self.ready else seen + nothing)
        grows = self.spec.scale is ScaleRule.MAX and (
            self.role is Role.INPUT or self.phase is Phase.CALIBRATE
        )
        if not self.ready:
            self._refuse_negative_input(x)
            kept.copy_(seen)
        elif grows:
            kept.copy_(torch.maximum(kept, seen))
        else:
            calibrating = self.phase is Phase.CALIBRATE
            share = 1.0 / (int(self.batches) + 1) if calibrating else self.spec.momentum
            kept.lerp_(seen, share)
        self.batches.add_(1)
        self._ready = None
        if self.group is not None:
            self.group.refresh()

    def _refuse_negative_input(self, x: Tensor) -> None:
        """Normalised images into an unsigned format would silently lose everything below zero."""
        if self.role is not Role.INPUT or self.spec.format.min_level < 0 or not x.numel():
            return
        low, high = float(x.min()), float(x.max())
        if low < -1e-3 * max(high, -low):
            raise ModelError(
                f"the input goes down to {low:g}, which its format {self.spec.format} cannot hold",
                where="quant.input",
                hint="use a signed format such as int8, or leave the images in 0 .. 1",
            )

    def extra_repr(self) -> str:
        shared = "" if self.group is None else f", shared by {len(self.group.members)}"
        return f"{self.spec.format}, {self.spec.scale_text}{shared}"


def _forget_ready(module: nn.Module, _: Any) -> None:
    module._ready = None


def set_phase(model: nn.Module, phase: Phase) -> None:
    """Switch every quantizer of a converted model."""
    for module in model.modules():
        if isinstance(module, WeightQuantizer | ActivationQuantizer):
            module.phase = phase
