# SPDX-License-Identifier: Apache-2.0
"""The sign of a format matched to the activation as it is written."""

from __future__ import annotations

from dataclasses import replace

from bitwright.base.errors import FormatError, RecipeError
from bitwright.formats import Format, IntegerFormat
from bitwright.quantize.op_match import Clip
from bitwright.quantize.spec import QuantSpec, Resolved


def fit(resolved: Resolved, clip: Clip | None, name: str) -> Resolved:
    """Match the sign of the format to the activation as it is written."""
    spec, reason = resolved.spec, resolved.reason
    if clip is not None and clip.sign:
        if spec is not None and spec.format.sign_only:
            return resolved
        raise RecipeError(
            f"{name} has two values, so its activation must be bipolar, not "
            f"{'float' if spec is None else spec.format}",
            where="quant.activation",
        )
    if spec is None or spec.format.sign_only:
        return resolved
    positive = clip is not None and clip.low >= 0
    if spec.zero_point:
        return _affine(resolved, spec, name) if positive else resolved
    if positive and spec.format.signed and spec.format.without_sign() == spec.format:
        # No unsigned variant: the levels below zero stay unused.
        why = f"{name} never goes below zero; {reason}"
        return Resolved(replace(spec, positive=True), why)
    fitted = spec.format.without_sign() if positive else _with_sign(spec.format)
    if fitted == spec.format:
        return resolved
    why = f"{name} never goes below zero" if positive else f"{name} also goes below zero"
    return Resolved(replace(spec, format=fitted), f"{why}: {spec.format} -> {fitted}; {reason}")


def _affine(resolved: Resolved, spec: QuantSpec, name: str) -> Resolved:
    """An interval that begins at zero has the smallest code as its zero point: that is the unsigned
    format without one, level by level.
    """
    plain = IntegerFormat(spec.format.bits, False)
    why = f"{name} never goes below zero: zero point 0; {resolved.reason}"
    return Resolved(replace(spec, format=plain, zero_point=False), why)


def _with_sign(number_format: Format) -> Format:
    """The signed format of the same width."""
    try:
        return number_format.with_sign()
    except FormatError as error:
        raise RecipeError(
            f"{number_format} cannot hold a negative activation",
            where="quant.activation",
            hint="use bipolar, ternary or int2, or put a ReLU before the layer",
        ) from error
