# SPDX-License-Identifier: Apache-2.0
"""The quantizer of weights and biases, for every format.

Its state sits under keys of its own, so a float state dict loads into a quantized model: learned
scales, tables and fixed levels that were found for other weights are then forgotten.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitwright.base.errors import ModelError
from bitwright.formats import CodebookFormat, Format, IntegerFormat, Overflow, Rounding
from bitwright.formats.block import MIN_EXPONENT
from bitwright.formats.pytorch.rounding import encode_levels, quantize_ratio
from bitwright.quantize.quantizer import Phase, Quantizer
from bitwright.quantize.scale_rules import (
    RangeRule,
    has_threshold,
    rows,
    steps_of,
    threshold_levels,
    weight_scale,
)
from bitwright.quantize.spec import Granularity, QuantSpec
from bitwright.quantize.straight_through import (
    LevelRange,
    SignWeight,
    SubstituteWeight,
    spread,
    to_levels_,
)
from bitwright.quantize.weight_state import (
    OPTIONAL,
    check_levels,
    fit_codebook,
    make_room,
    smallest_integer,
)


class WeightQuantizer(Quantizer):
    """Weight (O, ...) -> quantized weight; its state is initialised from the first weight.

    Args:
        spec: what to do.
        channels: output channels O.

    Attributes:
        codebooks: for a table that several layers share, who fits it; else None.
        revision: counts the tables and fixed levels there have been; whoever keeps a quantized
            weight compares it, since a new tensor may lie where an old one lay.
    """

    table: Tensor | None
    table_scale: Tensor | None
    fixed_levels: Tensor | None
    fixed_unit: Tensor | None
    #: Which weights are fixed, where it is not all of them.
    fixed_mask: Tensor | None

    def __init__(self, spec: QuantSpec, channels: int) -> None:
        super().__init__(spec, channels if spec.granularity is Granularity.PER_CHANNEL else 1)
        self.channels = channels
        self.revision = 0
        for name in OPTIONAL:
            self.register_buffer(name, None)
        self.register_load_state_dict_pre_hook(make_room)
        self.__dict__["codebooks"] = None
        self._fitted: tuple[int, Format] | None = None

    def _missing_state(self, state: dict[str, Any], prefix: str) -> None:
        """A state dict without the learned scale is one of a float model; the scale that was found
        for other weights is forgotten.
        """
        for name in ("scale", "range"):
            if hasattr(self, name) and prefix + name not in state:
                state[prefix + name] = torch.zeros_like(getattr(self, name))

    @property
    def format(self) -> Format:
        """The format of the levels: that of the specification, a codebook with its table, an affine
        one with its zero point (several, one a channel, make it wider).

        Neither is there before a weight has been seen.
        """
        chosen = self.spec.format
        if self.spec.zero_point:
            return self._affine_format()
        if self.table is None:
            return chosen
        if self._fitted is None or self._fitted[0] != self.revision:
            centroids = self.table.cpu().numpy()
            assert isinstance(chosen, CodebookFormat)
            levels = tuple(int(level) for level in centroids)
            fitted = CodebookFormat(chosen.size, chosen.centroid, levels)
            self._fitted = (self.revision, fitted)
        return self._fitted[1]

    def forward(self, weight: Tensor) -> Tensor:
        if self.phase is Phase.CALIBRATE:
            return weight
        if not (self.training or torch.is_grad_enabled()):
            return self.frozen_weight(weight)
        if self.fixed_levels is not None:
            return self._fixed_weight(weight)
        if self.spec.scale.trained:
            return self._trained(weight)
        if self.spec.has_range and self.training:
            self._observe(weight.detach())
        if self.spec.format.sign_only and self.spec.rounding is not Rounding.STOCHASTIC:
            unit = (self.current_scale(weight) * self.spec.format.lsb).to(weight.dtype)
            return SignWeight.apply(weight, spread(unit, weight))
        quantized, keep = self._quantize(weight.detach())
        return SubstituteWeight.apply(weight, quantized, keep)

    def fix_levels(self, levels: Tensor, unit: Tensor | float) -> None:
        """Give exactly these levels from now on, whatever the float weight.

        Until `release`, or until the float weight is loaded anew. Fixed levels belong to the state
        dict.

        Args:
            levels: of the weight's shape, levels of `format` (of a block format: shifted by their
                block's exponent).
            unit: real value of one level, one number or one an output channel.

        Raises:
            ModelError: not levels of this format, or a unit that is not positive and finite.
        """
        wide = torch.as_tensor(unit, dtype=torch.float64).detach().reshape(-1).clone()
        given = levels.detach()
        check_levels(given, wide, self.format, (1, self.channels))
        exact = self.format.exact_levels
        self.fixed_levels = smallest_integer(given) if exact else given.to(torch.float64).clone()
        self.fixed_unit, self.fixed_mask = wide.to(given.device), None
        self.revision += 1

    @torch.no_grad()
    def fix_portion(self, weight: Tensor, portion: float) -> None:
        """Pin a share of the weights to their levels, largest magnitude first; until all of them
        are, the others are trained as real numbers. What is fixed stays so.

        The unit is that of the first call.
        """
        levels, unit = self.levels(weight)
        if self.fixed_levels is not None and self.fixed_mask is None:
            return
        before = self.fixed_mask
        magnitude = weight.detach().abs().reshape(-1)
        if before is not None:
            magnitude = magnitude.masked_fill(before.reshape(-1), torch.inf)
        chosen = magnitude.argsort(descending=True, stable=True)[: round(portion * len(magnitude))]
        mask = torch.zeros_like(magnitude, dtype=torch.bool)
        mask[chosen] = True
        if before is not None:
            mask |= before.reshape(-1)
        self.fix_levels(levels, unit)
        if not bool(mask.all()):
            self.fixed_mask = mask.reshape(weight.shape)

    def _fixed_weight(self, weight: Tensor) -> Tensor:
        """Fixed weights, and among them those that are not fixed yet as they are."""
        quantized = self.frozen_weight(weight)
        if self.fixed_mask is None:
            return SubstituteWeight.apply(weight, quantized, None)
        mixed = torch.where(self.fixed_mask, quantized, weight.detach())
        return SubstituteWeight.apply(weight, mixed, ~self.fixed_mask)

    def release(self) -> None:
        """Follow the float weight again."""
        self.fixed_levels = self.fixed_unit = self.fixed_mask = None
        self.revision += 1

    @torch.no_grad()
    def change(self, spec: QuantSpec, *, carry: bool) -> None:
        """Go over to a specification that differs in the width of its format.

        Args:
            carry: a trained scale is found anew for the next weight; what follows from the weight
                or from an interval does so anyway. False: the state is that of the new one.
        """
        self.spec = spec
        self.revision += 1
        self._is_set = None
        if carry and spec.scale.trained and (not spec.has_range or steps_of(spec) == 1):
            self.trained_state.zero_()

    @property
    def fixed(self) -> bool:
        """Whether `fix_levels` has fixed the levels."""
        return self.fixed_levels is not None

    def fit(self, weight: Tensor) -> None:
        """Find the table of a codebook anew, for this weight (layers that share it: for all)."""
        if self.codebooks is not None:
            self.codebooks.fit()
            return
        self.set_table(*_single(fit_codebook([weight], self.spec)))

    def set_table(self, codebook: CodebookFormat, scale: Tensor) -> None:
        """Use this table from now on; ``scale`` (1,) or (O,) is that of the format."""
        if codebook.table is None:
            raise ModelError(f"{codebook} has no table", hint="fit it first")
        device = None if self.table is None else self.table.device
        table = torch.tensor([float(level) for level in codebook.table], dtype=torch.float64)
        self.table, self.table_scale = table.to(device), scale.to(torch.float64).to(device)
        self.revision += 1

    @torch.no_grad()
    def current_scale(self, weight: Tensor) -> Tensor:
        """The scale for this weight, (1,) or (O,), as forward uses it."""
        if self.fixed_unit is not None:
            return self.fixed_unit / self.spec.format.lsb
        if self.spec.format.needs_table:
            if self.table_scale is None:
                self.fit(weight)
            scale: Tensor = self.table_scale  # type: ignore[assignment] - fit has set it
            return scale.to(weight.device)
        if self.spec.format.block:
            return torch.exp2(self.block_exponents(weight).min()).reshape(1)
        if not (self.spec.scale.trained or self.spec.has_range):
            return weight_scale(weight.detach(), self.spec)
        self._initialise(weight)
        return self.used_scale()

    def _affine_format(self) -> Format:
        chosen = self.spec.format
        if not bool(self.range.any()):
            return chosen
        zeros = self.zero_points()
        if len(zeros) == 1:
            return chosen.with_zero(int(zeros))
        low, high = chosen.min_code - int(zeros.max()), chosen.max_code - int(zeros.min())
        bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)
        return IntegerFormat(max(1, bits + (low < 0)), low < 0)

    @torch.no_grad()
    def levels(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Exact integer levels (O, ...) and the unit of one level (1,) or (O,), both float64.

        The definition for evaluation and freezing: the float32 scale taken to float64, and the
        encode rule of the format there. Stochastic rounding becomes half to even. Levels of a block
        format are shifted by their block's exponent above the smallest, so that the tensor has one
        unit.

        Raises:
            ModelError: levels of another shape are fixed.
        """
        if self.fixed_levels is not None and self.fixed_unit is not None:
            if self.fixed_levels.shape != weight.shape:
                raise ModelError(
                    f"levels of shape {tuple(self.fixed_levels.shape)} are fixed to a weight of "
                    f"shape {tuple(weight.shape)}"
                )
            kept, unit = self.fixed_levels.to(torch.float64), self.fixed_unit.to(torch.float64)
            if self.fixed_mask is None:
                return kept, unit
            # The others lie on the same grid, each where it is now.
            ratio = weight.to(torch.float64) / spread(unit, weight)
            return torch.where(self.fixed_mask, kept, self._on_grid(ratio)), unit
        stochastic = self.spec.rounding is Rounding.STOCHASTIC
        rounding = Rounding.HALF_EVEN if stochastic else self.spec.rounding
        if self.spec.format.block:
            return self._blocks(weight, rounding)
        unit = self.current_scale(weight).to(torch.float64) * self.spec.format.lsb
        if has_threshold(self.spec):
            return threshold_levels(weight.to(torch.float64), self.spec), unit
        if self.spec.zero_point:
            levels = self._affine_range(weight, rounding)
            return to_levels_(weight.to(torch.float64) / spread(unit, weight), levels), unit
        levels = encode_levels(
            weight,
            self.format,
            spread(unit / self.spec.format.lsb, weight),
            rounding=rounding,
            overflow=self.spec.overflow,
        )
        return levels, unit

    def _on_grid(self, ratio: Tensor) -> Tensor:
        """Levels of reals in units of a level, float64, half to even."""
        if self.spec.zero_point:
            return to_levels_(ratio, self._affine_range(ratio, Rounding.HALF_EVEN))
        return quantize_ratio(ratio, self.format)

    @torch.no_grad()
    def frozen_weight(self, weight: Tensor) -> Tensor:
        """``unit * levels`` in the weight's dtype."""
        levels, unit = self.levels(weight)
        return (levels * spread(unit, weight)).to(weight.dtype)

    def _affine_range(self, weight: Tensor, rounding: Rounding) -> LevelRange:
        """The levels in use around the zero points, one or one an output channel."""
        zeros = spread(self.zero_points(), weight).to(weight.device)
        number_format = self.spec.format
        return LevelRange(number_format.min_code - zeros, number_format.max_code - zeros, rounding)

    @property
    def level_range(self) -> LevelRange:
        """The levels in use where there is no zero point."""
        number_format = self.format
        low, high = number_format.min_level, number_format.max_level
        if self.spec.overflow is Overflow.SAT_SYM and low < 0:
            low = -high
        grid = None if number_format.uniform else number_format
        return LevelRange(low, high, self.spec.rounding, grid)

    def _levels_of(self, weight: Tensor) -> LevelRange:
        if self.spec.zero_point:
            return self._affine_range(weight, self.spec.rounding)
        return self.level_range

    @torch.no_grad()
    def block_exponents(self, x: Tensor) -> Tensor:
        """Of a block format: the exponent of every weight's block, float64; blocks of zeros have
        that of the smallest other.
        """
        if not self.spec.format.block:
            raise ModelError(f"{self.spec.format} has no blocks")
        found = super().block_exponents(x)
        lowest = torch.where(found > MIN_EXPONENT, found, torch.inf).amin()
        return found.clamp(min=torch.where(torch.isinf(lowest), found.amin(), lowest))

    def _blocks(self, weight: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
        number_format = self.spec.format
        exponent = self.block_exponents(weight)
        lowest = exponent.min()
        ratio = weight.to(torch.float64) / (torch.exp2(exponent) * number_format.lsb)
        levels = quantize_ratio(ratio, number_format.stored, 0, rounding, self.spec.overflow)
        unit = torch.exp2(lowest).reshape(1) * number_format.lsb
        return levels * torch.exp2(exponent - lowest), unit

    def _quantize(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Quantized weight and the mask of the gradient (None: it passes everywhere)."""
        spec = self.spec
        if spec.format.block:
            levels, unit = self._blocks(weight, spec.rounding)
            return levels.mul_(unit).to(weight.dtype), None
        scale = self.current_scale(weight)
        if not spec.format.exact_levels:
            # Levels beyond float32's range; as no scale clips them, the gradient passes everywhere.
            wide = spread(scale.to(torch.float64) * spec.format.lsb, weight)
            levels = quantize_ratio(weight.to(torch.float64) / wide, self.format, 0, spec.rounding)
            return levels.mul_(wide).to(weight.dtype), None
        unit = spread((scale * spec.format.lsb).to(weight.dtype), weight)
        if spec.format.sign_only:
            sign = quantize_ratio(weight / unit, spec.format, rounding=spec.rounding)
            return sign.mul_(unit), weight.abs() <= 1
        if has_threshold(spec):
            return threshold_levels(weight, spec).mul_(unit), None
        if spec.overflow is Overflow.WRAP:
            levels = quantize_ratio(weight / unit, spec.format, 0, spec.rounding, spec.overflow)
            return levels.mul_(unit), None
        ratio, levels_in_use = weight / unit, self._levels_of(weight)
        keep = None
        if self.rule.clips:
            keep = (ratio >= levels_in_use.low) & (ratio <= levels_in_use.high)
        return to_levels_(ratio, levels_in_use).mul_(unit), keep

    def _trained(self, weight: Tensor) -> Tensor:
        """With a scale or a range that is a parameter."""
        self._initialise(weight)
        number_format = self.spec.format
        if number_format.sign_only:
            unit = self.scale.abs() * number_format.lsb
            return SignWeight.apply(weight, 1.0) * spread(unit, weight)
        unit = self.used_scale() * number_format.lsb
        if self.spec.has_range:
            unit = unit.to(weight.dtype)
        levels = self._levels_of(weight)
        return self.rule.weight(weight, self.trained_state, unit, levels, self.spec)

    @torch.no_grad()
    def _initialise(self, weight: Tensor) -> None:
        if not self._is_set and not bool(self.trained_state.any()):
            if self.spec.has_range:
                self._observe(weight.detach(), 1.0)
            else:
                self.scale.copy_(weight_scale(weight.detach(), self.spec))
        self._is_set = True

    @torch.no_grad()
    def _observe(self, weight: Tensor, share: float | None = None) -> None:
        """Bring the range nearer to that of this weight, by a share of the distance."""
        table, rule = rows(weight, self.spec.granularity), self.rule
        assert isinstance(rule, RangeRule)
        low, high = rule.first_range(table, self.spec)
        found = torch.stack([low, high], dim=1)
        if self.range.shape[1] == 1:
            found = found.abs().amax(dim=1, keepdim=True)
        if share is None:
            if not self._is_set:
                self._is_set = bool(self.range.any())
            share = self.spec.momentum if self._is_set else 1.0
        rule.update(self.range, found.to(self.range), share)

    def extra_repr(self) -> str:
        fixed = ", fixed" if self.fixed else ""
        return f"{self.spec.format}, {self.spec.granularity}, {self.spec.scale_text}{fixed}"


def _single(found: tuple[CodebookFormat, list[Tensor]]) -> tuple[CodebookFormat, Tensor]:
    codebook, (scale,) = found
    return codebook, scale
