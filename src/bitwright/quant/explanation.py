# SPDX-License-Identifier: Apache-2.0
"""What a policy makes of a model, in rows, before anything is done."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import Tensor, nn

from bitwright.quant.decisions import Operand
from bitwright.quant.plan import make_plan
from bitwright.quant.policy import Policy


@dataclass(frozen=True)
class Row:
    """One operand of one layer: what it becomes, and why."""

    layer: str
    type: str
    operand: str
    format: str
    granularity: str
    scale: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def explain(model: nn.Module, policy: Policy, example_input: Tensor | None = None) -> list[Row]:
    """Every operand in execution order, the bias, joins and what stays float included.

    Args:
        example_input: needed only where ``forward`` writes sizes as numbers; see `apply`.

    Raises:
        ModelError, RecipeError: as `inspect_model`.
    """
    plan = make_plan(model, policy, example_input)
    rows = []
    for node in plan.graph.nodes:
        if node in plan.weights:
            rows.append(_row(plan.weights[node]))
            layer = model.get_submodule(str(node.target))
            if getattr(layer, "bias", None) is not None:
                rows.append(_bias_row(plan.weights[node], node is _last(plan)))
        if node in plan.activations:
            rows.append(_row(plan.activations[node]))
    return rows + [_row(note) for note in plan.notes]


def inspect_model(
    model: nn.Module, policy: Policy, example_input: Tensor | None = None
) -> list[str]:
    """Check a model against a policy before any work.

    Args:
        example_input: needed only where ``forward`` writes sizes as numbers; see `apply`.

    Returns:
        What calibrates and trains but cannot be frozen into hardware, one line each.

    Raises:
        ModelError: it cannot be traced or converted: every reason, with the user's line.
        RecipeError: the policy does not fit the model.
    """
    plan = make_plan(model, policy, example_input)
    operands = {**plan.weights, **plan.activations}
    return [
        f"{plan.sites[node].place}: its {operand.role.value} is kept float; give it a format"
        for node, operand in operands.items()
        if operand.spec is None
    ]


def _last(plan: object) -> object:
    return plan.source(plan.output)


def _row(operand: Operand) -> Row:
    spec = operand.spec
    return Row(
        operand.layer.path,
        operand.layer.type,
        operand.role.value,
        "float" if spec is None else spec.format.name,
        "" if spec is None else spec.granularity.value,
        "" if spec is None else spec.scale_text,
        operand.reason,
    )


def _bias_row(weight: Operand, stays: bool) -> Row:
    if weight.spec is None:
        fate, reason = "float", "the weight is float"
    elif stays:
        fate, reason = "integer", "rounded to the accumulator's scale, exact width"
    else:
        fate, reason = "folded", "taken up by the activation behind, in float64"
    return Row(weight.layer.path, weight.layer.type, "bias", fate, "", "accumulator", reason)
