# SPDX-License-Identifier: Apache-2.0
"""The quantizer of activations and the input, and groups of them that share a scale.

Their state (learned scales, running statistics) sits under keys of its own, so a float state dict
loads into a quantized model: the quantizers then start anew, with the next batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.errors import ModelError
from bitwright.formats import BipolarFormat, BlockFormat
from bitwright.quant.entropy import Histogram, entropy_scale
from bitwright.quant.functions import (
    QuantizeActivation,
    SignActivation,
    Stairs,
    SubstituteWeight,
    quantize_into,
)
from bitwright.quant.policy import QuantSpec, Role, ScaleRule
from bitwright.quant.rounding_torch import quantize_ratio
from bitwright.quant.scales import (
    TINY,
    block_exponents,
    finish,
    gradient_factor,
    largest_level,
    observed_scale,
)
from bitwright.quant.weights import Phase, WeightQuantizer


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


class ActivationQuantizer(nn.Module):
    """Activation -> quantized activation; takes the place of a ReLU, hard tanh or nothing.

    Formats without a sign, and specifications that are ``positive``, clamp at zero, so a ReLU needs
    no pass of its own. The scale is a parameter
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
        self._histogram = Histogram()
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
        return max(-self.spec.lowest, self.spec.format.max_level)

    @property
    def has_unit(self) -> bool:
        """Whether all values are integer multiples of one unit: not of blocks or wide floats."""
        return self.spec.format.exact_levels and not self.spec.format.block

    @property
    def ready(self) -> bool:
        """Whether the scale has been set: by a batch, by loading, or because it is constant."""
        if self._ready is None:
            owner = self.owner
            seen = self.group is None or bool(self.seen.any())
            fixed = owner.constant or self.spec.format.block > 0
            self._ready = fixed or (seen and bool(owner.scale.detach().any()))
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
        if isinstance(number_format, BlockFormat):
            return SubstituteWeight.apply(x, self._blocks(x, number_format), None)
        if not number_format.exact_levels:
            return SubstituteWeight.apply(x, self._wide(x), None)
        stairs = self.stairs
        if not torch.is_grad_enabled():
            return self._evaluate(x, stairs)
        if isinstance(number_format, BipolarFormat):
            return SignActivation.apply(x, self.unit)
        owner = self.owner
        if owner.spec.scale is not ScaleRule.LEARNED:
            return QuantizeActivation.apply(x, None, self.unit, stairs, 0.0)
        features = max(1, x.numel() // max(1, x.shape[0]))
        factor = gradient_factor(number_format, owner.spec.format.lsb, features)
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
    def stairs(self) -> Stairs:
        """The levels in use. A constant scale does not shrink to the range that the replaced
        activation keeps, so the upper end of that range is a level then.
        """
        number_format = self.spec.format
        high = number_format.max_level
        uneven = not number_format.uniform
        if uneven and self.constant and math.isfinite(self.clip[1]):
            ratio = torch.tensor([self.clip[1] / self.unit], dtype=torch.float64)
            high = int(quantize_ratio(ratio, number_format))
        grid = number_format if uneven else None
        return Stairs(self.spec.lowest, high, self.spec.rounding, grid)

    @torch.no_grad()
    def _blocks(self, x: Tensor, number_format: BlockFormat) -> Tensor:
        """Blocks of channels, each with the power of two of its largest value."""
        values = x.to(torch.float64)
        if self.spec.lowest == 0:
            values = values.clamp(min=0)
        scale = torch.exp2(block_exponents(values, number_format)) * number_format.lsb
        levels = quantize_ratio(values / scale, number_format.element, rounding=self.spec.rounding)
        return (levels * scale).to(x.dtype)

    @torch.no_grad()
    def _wide(self, x: Tensor) -> Tensor:
        """Floats whose levels float32 does not hold."""
        values = x.to(torch.float64)
        if self.spec.lowest == 0:
            values = values.clamp(min=0)
        levels = quantize_ratio(values / self.unit, self.spec.format, rounding=self.spec.rounding)
        return (levels * self.unit).to(x.dtype)

    @property
    def _follows_batches(self) -> bool:
        return self.owner.spec.scale in (ScaleRule.MAX, ScaleRule.PERCENTILE, ScaleRule.MSE)

    @torch.no_grad()
    def _observe(self, x: Tensor) -> None:
        """Bring the running statistic up to date with one batch.

        While calibrating: the largest (``max``) or the mean of the batches' scales; while training
        an exponential average. The input's maximum only grows: its range is a fact of the data.
        """
        if self.owner.constant or self.spec.format.block:
            return
        kept = self.scale if self.group is None else self.seen
        if not self.ready:
            self._histogram = Histogram()
        by_entropy = self.spec.scale is ScaleRule.ENTROPY
        if by_entropy:
            self._histogram.add(x if self.spec.lowest < 0 else x.clamp(min=0))
            seen = entropy_scale(self._histogram, self.spec).to(kept)
        else:
            seen = observed_scale(x, self.spec).to(kept.dtype)
        # A batch of zeros says nothing about the range; an unready quantizer then spans 0 .. 1.
        nothing = 1.0 / (largest_level(self.spec.format) * self.spec.format.lsb)
        seen = torch.where(seen > TINY, seen, kept if self.ready else seen + nothing)
        grows = self.spec.scale is ScaleRule.MAX and (
            self.role is Role.INPUT or self.phase is Phase.CALIBRATE
        )
        if not self.ready:
            self._refuse_negative_input(x)
            kept.copy_(seen)
        elif by_entropy:
            kept.copy_(seen)  # of all batches so far
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
