# SPDX-License-Identifier: Apache-2.0
"""`calibrate`: a float model and typical inputs -> a quantized model whose activations have
scales.

In one pass over the calibration set every quantizer notes the range and a histogram of what it
gets; one estimator turns that into a scale. Quantizers that share a scale are estimated together.
Weights take their scales from themselves, as the policy says. Batches that are fed by hand to a
model in phase ``calibrate`` do the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.convert import apply
from bitwright.quantize.estimators import Estimator, parse_estimator
from bitwright.quantize.histogram import Observed
from bitwright.quantize.policy import Policy
from bitwright.quantize.ptq.samples import Samples, at_a_time, batches_for
from bitwright.quantize.quantizer import Phase, set_phase
from bitwright.quantize.spec import Role


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
    batches = batches_for(model, data, batch_size)
    return calibrate_on(
        model, policy, batches, estimator=estimator, input_estimator=input_estimator
    )


def calibrate_on(
    model: nn.Module,
    policy: Policy,
    batches: Sequence[Tensor],
    *,
    estimator: str | Estimator | None = None,
    input_estimator: str | Estimator | None = None,
) -> fx.GraphModule:
    """`calibrate` on what `batches_for` gave."""
    shape = tuple(batches[0].shape[1:])
    converted = apply(model, policy, Phase.CALIBRATE, sample_shape=shape).eval()
    chosen = None if estimator is None else parse_estimator(estimator)
    entering = None if input_estimator is None else parse_estimator(input_estimator)
    for owner in observe(converted, batches, at_a_time(model, batches)):
        owner.settle(entering if owner.role is Role.INPUT else chosen)
    set_phase(converted, Phase.TRAIN)
    return converted


@torch.no_grad()
def observe(
    converted: fx.GraphModule, batches: Sequence[Tensor], most: int
) -> dict[ActivationQuantizer, Observed]:
    """What is seen for every scale that is not constant, by the quantizer that owns it, of a model
    in phase ``calibrate``, which runs in floating point.

    Args:
        most: samples that pass at a time, see `at_a_time`.
    """
    for batch in batches:
        for part in batch.split(most):
            converted(part)
    seen: dict[ActivationQuantizer, Observed] = {}
    for quantizer in converted.modules():
        if isinstance(quantizer, ActivationQuantizer) and quantizer.observed is not None:
            if not quantizer.owner.constant:
                seen.setdefault(quantizer.owner, Observed()).merge(quantizer.observed)
    return seen
