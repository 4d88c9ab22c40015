# SPDX-License-Identifier: Apache-2.0
"""The quantizer of activations and the input, and groups of them that share a scale.

Their state (learned scales, running statistics) sits under keys of its own, so a float state dict
loads into a quantized model: the quantizers then start anew, with the next batch.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bitwright.base.errors import ModelError
from bitwright.formats import Format
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.quantize.estimators import Estimator, estimate_range, estimate_scale, estimator_of
from bitwright.quantize.histogram import Observed
from bitwright.quantize.quantizer import HOST, Phase, Quantizer
from bitwright.quantize.scale_rules import (
    TINY,
    RangeRule,
    Unit,
    finish,
    observed_scale,
    rule_of,
    sample,
    scale_of_range,
    steps_of,
    zero_point_of,
)
from bitwright.quantize.spec import QuantSpec, Role, ScaleRule
from bitwright.quantize.straight_through import (
    LevelRange,
    SignActivation,
    SubstituteWeight,
    quantize_into,
)


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
        if self.owner.keeps_both:
            self.owner.scale.copy_(scale)  # its own range stays what it is
        else:
            self.owner.put_scale(scale)


class ActivationQuantizer(Quantizer):
    """Activation -> quantized activation; takes the place of a ReLU, hard tanh or nothing.

    Formats without a sign, and specifications that are ``positive``, clamp at zero, so a ReLU needs
    no pass of its own. Beside the state of its rule it keeps the ``scale`` in use (where that is no
    parameter); before the first batch it is 0, and the first batch seen in training or calibration
    sets it.

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
        super().__init__(spec)
        self.role = role
        self.clip = clip
        self.reuse_input = False
        self.constant = spec.scale is ScaleRule.CONST
        if not spec.scale.trained:
            start = torch.full((1,), spec.value if self.constant else 0.0)
            self.register_buffer("scale", start)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.__dict__["group"] = None
        #: In phase calibrate: what it has got so far, and whether the scale is behind that.
        self.observed: Observed | None = None
        self._pending = False
        #: Of the input: shape of one sample of the last batch.
        self.sample_shape: tuple[int, ...] | None = None

    def _missing_state(self, state: dict[str, Any], prefix: str) -> None:
        """A state dict without any key of this quantizer is one of a float model. Scales that were
        found for other weights are forgotten then (the next batch sets them); the input's scale,
        which belongs to the data, and constants stay.
        """
        own = {prefix + key: value for key, value in self.state_dict().items()}
        if any(key in state for key in own):
            return
        keep = self.constant or self.role is Role.INPUT
        state.update(own if keep else {k: torch.zeros_like(v) for k, v in own.items()})

    def join(self, group: ScaleGroup) -> None:
        """Use the scale of a group's owner; an own one remains as a statistic, ``seen``."""
        self.__dict__["group"] = group  # not a child: its members live elsewhere
        if group.owner is not self:
            delattr(self, "range" if self._range_alone else "scale")
        self.register_buffer("seen", torch.zeros(1))

    @property
    def owner(self) -> ActivationQuantizer:
        """The quantizer that holds the scale: itself, unless it shares one."""
        return self if self.group is None else self.group.owner

    @property
    def members(self) -> list[ActivationQuantizer]:
        """The quantizers that use this scale, itself among them."""
        return [self] if self.group is None else self.group.members

    @property
    def _range_alone(self) -> bool:
        """Whether the range is all there is: the parameter of a rule that trains it."""
        return self.spec.has_range and self.spec.scale.trained

    @property
    def keeps_both(self) -> bool:
        """Whether there is a range and, beside it, the scale in use."""
        return self.spec.has_range and not self.spec.scale.trained

    @property
    def format(self) -> Format:
        """The format of the levels: that of the specification, with the zero point that the range
        now asks for.
        """
        if not self.spec.zero_point:
            return self.spec.format
        self._check_ready()
        return self.spec.format.with_zero(int(self.zero_points()))

    def zero_points(self) -> Tensor:
        """The code of real zero, (1,) float64: of its own range, at the scale in use."""
        return zero_point_of(self.range[:, 0], self.owner.used_scale(), self.spec.format)

    @property
    def lowest(self) -> int:
        """The smallest level in use."""
        return self.format.min_level if self.spec.zero_point else self.spec.lowest

    @property
    def peak(self) -> int:
        """The largest magnitude of a level."""
        return max(-self.lowest, self.format.max_level)

    def peak_for(self, x: Tensor) -> tuple[Tensor, int]:
        """`peak` on the device of a tensor, and a bound of it."""
        number_format = self.spec.format
        if not self.spec.zero_point:
            return torch.full((), float(self.peak), device=x.device), self.peak
        zero = self.zero_points().reshape(())
        peak = torch.maximum(number_format.max_code - zero, zero - number_format.min_code)
        return peak, number_format.max_code - number_format.min_code

    @property
    def has_unit(self) -> bool:
        """Whether all values are integer multiples of one unit: not of blocks or wide floats."""
        return self.spec.format.exact_levels and not self.spec.format.block

    @property
    def ready(self) -> bool:
        """Whether the scale has been set: by a batch, by loading, or because it is constant."""
        if self._is_set is None:
            owner = self.owner
            self._settle_pending()
            seen = self.group is None or bool(self.seen.any())
            fixed = owner.constant or self.spec.format.block > 0
            self._is_set = fixed or (seen and bool(owner.state.any()))
        return self._is_set

    @property
    def unit(self) -> float:
        """Real value of one level, as evaluation and freezing use it.

        Raises:
            ModelError: no batch has been seen yet.
        """
        self._check_ready()
        owner = self.owner
        return float(owner.used_scale()) * owner.spec.format.lsb

    def _check_ready(self) -> None:
        if not self.ready:
            raise ModelError(
                "an activation quantizer has no scale yet",
                hint="train or calibrate first, or pass example_input",
            )

    def unit_for(self, x: Tensor) -> Unit:
        """`unit` for a tensor: a number where ``x`` is on the host, else a float64 tensor ()."""
        if x.device.type in HOST:
            return self.unit
        self._check_ready()
        owner = self.owner
        return (owner.used_scale().to(torch.float64) * owner.spec.format.lsb).reshape(())

    @property
    def state(self) -> Tensor:
        """What training or calibration sets: the scale, or a trained range."""
        kept: Tensor = self.range if self._range_alone else self.scale
        return kept.detach()

    @torch.no_grad()
    def put_scale(self, scale: Tensor | float) -> None:
        """Use this scale from now on; an asymmetric range keeps its proportions."""
        if self.spec.has_range:
            kept = self.range
            wanted = torch.as_tensor(scale).to(kept)
            from_zero = torch.zeros_like(kept)
            from_zero[:, -1] = wanted * steps_of(self.spec) * self.spec.format.lsb
            if kept.shape[1] > 1:
                ratio = kept * (wanted / self.raw_scale().to(kept).clamp(min=TINY))
                from_zero = torch.where(kept.any(), ratio, from_zero)
            kept.copy_(from_zero)
        if not self._range_alone:
            self.scale.copy_(torch.as_tensor(scale))

    @torch.no_grad()
    def put_range(self, low: float, high: float) -> None:
        """Use this range from now on, ``low <= 0 <= high``: scale and zero point follow."""
        found = torch.tensor([[low, high]])
        self._keep(found if high - low > TINY else torch.tensor([[0.0, 1.0]]))

    @torch.no_grad()
    def set_scale(self, scale: float) -> None:
        """Use this scale from now on, in all that share it."""
        self.put_scale(scale)
        for member in self.members:
            member.batches.fill_(1)
            if member.group is not None:
                member.seen.fill_(scale * self.spec.format.lsb / member.spec.format.lsb)
            member._is_set = None

    def enter(self, phase: Phase) -> None:
        """Phase calibrate begins without observations; its end sets the scale by them."""
        if phase is Phase.CALIBRATE:
            self.observed = self.observed or Observed(self.spec.lowest < 0)
        else:
            self._settle_pending()
            self.observed = None
        super().enter(phase)

    def _settle_pending(self) -> None:
        if any(member._pending for member in self.members):
            self.settle()

    def _save_to_state_dict(self, *args: Any) -> None:
        self._settle_pending()
        super()._save_to_state_dict(*args)

    def _count(self, x: Tensor) -> None:
        if self.observed is not None and not self.owner.constant:
            self.observed.add(x)
            self._pending = not self.spec.format.block
            for member in self.members:
                member._is_set = None

    @torch.no_grad()
    def settle(self, estimator: Estimator | None = None) -> None:
        """Set the scale, and those that it is shared by, from what calibration has seen so far.

        Args:
            estimator: None: the one that the scale rule asks for.

        Raises:
            ModelError: the input has values that its format cuts off.
        """
        owner, everything = self.owner, Observed()
        seen = {
            member: member.observed
            for member in self.members
            if member.observed is not None and member.observed.ranges
            if not member.spec.format.block  # which has no scale of its own
        }
        chosen = estimator or estimator_of(owner.spec)
        for member, observed in seen.items():
            member._refuse_negative_input(observed.lowest, observed.largest)
            member._pending = False
            everything.merge(observed)
        if not any(member.spec.zero_point for member in self.members):
            if seen:
                owner.set_scale(estimate_scale(everything, owner.spec, chosen))
            return
        for member, observed in seen.items():
            found = estimate_range(observed, member.spec, chosen, alone=self.group is None)
            member.put_range(*found)

    @torch.no_grad()
    def change(self, spec: QuantSpec, *, carry: bool) -> None:
        """Go over to a specification that differs in the width of its format.

        Args:
            carry: bring the scale along: a maximum or an interval remains what it was, any other
                scale is set anew by the next batch. False: the state is that of the new one.
        """
        before, self.spec, self._is_set = self.spec, spec, None
        if not carry or self.constant or not self.owner.state.any():
            return
        kept = self.owner.state if self.group is None else self.seen
        covers = self.rule.grows
        if self.keeps_both:
            self._keep(self.range.clone())
        elif not covers and (not spec.has_range or steps_of(spec) == 1):
            kept.zero_()
        elif covers or self.group is not None:
            kept.mul_(before.format.largest_level / spec.format.largest_level)
        if self.group is not None and not self._range_alone:
            self.group.refresh()
        self._is_set = None

    def forward(self, x: Tensor) -> Tensor:
        if self.role is Role.INPUT:
            self.sample_shape = tuple(x.shape[1:])
        if self.phase is Phase.CALIBRATE:
            clipped = x.clamp(*self.clip) if self.clip != (-math.inf, math.inf) else x
            self._count(clipped.detach())
            return clipped
        if not self.ready or (self.training and self.owner.spec.scale.follows):
            self._observe(x.detach().clamp(*self.clip))
        number_format = self.spec.format
        if number_format.block:
            return SubstituteWeight.apply(x, self._blocks(x), None)
        unit = self.unit_for(x)
        if not number_format.exact_levels:
            return SubstituteWeight.apply(x, self._wide(x, unit), None)
        levels = self._levels_for(x)
        if not torch.is_grad_enabled():
            return self._evaluate(x, unit, levels)
        if number_format.sign_only:
            return SignActivation.apply(x, unit)
        owner = self.owner
        specs = (self.spec, owner.spec)
        return rule_of(owner.spec).activation(x, owner.trained_state, unit, levels, specs)

    def _evaluate(self, x: Tensor, unit: Unit, levels: LevelRange) -> Tensor:
        """The same function without a gradient: passes over memory that is in the cache already."""
        if self.spec.format.sign_only:
            positive = x.ge_(0) if self.reuse_input else (x >= 0).to(x.dtype)
            return positive.mul_(2 * unit).sub_(unit)
        out = x if self.reuse_input else torch.empty_like(x)
        return quantize_into(out, x, unit, levels)

    @property
    def level_range(self) -> LevelRange:
        """The levels in use. A constant scale does not shrink to the range that the replaced
        activation keeps, so the upper end of that range is a level then.
        """
        number_format = self.format
        high = number_format.max_level
        uneven = not number_format.uniform
        if uneven and self.constant and math.isfinite(self.clip[1]):
            high = _level_at(self.clip[1], self.spec)
        grid = number_format if uneven else None
        low = number_format.min_level if self.spec.zero_point else self.spec.lowest
        return LevelRange(low, high, self.spec.rounding, grid)

    def _levels_for(self, x: Tensor) -> LevelRange:
        """`level_range` for a tensor; on a device it stays there with its zero point."""
        if x.device.type in HOST or not self.spec.zero_point:
            return self.level_range
        zero, number_format = self.zero_points().reshape(()), self.spec.format
        first, last = number_format.min_code - zero, number_format.max_code - zero
        return LevelRange(first, last, self.spec.rounding)

    @torch.no_grad()
    def _blocks(self, x: Tensor) -> Tensor:
        """Blocks of channels, each with the power of two of its largest value."""
        values, number_format = self._cut(x), self.spec.format
        scale = torch.exp2(self.block_exponents(values)) * number_format.lsb
        levels = quantize_ratio(values / scale, number_format, rounding=self.spec.rounding)
        return (levels * scale).to(x.dtype)

    @torch.no_grad()
    def _wide(self, x: Tensor, unit: Unit) -> Tensor:
        """Floats whose levels float32 does not hold."""
        levels = quantize_ratio(self._cut(x) / unit, self.spec.format, rounding=self.spec.rounding)
        return (levels * unit).to(x.dtype)

    def _cut(self, x: Tensor) -> Tensor:
        """In float64, without what the format cannot hold anyway."""
        values = x.to(torch.float64)
        return values if self.spec.lowest < 0 else values.clamp(min=0)

    @torch.no_grad()
    def _observe(self, x: Tensor) -> None:
        """Bring the running statistic of training up to date with one batch: an exponential
        average. The input's maximum only grows: its range is a fact of the data.
        """
        if self.owner.constant or self.spec.format.block:
            return
        if not self.ready:
            self._refuse_negative_input(float(x.min()), float(x.max()))
        if self.spec.has_range:
            self._observe_range(x)
            return
        kept = self.scale if self.group is None else self.seen
        seen = observed_scale(x, self.spec).to(kept.dtype)
        # A batch of zeros says nothing about the range; an unready quantizer then spans 0 .. 1.
        nothing = 1.0 / self.spec.format.reach
        seen = torch.where(seen > TINY, seen, kept if self.ready else seen + nothing)
        if not self.ready:
            kept.copy_(seen)
        elif self.rule.grows and self.role is Role.INPUT:
            kept.copy_(torch.maximum(kept, seen))
        else:
            self.rule.update(kept, seen, self.spec.momentum)
        self._noted()

    def _observe_range(self, x: Tensor) -> None:
        """The same for minimum and maximum of a range; all of its statistics are means."""
        values, rule = x if self.spec.lowest < 0 else x.clamp(min=0), self.rule
        assert isinstance(rule, RangeRule)
        single = self._range_alone and steps_of(self.spec) == 1  # this one needs a search
        table = (sample(values) if single else values).reshape(1, -1)
        found = torch.stack(rule.first_range(table, self.spec), dim=1)
        # A batch of zeros says nothing about the range; an unready quantizer then spans 0 .. 1.
        known = self.keeps_both and self.ready
        otherwise = self.range.to(found) if known else found.new_tensor([[0.0, 1.0]])
        found = torch.where((found.abs() > TINY).any(), found, otherwise)
        self._keep(found, self.spec.momentum if self.ready else 1.0)

    def _keep(self, found: Tensor, share: float = 1.0) -> None:
        """Bring the statistics nearer to a range (1, 2) by a share of the distance."""
        if self.keeps_both:
            self.rule.update(self.range, found.to(self.range), share)
            kept = self.scale if self.group is None else self.seen
            kept.copy_(scale_of_range(self.range[:, 0], self.range[:, 1], self.spec))
        elif self.group is not None:
            scale = scale_of_range(found[:, 0], found[:, 1], self.spec)
            self.rule.update(self.seen, scale.to(self.seen), share)
        else:
            reach = found[:, 1] if self.spec.lowest == 0 else found.abs().amax(dim=1)
            new = found if self.spec.zero_point else reach[:, None]
            self.rule.update(self.range, new.to(self.range), share)
        self._noted()

    def _noted(self) -> None:
        self.batches.add_(1)
        if not self._is_set:  # what is set stays so
            self._is_set = None
        if self.group is not None:
            self.group.refresh()

    def _refuse_negative_input(self, low: float, high: float) -> None:
        """Normalised images into an unsigned format would silently lose everything below zero."""
        if self.role is not Role.INPUT or self.spec.lowest < 0:
            return
        if low < -1e-3 * max(high, -low):
            raise ModelError(
                f"the input goes down to {low:g}, which its format {self.spec.format} cannot hold",
                where="quant.input",
                hint="use a signed format such as int8, or leave the images in 0 .. 1",
            )

    def extra_repr(self) -> str:
        shared = "" if self.group is None else f", shared by {len(self.group.members)}"
        return f"{self.spec.format}, {self.spec.scale_text}{shared}"


@lru_cache(maxsize=256)
def _level_at(value: float, spec: QuantSpec) -> int:
    """The level of a number at a constant scale."""
    unit = float(finish(torch.full((1,), spec.value), spec)) * spec.format.lsb
    ratio = torch.tensor([value / unit], dtype=torch.float64)
    return int(quantize_ratio(ratio, spec.format))
