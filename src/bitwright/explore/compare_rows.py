# SPDX-License-Identifier: Apache-2.0
"""One row of a comparison of number formats: a network quantized after training, and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitwright.base.errors import FormatError, ModelError, RecipeError
from bitwright.explore.variants import Variant
from bitwright.report.table import Value

if TYPE_CHECKING:
    from bitwright.explore.measuring import Outcome
    from bitwright.explore.subject import Subject


def make_row(
    subject: Subject,
    variant: Variant,
    reference: Outcome,
    *,
    images: int,
    limit: int | None = None,
) -> dict[str, Value]:
    """Quantize and measure one variant; all columns but the costs of a multiply-accumulate.

    Args:
        images: for calibration.
        limit: see `Subject.measure`.

    Raises:
        FormatError, ModelError, RecipeError: the network cannot be had in these formats.
    """
    from bitwright.explore.model_sizes import model_size
    from bitwright.quantize import Policy
    from bitwright.quantize.ptq.post_training import post_training_quantize

    fields = {**variant.policy, **subject.quant}
    policy = Policy.from_dict(fields, where=variant.name)
    data = subject.train.take(range(min(images, len(subject.train))))
    converted, _ = post_training_quantize(
        subject.model, policy, data, variant.methods, memory_share=0.5
    )
    exact, why = _frozen(converted, policy, subject)
    outcome = subject.measure(converted if exact is None else exact, limit)
    size = model_size(converted, sample_shape=subject.sample_shape)
    bits = f"{variant.weight_format.bits}/{variant.activation_format.bits}"
    return {
        **chosen(variant),
        "bits": bits,
        "accuracy": outcome.accuracy,
        "loss": outcome.loss_against(reference),
        "size": -(-size.parameter_bits // 8),
        "rate": size.parameter_rate,
        "memory": size.memory_ratio,
        "method": variant.method,
        "arithmetic": "exact integers" if exact is not None else f"simulated: {why}",
    }


def _frozen(converted: Any, policy: Any, subject: Subject) -> tuple[Any, str]:
    """The integer network, or None and the reason why there is none."""
    from bitwright.quantize import apply

    try:
        return apply(converted, policy, "freeze", sample_shape=subject.sample_shape), ""
    except (ModelError, RecipeError, FormatError) as error:
        return None, _brief(error.message)


def _brief(message: str) -> str:
    """The first of several reasons, and how many more there are."""
    head, *points = message.split("\n  - ")
    if not points:
        return head
    more = f" (and {len(points) - 1} more)" if len(points) > 1 else ""
    return points[0].strip() + more


def chosen(variant: Variant) -> dict[str, Value]:
    """The columns that say which variant a row is."""
    return {"format": variant.weight, "activation": variant.activation, "method": variant.method}
