# SPDX-License-Identifier: Apache-2.0
"""`calibrate`: a float model and typical inputs -> a quantized model whose activations have
scales.

Two passes over the calibration set: the first finds the range of every quantizer's input, the
second fills a histogram of it, and one estimator turns that into a scale. Quantizers that share a
scale are estimated together. Weights take their scales from themselves, as the policy says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.convert import apply
from bitwright.quantize.histogram import Histogram
from bitwright.quantize.policy import Policy
from bitwright.quantize.ptq.asymmetric_ranges import estimate_range
from bitwright.quantize.ptq.estimators import (
    Estimator,
    estimate_scale,
    estimator_of,
    parse_estimator,
)
from bitwright.quantize.ptq.samples import Samples, calibration_batches, check_fit
from bitwright.quantize.ptq.statistics import Observed
from bitwright.quantize.quantizer import Phase, set_phase
from bitwright.quantize.spec import Role

_SLIGHTLY = 1e-3


def calibrate(
    model: nn.Module,
    policy: Policy,
    data: Samples,
    *,
    estimator: str | Estimator | None = None,
    input_estimator: str | Estimator | None = None,
    batch_size: int = 64,
) -> fx.GraphModule:
    """A converted model in phase ``train``, evaluation mode, with every activation scale set.

    It can be evaluated, given to the methods of this package, trained on, or frozen.

    Args:
        model: a plain float module (batch norm folded or not); it is left as it was.
        policy: the formats.
        data: typical inputs, as the model takes them; no labels.
        estimator: of activations: ``max``, ``average``, ``percentile``, ``percentile:99.9``,
            ``mse``, ``entropy``; None: the one that each operand's scale rule asks for (a learned
            scale starts at the MSE one).
        input_estimator: of the input; None: by its scale rule.
        batch_size: of a data set or tensor.

    Raises:
        DataError: the samples are unusable or do not fit the model.
        ModelError, RecipeError: as `apply`.
    """
    batches = calibration_batches(data, batch_size)
    check_fit(model, batches)
    shape = tuple(batches[0].shape[1:])
    converted = apply(model, policy, Phase.CALIBRATE, sample_shape=shape).eval()
    chosen = None if estimator is None else parse_estimator(estimator)
    entering = None if input_estimator is None else parse_estimator(input_estimator)
    for owner, seen in observe(converted, batches).items():
        wanted = entering if owner.role is Role.INPUT else chosen
        _settle(owner, seen, wanted or estimator_of(owner.spec))
    set_phase(converted, Phase.TRAIN)
    return converted


def _settle(owner: ActivationQuantizer, seen: Observed, estimator: Estimator) -> None:
    """Give a quantizer, and those that share its scale, what an estimator finds."""
    members = members_of(owner)
    if not any(member.spec.zero_point for member in members):
        set_scale(owner, estimate_scale(seen, owner.spec, estimator))
        return
    histogram = seen.histogram if owner.group is None else None
    for member in members:
        ends = estimate_range(seen.ranges[member], histogram, member.spec, estimator)
        member.put_range(*ends)
        member.batches.fill_(1)


def set_scale(owner: ActivationQuantizer, scale: float) -> None:
    """Give an activation quantizer, and those that share its scale, this scale."""
    owner.put_scale(scale)
    for member in members_of(owner):
        member.batches.fill_(1)
        if member.group is not None:
            member.seen.fill_(scale * owner.spec.format.lsb / member.spec.format.lsb)
        member._is_set = None


def members_of(owner: ActivationQuantizer) -> list[ActivationQuantizer]:
    """The quantizers that use the scale of this one, itself among them."""
    return [owner] if owner.group is None else list(owner.group.members)


@torch.no_grad()
def observe(
    converted: fx.GraphModule, batches: Sequence[Tensor]
) -> dict[ActivationQuantizer, Observed]:
    """Statistics for every scale that is not constant, by the quantizer that owns it.

    The model runs in floating point, whatever its scales are.
    """
    quantizers = [m for m in converted.modules() if isinstance(m, ActivationQuantizer)]
    seen = {q.owner: Observed() for q in quantizers if not q.owner.constant}

    def note_range(quantizer: ActivationQuantizer, x: Tensor) -> None:
        entry = seen[quantizer.owner]
        values = x if quantizer.spec.lowest < 0 else x.clamp(min=0)
        low, high = min(float(values.amin()), 0.0), max(float(values.amax()), 0.0)
        entry.maxima.append(max(high, -low))
        entry.ranges.setdefault(quantizer, []).append((low, high))
        if quantizer.role is Role.INPUT:
            entry.negative = min(entry.negative, float(x.amin()))

    def count(quantizer: ActivationQuantizer, x: Tensor) -> None:
        histogram = seen[quantizer.owner].histogram
        if histogram is not None:
            histogram.add(x)

    _run(converted, batches, quantizers, note_range)
    for quantizer in quantizers:
        if quantizer.owner in seen:
            _refuse_negative(quantizer, seen[quantizer.owner])
    for entry in seen.values():
        entry.histogram = Histogram(entry.largest)
    _run(converted, batches, quantizers, count)
    return seen


def _refuse_negative(quantizer: ActivationQuantizer, seen: Observed) -> None:
    spec = quantizer.spec
    if quantizer.role is not Role.INPUT or spec.lowest < 0:
        return
    if seen.negative < -_SLIGHTLY * max(seen.largest, -seen.negative):
        raise ModelError(
            f"the input goes down to {seen.negative:g}, which its format {spec.format} cannot hold",
            where="quant.input",
            hint="use a signed format such as int8, or leave the images in 0 .. 1",
        )


def _run(
    converted: fx.GraphModule,
    batches: Sequence[Tensor],
    quantizers: Sequence[ActivationQuantizer],
    note: Callable[[ActivationQuantizer, Tensor], None],
) -> None:
    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if isinstance(module, ActivationQuantizer):
            note(module, output)

    free = [quantizer for quantizer in quantizers if not quantizer.owner.constant]
    with floating(converted):
        handles = [quantizer.register_forward_hook(hook) for quantizer in free]
        try:
            for batch in batches:
                converted(batch)
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def floating(converted: fx.GraphModule) -> Iterator[None]:
    """Run a converted model in floating point: quantizers pass on (clipped) what they get."""
    quantizers = [m for m in converted.modules() if isinstance(m, ActivationQuantizer)]
    phases = {m: m.phase for m in converted.modules() if hasattr(m, "phase")}
    constant = {q: q.constant for q in quantizers}
    was_training = converted.training
    converted.eval()
    set_phase(converted, Phase.CALIBRATE)
    for quantizer in quantizers:
        quantizer.constant = True  # no running statistics of its own
    try:
        yield
    finally:
        for quantizer in quantizers:
            quantizer.constant = constant[quantizer]
        for module, phase in phases.items():
            module.phase = phase
        converted.train(was_training)
