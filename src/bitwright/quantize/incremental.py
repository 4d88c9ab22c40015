# SPDX-License-Identifier: Apache-2.0
"""Quantization step by step while a model trains: bits that fall, or weights fixed in portions.

Both change the quantizers of a converted model in place; neither adds a parameter, so the optimizer
stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from bitwright.base.errors import ModelError
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.layers import QuantLayer
from bitwright.quantize.quantizer import Quantizer, own_spec
from bitwright.quantize.spec import QuantSpec, Role, ScaleRule
from bitwright.quantize.weight_quantizer import WeightQuantizer


def set_bits(model: nn.Module, bits: int | None, *, carry: bool = True) -> int:
    """Give every weight and activation of fewer bits this many, None: those of its policy.

    The input and the biases stay as they are, and so does an operand whose format is no integer
    (except bipolar and ternary weights with a mean scale, which become narrow integers). The policy
    of the model is not changed: its specifications come back with None.

    Args:
        model: from `apply`, in phase train.
        carry: bring what the scales were for the old width over to the new one: the largest
            magnitude and the minimum and maximum of ranges remain, a scale found by search or by
            training is found anew, from the weights or from the next batch. False: the state
            belongs to the new width already (it was loaded from a checkpoint).

    Returns:
        How many quantizers have more bits than their policy says.
    """
    wider = 0
    for quantizer in _quantizers(model):
        own = own_spec(quantizer)
        wanted = own if bits is None else widened(own, bits)
        wider += wanted != own
        if wanted != quantizer.spec:
            quantizer.change(wanted, carry=carry)
    return wider


def widened(spec: QuantSpec, bits: int) -> QuantSpec:
    """A specification with at least this many bits, the same where it has no wider form."""
    if spec.format.bits >= bits:
        return spec
    chosen = spec.format.with_bits(bits)
    if spec.format.is_integer:
        return replace(spec, format=chosen.with_narrow(False) if spec.zero_point else chosen)
    if spec.format.mean_scaled and spec.scale is ScaleRule.MEAN:
        return replace(spec, format=chosen, scale=ScaleRule.MAX)
    return spec


def fix_portion(model: nn.Module, portion: float) -> None:
    """Fix this share of the weights of each layer to their grid, largest magnitude first; the
    others are real numbers from now on, until they are fixed too.

    What is fixed already stays so. The grid, scale and zero point, is that of the first call.

    Raises:
        ModelError: the weights of a layer are no single grid (blocks, codebooks).
    """
    for path, layer in _layers(model):
        reason = no_portions(layer.weight_quantizer)
        if reason is not None:
            raise ModelError(reason, where=path)
        layer.weight_quantizer.fix_portion(layer.weight, portion)


def unfix(model: nn.Module) -> None:
    """Let every weight follow its float value again."""
    for _, layer in _layers(model):
        layer.weight_quantizer.release()


def no_portions(quantizer: WeightQuantizer) -> str | None:
    """Why the weights of a format cannot be fixed one by one; None if they can."""
    chosen = quantizer.spec.format
    if chosen.block or chosen.needs_table or not chosen.exact_levels:
        return f"{chosen} weights cannot be fixed in portions: their grid depends on all of them"
    return None


def check_stages(model: nn.Module, bits: tuple[int, ...], portions: bool) -> None:
    """Refuse stages that this model cannot have.

    Raises:
        ModelError: it is no quantized model, or a stage of ``bits`` changes nothing.
    """
    quantizers = list(_quantizers(model))
    if not quantizers:
        raise ModelError(
            "has no quantizers, so there is nothing to lower step by step",
            where="incremental",
            hint="incremental belongs to a phase of quantized training",
        )
    if portions:
        for path, layer in _layers(model):
            reason = no_portions(layer.weight_quantizer)
            if reason is not None:
                raise ModelError(reason, where=f"incremental.portions, {path}")
        return
    for width in bits:
        if all(widened(own_spec(q), width) == own_spec(q) for q in quantizers):
            least = min(own_spec(q).format.bits for q in quantizers)
            raise ModelError(
                f"a stage of {width} bits changes nothing: the policy has {least} bits or more, or "
                "formats without a wider form",
                where="incremental.bits",
                hint="name widths above those of the policy, or leave incremental out",
            )


def _layers(model: nn.Module) -> Iterator[tuple[str, QuantLayer]]:
    for path, module in model.named_modules():
        if isinstance(module, QuantLayer):
            yield path, module


def _quantizers(model: nn.Module) -> Iterator[Quantizer]:
    """Those of weights and activations."""
    for _, layer in _layers(model):
        yield layer.weight_quantizer
    for module in model.modules():
        if isinstance(module, ActivationQuantizer) and module.role is not Role.INPUT:
            yield module


__all__ = ["check_stages", "fix_portion", "own_spec", "set_bits", "unfix", "widened"]
