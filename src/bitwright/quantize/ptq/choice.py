# SPDX-License-Identifier: Apache-2.0
"""`choose_policy`: which of some policies changes a network's outputs the least, without labels.

The measure is the squared error of the outputs on the calibration set as a share of the power of
the float outputs (the inverse of the signal-to-quantization-noise ratio). Neither labels nor test
data take part, so that what is chosen can still be measured fairly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.models.modes import evaluating
from bitwright.quantize.policy import Policy
from bitwright.quantize.ptq.methods import Method
from bitwright.quantize.ptq.post_training import post_training_quantize
from bitwright.quantize.ptq.samples import BATCH, Samples, calibration_batches, check_fit


@dataclass(frozen=True)
class Choice:
    """What was tried.

    Attributes:
        errors: of each policy by name, in the order they were given; see the module's docstring.
    """

    errors: dict[str, float]

    @property
    def best(self) -> str:
        """The name with the smallest error; the first of equals."""
        return min(self.errors, key=lambda name: self.errors[name])


def choose_policy(
    model: nn.Module,
    policies: Mapping[str, Policy],
    data: Samples,
    methods: Sequence[str | Method] = ("fold", "calibrate"),
    *,
    batch_size: int = BATCH,
) -> Choice:
    """Quantize a float model by each policy and compare the outputs with the float ones.

    Args:
        methods: as for `post_training_quantize`. The default leaves out those that move single
            weights: they cost most of the time, and what is compared are grids.

    Raises:
        RecipeError: there is nothing to choose from; or as `post_training_quantize`.
        DataError: as there.
        ModelError: as there, or the outputs are no tensor of numbers, or all zero.
    """
    if not policies:
        raise RecipeError("no policies to choose from", where="choose_policy")
    batches = calibration_batches(data, batch_size)
    check_fit(model, batches)
    wanted = _outputs(model, batches)
    power = sum(float(part.double().square().sum()) for part in wanted)
    if not 0 < power < math.inf:
        raise ModelError(
            "outputs on the calibration set are all zero or not finite",
            where=type(model).__name__,
        )
    errors = {}
    for name, policy in policies.items():
        made, _ = post_training_quantize(model, policy, data, methods, batch_size=batch_size)
        found = _outputs(made, batches)
        errors[name] = (
            sum(
                float((a.double() - b.double()).square().sum())
                for a, b in zip(found, wanted, strict=True)
            )
            / power
        )
    return Choice(errors)


def _outputs(model: nn.Module, batches: Sequence[Tensor]) -> list[Tensor]:
    with evaluating(model):
        made = [model(batch.clone()) for batch in batches]  # a layer may write into it
    if not all(isinstance(part, Tensor) for part in made):
        raise ModelError("has outputs that are no tensor", where=type(model).__name__)
    return made
