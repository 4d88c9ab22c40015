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

from bitwright.base.errors import ModelError
from bitwright.formats import BipolarFormat, BlockFormat, Format, IntegerFormat
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.quantize.entropy import Histogram, entropy_scale
from bitwright.quantize.policy import QuantSpec, Role, ScaleRule
from bitwright.quantize.scale_rules import (
    TINY,
    block_exponents,
    finish,
    first_range,
    gradient_factor,
    largest_level,
    observed_scale,
    range_of,
    sample,
    scale_of_range,
    steps_of,
    zero_point_of,
)
from bitwright.quantize.straight_through import (
    Interval,
    QuantizeActivation,
    QuantizeInterval,
    SignActivation,
    Stairs,
    SubstituteWeight,
    quantize_into,
)
from bitwright.quantize.weight_quantizer import Phase, WeightQuantizer


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
        scale = largest / self.owner.spec.format.lsb
        if self.owner.spec.scale is ScaleRule.MINMAX:
            self.owner.scale.copy_(scale)  # its own ends stay what they are
        else:
            self.owner.put_scale(scale)


#: Rules whose statistics go on following the batches of training.
_FOLLOWING = (ScaleRule.MAX, ScaleRule.PERCENTILE, ScaleRule.MSE, ScaleRule.MINMAX)


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
    in training or calibration sets it. Of ``minmax`` and ``interval`` the state are ``ends``,
    smallest and largest value, from which scale and zero point follow; a trained interval without
    a zero point has one end.

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
        elif spec.scale is ScaleRule.INTERVAL:
            self.ends = nn.Parameter(torch.zeros(1, 1 + spec.zero_point))
        else:
            self.register_buffer("scale", start)
        if spec.scale is ScaleRule.MINMAX:
            self.register_buffer("ends", torch.zeros(1, 2))
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
            delattr(self, "ends" if self.spec.scale is ScaleRule.INTERVAL else "scale")
        self.register_buffer("seen", torch.zeros(1))

    @property
    def owner(self) -> ActivationQuantizer:
        """The quantizer that holds the scale: itself, unless it shares one."""
        return self if self.group is None else self.group.owner

    @property
    def format(self) -> Format:
        """The format of the levels: that of the specification, with the zero point that the range
        now asks for.
        """
        chosen = self.spec.format
        if not (self.spec.zero_point and isinstance(chosen, IntegerFormat)):
            return chosen
        unit = torch.tensor(self.unit, dtype=torch.float64)
        return chosen.with_zero(int(zero_point_of(self.ends[0, 0].cpu(), unit, chosen)))

    @property
    def lowest(self) -> int:
        """The smallest level in use."""
        return self.format.min_level if self.spec.zero_point else self.spec.lowest

    @property
    def peak(self) -> int:
        """The largest magnitude of a level."""
        return max(-self.lowest, self.format.max_level)

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
            self._ready = fixed or (seen and bool(owner.state.any()))
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
        return float(finish(owner.raw_scale(), owner.spec)) * owner.spec.format.lsb

    @property
    def state(self) -> Tensor:
        """What training or calibration sets: the scale, or the ends of a trained interval."""
        kept: Tensor = self.ends if self.spec.scale is ScaleRule.INTERVAL else self.scale
        return kept.detach()

    def raw_scale(self) -> Tensor:
        """The scale (1,) of its owner before it is made positive, or a power of two."""
        if self.spec.scale is not ScaleRule.INTERVAL:
            return self.state
        low, high = self.state[:, 0], self.state[:, -1].clamp(min=0)
        return scale_of_range(low.clamp(max=0) if self.spec.zero_point else -high, high, self.spec)

    @torch.no_grad()
    def put_scale(self, scale: Tensor | float) -> None:
        """Use this scale from now on; a range that has two ends keeps their ratio."""
        wanted = torch.as_tensor(scale)
        if self.spec.has_range and self.ends.shape[1] > 1 and bool(self.ends.any()):
            self.ends.mul_(wanted / self.raw_scale().clamp(min=TINY))
        elif self.spec.has_range:
            self.ends[:, -1] = wanted * steps_of(self.spec) * self.spec.format.lsb
        if self.spec.scale is not ScaleRule.INTERVAL:
            self.scale.copy_(wanted)

    @torch.no_grad()
    def put_range(self, low: float, high: float) -> None:
        """Use this range from now on, ``low <= 0 <= high``: scale and zero point follow."""
        found = torch.tensor([[low, high]])
        self._keep(found if high - low > TINY else torch.tensor([[0.0, 1.0]]))

    @torch.no_grad()
    def change(self, spec: QuantSpec, *, carry: bool) -> None:
        """Go over to a specification that differs in the width of its format.

        Args:
            carry: bring the scale along: a maximum or an interval remains what it was, any other
                scale is set anew by the next batch. False: the state is that of the new one.
        """
        before, self.spec, self._ready = self.spec, spec, None
        if not carry or self.constant or not self.owner.state.any():
            return
        kept = self.owner.state if self.group is None else self.seen
        if spec.scale is ScaleRule.MINMAX:
            self._keep(self.ends.clone())
        elif spec.scale is not ScaleRule.MAX and (not spec.has_range or steps_of(spec) == 1):
            kept.zero_()
        elif spec.scale is ScaleRule.MAX or self.group is not None:
            kept.mul_(largest_level(before.format) / largest_level(spec.format))
        if self.group is not None and spec.scale is not ScaleRule.INTERVAL:
            self.group.refresh()
        self._ready = None

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
        if owner.spec.scale is ScaleRule.INTERVAL:
            unit = torch.full((1,), self.unit, dtype=x.dtype, device=x.device)
            interval = Interval(stairs.low, stairs.high, steps_of(owner.spec), stairs.rounding)
            return QuantizeInterval.apply(x, owner.ends, unit, interval)
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
        number_format = self.format
        high = number_format.max_level
        uneven = not number_format.uniform
        if uneven and self.constant and math.isfinite(self.clip[1]):
            ratio = torch.tensor([self.clip[1] / self.unit], dtype=torch.float64)
            high = int(quantize_ratio(ratio, number_format))
        grid = number_format if uneven else None
        low = number_format.min_level if self.spec.zero_point else self.spec.lowest
        return Stairs(low, high, self.spec.rounding, grid)

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
        return self.owner.spec.scale in _FOLLOWING

    @torch.no_grad()
    def _observe(self, x: Tensor) -> None:
        """Bring the running statistic up to date with one batch.

        While calibrating: the largest (``max``) or the mean of the batches' scales; while training
        an exponential average. The input's maximum only grows: its range is a fact of the data.
        """
        if self.owner.constant or self.spec.format.block:
            return
        if not self.ready:
            self._refuse_negative_input(x)
        if self.spec.has_range:
            self._observe_range(x)
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
            kept.copy_(seen)
        elif by_entropy:
            kept.copy_(seen)  # of all batches so far
        elif grows:
            kept.copy_(torch.maximum(kept, seen))
        else:
            kept.lerp_(seen, self._share)
        self._noted()

    def _observe_range(self, x: Tensor) -> None:
        """The same for the two ends of an interval; all of its statistics are means."""
        values = x if self.spec.lowest < 0 else x.clamp(min=0)
        if self.spec.scale is ScaleRule.INTERVAL and steps_of(self.spec) == 1:
            found = torch.stack(first_range(sample(values).reshape(1, -1), self.spec), dim=1)
        else:
            found = torch.stack(range_of(values.reshape(1, -1)), dim=1)
        if not bool((found.abs() > TINY).any()):
            found = found.new_tensor([[0.0, 1.0]])  # a batch of zeros says nothing about the range
            if self.ready:
                self._noted()
                return
        self._keep(found, self._share if self.ready else 1.0)

    def _keep(self, found: Tensor, share: float = 1.0) -> None:
        """Bring the statistics nearer to a range (1, 2) by a share of the distance."""
        if self.spec.scale is ScaleRule.MINMAX:
            self.ends.lerp_(found.to(self.ends), share)
            kept = self.scale if self.group is None else self.seen
            kept.copy_(scale_of_range(self.ends[:, 0], self.ends[:, 1], self.spec))
        elif self.group is not None:
            scale = scale_of_range(found[:, 0], found[:, 1], self.spec)
            self.seen.lerp_(scale.to(self.seen), share)
        else:
            both = self.spec.zero_point
            reach = found[:, 1] if self.spec.lowest == 0 else found.abs().amax(dim=1)
            self.ends.lerp_((found if both else reach[:, None]).to(self.ends), share)
        self._noted()

    @property
    def _share(self) -> float:
        """Weight of a new batch: all batches of a calibration count the same."""
        if self.phase is Phase.CALIBRATE:
            return 1.0 / (int(self.batches) + 1)
        return self.spec.momentum

    def _noted(self) -> None:
        self.batches.add_(1)
        self._ready = None
        if self.group is not None:
            self.group.refresh()

    def _refuse_negative_input(self, x: Tensor) -> None:
        """Normalised images into an unsigned format would silently lose everything below zero."""
        if self.role is not Role.INPUT or self.spec.lowest < 0 or not x.numel():
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
