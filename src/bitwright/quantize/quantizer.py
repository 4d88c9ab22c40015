# SPDX-License-Identifier: Apache-2.0
"""`Quantizer`: a number format and a scale rule, with the state that the rule needs.

What is common to weights, biases, activations and inputs. The state (learned scales, ranges,
running statistics) sits under keys of its own, so a float state dict loads into a quantized model.

No forward pass in training asks a device for a number: what Python must know (whether a scale has
been set) is kept as Python state, and scales stay tensors where waiting for one would cost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.formats import Format
from bitwright.formats.pytorch.fake_quantize import block_exponents
from bitwright.models.modes import modes_kept
from bitwright.quantize.scale_rules import (
    Rule,
    finish,
    rule_of,
    scale_of_range,
    zero_point_of,
)
from bitwright.quantize.spec import QuantSpec

#: Devices whose numbers Python can read without waiting.
HOST = ("cpu",)
#: State of checkpoints of before, by its name then.
_OLD_NAMES = {
    "ends": "range",
    "pinned_levels": "fixed_levels",
    "pinned_unit": "fixed_unit",
    "pinned_mask": "fixed_mask",
}


#: The specification's key in a state dict's metadata.
_SPECIFICATION = "specification"
_log = logging.getLogger(__name__)


def present_name(key: str) -> str:
    """The key of a quantizer's state today, of one that may be from before."""
    path, dot, name = key.rpartition(".")
    return f"{path}{dot}{_OLD_NAMES.get(name, name)}"


class Phase(StrEnum):
    """What `apply` prepares a model for: observe, train with quantization, or exact integers."""

    CALIBRATE = "calibrate"
    TRAIN = "train"
    FREEZE = "freeze"


class Quantizer(nn.Module):
    """Tensor -> quantized tensor of the same shape, with straight-through gradients.

    Args:
        spec: what to do. A trained rule adds a parameter: ``scale`` (R,), or of a rule with a range
            ``range``, (R, 2) minimum and maximum with a zero point, else (R, 1). ``minmax`` adds a
            buffer ``range`` (R, 2) of running averages. All are 0 until they are set.
        scales: R, how many scales there are.
    """

    def __init__(self, spec: QuantSpec, scales: int = 1) -> None:
        super().__init__()
        self.spec = spec
        self.phase = Phase.TRAIN
        self._is_set: bool | None = None
        rule = spec.scale
        if rule.has_range and rule.trained:
            self.range = nn.Parameter(torch.zeros(scales, 1 + spec.zero_point))
        elif rule.has_range:
            self.register_buffer("range", torch.zeros(scales, 2))
        elif rule.trained:
            self.scale = nn.Parameter(torch.zeros(scales))
        self.register_state_dict_post_hook(_say_specification)
        self.register_load_state_dict_pre_hook(_before_load)
        self.register_load_state_dict_post_hook(_after_load)

    @property
    def rule(self) -> Rule:
        """What its scale rule does."""
        return rule_of(self.spec)

    @property
    def format(self) -> Format:
        """The format of the levels: that of the specification, with a zero point as the range asks
        for, or with a table.
        """
        return self.spec.format

    @property
    def trained_state(self) -> Tensor:
        """What the rule keeps: the range of one that has a range, else the scale."""
        kept: Tensor = self.range if self.spec.has_range else self.scale
        return kept

    def raw_scale(self) -> Tensor:
        """The scale (R,) that is state, before `Rule.finish`."""
        if "scale" in self._parameters or "scale" in self._buffers:
            return self.scale.detach()
        low, high = self.range.detach()[:, 0], self.range.detach()[:, -1].clamp(min=0)
        low = low.clamp(max=0) if self.range.shape[1] > 1 else -high
        return scale_of_range(low, high, self.spec)

    @torch.no_grad()
    def used_scale(self) -> Tensor:
        """The same as it is used: positive, and a power of two where asked."""
        return finish(self.raw_scale(), self.spec)

    def zero_points(self) -> Tensor:
        """The code of real zero that the range asks for, (R,) float64."""
        return zero_point_of(self.range[:, 0], self.used_scale(), self.spec.format)

    @torch.no_grad()
    def block_exponents(self, x: Tensor) -> Tensor:
        """Of a block format: the exponent of every value's block along axis 1, float64."""
        return block_exponents(x, self.spec.format).to(torch.float64)

    def _missing_state(self, state: dict[str, Any], prefix: str) -> None:
        """Complete a state dict that lacks this quantizer's state."""

    def enter(self, phase: Phase) -> None:
        """Go over to a phase."""
        self.phase = phase


def own_spec(quantizer: Quantizer) -> QuantSpec:
    """The specification of the policy, whatever `incremental.set_bits` has made of it."""
    spec: QuantSpec = quantizer.__dict__.setdefault("own_spec", quantizer.spec)
    return spec


def _own_words(quantizer: Quantizer) -> str:
    """What numbers of its state depend on: others mean something else by them."""
    spec = quantizer.__dict__.get("own_spec", quantizer.spec)
    return f"{spec.format.name}, {spec.granularity.value}, {spec.scale_text}"


def _say_specification(
    module: Quantizer, _: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> None:
    """The specification goes with a state dict, as torch's own version numbers do: no key more, and
    `torch.save` keeps it.
    """
    metadata[_SPECIFICATION] = _own_words(module)


def _check_specification(
    module: Quantizer, state: dict[str, Any], prefix: str, metadata: dict[str, Any],
    errors: list[str],
) -> None:  # fmt: skip
    found, own = metadata.get(_SPECIFICATION), _own_words(module)
    if found is None:
        if any(key.startswith(prefix) for key in state):
            _tell_unknown()
    elif found != own:
        errors.append(
            f'{prefix[:-1]}: this state was saved by a quantizer of "{found}", the model has '
            f'"{own}". Convert the model by the policy that it was saved with'
        )


@cache
def _tell_unknown() -> None:
    """Once is enough."""
    _log.warning(
        "a state dict is loaded that does not say which formats it was saved with (it is of an "
        "earlier version, or was kept without the metadata of torch's state dicts, as safetensors "
        "does): make sure that the policy is the same"
    )


def _before_load(
    module: Quantizer, state: dict[str, Any], prefix: str, metadata: dict[str, Any], strict: bool,
    missing: list[str], unexpected: list[str], errors: list[str],
) -> None:  # fmt: skip
    del strict, missing, unexpected
    _check_specification(module, state, prefix, metadata, errors)
    for old, new in _OLD_NAMES.items():
        if prefix + old in state:
            state[prefix + new] = state.pop(prefix + old)
    module._missing_state(state, prefix)


def _after_load(module: Quantizer, _: Any) -> None:
    module._is_set = None


@contextmanager
def floating(model: nn.Module) -> Iterator[None]:
    """A converted model in floating point and evaluation mode: its quantizers pass on (clipped)
    what they get, and note nothing.
    """
    phases = {m: m.phase for m in model.modules() if isinstance(m, Quantizer)}
    with modes_kept(model):
        model.eval()
        for quantizer in phases:
            quantizer.phase = Phase.CALIBRATE
        try:
            yield
        finally:
            for quantizer, phase in phases.items():
                quantizer.phase = phase


def set_phase(model: nn.Module, phase: Phase) -> None:
    """Switch every quantizer of a converted model."""
    for module in model.modules():
        if isinstance(module, Quantizer):
            module.enter(phase)
